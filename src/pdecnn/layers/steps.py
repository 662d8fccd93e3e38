"""K as a knob: the number of time steps of a whole net, and statistics for every K that it serves."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from pdecnn.layers.global_fusion import FusedGlobalLayer
from pdecnn.layers.global_layer_nd import GLOBAL_LAYERS
from pdecnn.layers.step_norm import BATCH_NORMS, StepNorm, forget
from pdecnn.layers.transport import Transport
from pdecnn.reference.advection_diffusion import check_steps
from pdecnn.shared.modules import eval_mode
from pdecnn.shared.trees import arguments, map_tensors

MAX_SERVED = 64
_LAYERS = (*GLOBAL_LAYERS, FusedGlobalLayer, Transport)


def set_steps(model: nn.Module, K: int) -> int:
    """Sets the number of time steps of every layer of `model` that has them; returns how many such layers there are.

    Weights stay as they are. A net that was trained for a range of K (`serve_steps`, the setting `steps` of a recipe)
    has statistics for each and refuses a K outside; any other uses the statistics that it has.

    Example:
        >>> from pdecnn.layers import GlobalLayer
        >>> net = nn.Sequential(GlobalLayer(4), nn.ReLU(), GlobalLayer(4))
        >>> set_steps(net, 2), net[0].K
        (2, 2)
    """
    check_steps("set_steps", K)
    layers, norms = _layers(model), _norms(model)
    for norm in norms:
        norm.row(K)
    for layer in layers:
        layer.set_steps(K)
    for norm in norms:
        norm.K = K
    return len(layers)


@contextmanager
def with_steps(model: nn.Module, K: int) -> Iterator[nn.Module]:
    """Runs the block with K steps in every layer and restores what each had."""
    before = [(layer, layer.K) for layer in (*_layers(model), *_norms(model))]
    try:
        set_steps(model, K)
        yield model
    finally:
        for layer, own in before:
            if isinstance(layer, StepNorm):
                layer.K = own
            else:
                layer.set_steps(own)


def serve_steps(model: nn.Module, least: int, most: int) -> nn.Module:
    """Gives `model`, in place, statistics for each K from `least` to `most` in the batch norms right after K steps.

    They start as those that the norms have; a layer whose K is outside gets the nearest inside. The norm of a Global
    layer is its own, that of `Transport` the next module of the same `nn.Sequential`; other norms have no statistics of
    a K to keep, or do not know of it.

    Example:
        >>> from pdecnn.layers import GlobalLayer
        >>> serve_steps(nn.Sequential(GlobalLayer(4)), 1, 10)[0].norm
        StepNorm(4, K=1..10)
    """
    for name, K in (("least", least), ("most", most)):
        check_steps(f"serve_steps: {name}", K)
    if not least <= most <= MAX_SERVED:
        raise ValueError(f"serve_steps: expected least <= most <= {MAX_SERVED}, got least={least}, most={most}.")
    if not _layers(model):
        raise ValueError(f"serve_steps: {type(model).__name__} has no layer with K time steps, so no K to serve.")
    known = served_steps(model)
    if known is not None:
        if known != (least, most):
            raise ValueError(
                f"serve_steps: {type(model).__name__} serves K from {known[0]} to {known[1]} already; train it for "
                f"these, or a fresh one for {least} to {most}."
            )
        return model
    for layer in _layers(model):
        layer.set_steps(min(max(layer.K, least), most))
    for parent, name in list(_places(model)):
        norm: Any = parent._modules[name]
        parent._modules[name] = made = StepNorm(norm, least, most)
        made.K = next(m.K for m in (parent, *parent.children()) if isinstance(m, _LAYERS))
    return model


def served_steps(model: nn.Module) -> tuple[int, int] | None:
    """The least and the most K that the model has statistics for; None if it does not keep them apart."""
    return next(((norm.least, norm.most) for norm in _norms(model)), None)


@torch.no_grad()
def find_statistics(model: nn.Module, inputs: Iterable[Any]) -> None:
    """Finds the statistics of every K anew, in place: their mean over the batches of inputs; labels are not needed.

    All other norms stay in evaluation, so that each K sees what it will see when it serves.
    """
    norms, served = _norms(model), served_steps(model)
    if served is None:
        return
    own = [norm.momentum for norm in norms]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with eval_mode(model):
        for norm in norms:
            forget(norm)
            norm.momentum = None
            norm.training = True
        try:
            for x in inputs:
                given = map_tensors(x, lambda q: q.to(device))
                for K in range(served[0], served[1] + 1):
                    with with_steps(model, K):
                        model(*arguments(model, given))
        finally:
            for norm, momentum in zip(norms, own, strict=True):
                norm.momentum = momentum


def _layers(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, _LAYERS)]


def _norms(model: nn.Module) -> list[StepNorm]:
    return [m for m in model.modules() if isinstance(m, StepNorm)]


def _places(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The batch norms with statistics that come right after K steps: the module that has each, and its name there."""
    for module in model.modules():
        if isinstance(module, GLOBAL_LAYERS):
            follows = ["norm"]
        elif isinstance(module, nn.Sequential):
            pairs = pairwise(module.named_children())
            follows = [name for (_, layer), (name, _) in pairs if isinstance(layer, Transport)]
        else:
            continue
        for name in follows:
            norm: Any = module._modules[name]
            if type(norm) in BATCH_NORMS and norm.running_mean is not None:
                yield module, name
