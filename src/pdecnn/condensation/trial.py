"""Try a condensed model before it is promised: it must run, answer in the same shapes, and stay finite."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.condensation.apply import apply_runs, new_layers
from pdecnn.condensation.paper import start_coefficients
from pdecnn.condensation.record import MAPS, Record, record
from pdecnn.condensation.site import Run
from pdecnn.layers.global_layer_nd import GLOBAL_LAYERS, AnyGlobalLayer
from pdecnn.shared.modules import listen
from pdecnn.shared.trees import map_tensors, takes_targets


def try_runs(model: nn.Module, inputs: tuple[Any, ...], runs: Sequence[Run], notes: Record) -> tuple[list[Run], str]:
    """The runs with the size of the maps that their Global layers meet, and what went wrong; empty if nothing did.

    Args:
        model: The model before.
        inputs: What it is run on; constant ones are replaced by noise, as they say nothing about sizes.
        runs: All of them are condensed together.
        notes: The record of the model before.
    """
    sizes: dict[str, float] = {}
    try:
        small = apply_runs(model, runs)
        layers = new_layers(small, runs).items()
        sites: dict[Any, str] = {layer: site for site, layer in layers if isinstance(layer, GLOBAL_LAYERS)}
        with listen(sites, before=lambda layer, args, _: sizes.update({sites[layer]: _start(layer, args)})):
            found = record(small, map_tensors(inputs, lively))
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"[:200]
    failure = _difference(runs, notes, found, counts=takes_targets(model))
    return [dataclasses.replace(run, rms=sizes.get(run.site, 1.0)) for run in runs], failure


def lively(x: Any) -> Any:
    """The tensor itself or, if all its numbers are one, as in `torch.zeros`, normal noise of its shape.

    Example:
        >>> lively(torch.zeros(2, 3)).std() > 0.1
        tensor(True)
    """
    if not isinstance(x, Tensor) or x.is_meta or not x.is_floating_point() or x.numel() < 2 or x.min() < x.max():
        return x
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return noise.to(device=x.device, dtype=x.dtype)


def _start(layer: AnyGlobalLayer, args: tuple[Any, ...]) -> float:
    """Starts the coefficients of a layer from the size of the map that it is given, and returns that."""
    h, _ = layer.first_guess(*args)
    rms = 1.0 if h.is_meta else float(f"{float(h.double().square().mean().sqrt()):.4g}")
    start_coefficients(layer, rms)
    return rms


def _difference(runs: Sequence[Run], notes: Record, found: Record, *, counts: bool) -> str:
    """What is wrong, if anything; a detector `counts`: how many boxes it gives depends on its weights."""
    dead = [run.site for run in runs if run.site and not found.calls.get(run.site)]
    if dead:
        return f"the new layer at {dead[0]} is not called"
    before, after = notes.output_shapes, found.output_shapes
    if any(run.is_dense for run in runs):  # the maps of a backbone become narrower
        before, after = ([s[:1] + s[2:] if len(s) in MAPS else s for s in shapes] for shapes in (before, after))
    if counts:
        before, after = ([s[1:] for s in shapes] for shapes in (before, after))
    if before != after:
        return f"it returns {after}, not {before}"
    return "what it returns is not finite" if notes.finite and not found.finite else ""
