"""Carry out a plan: the blocks of each run go, something cheap comes in the place of the last of them."""

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from pdecnn.condensation.blocks import Replacement, registered
from pdecnn.condensation.dense import shorten
from pdecnn.condensation.replacements import NOTHING, build
from pdecnn.condensation.site import Run
from pdecnn.shared.modules import replace

NEW = "_pdecnn_new"  # marks a layer that has nothing of the model before


class ChannelsLast(nn.Module):
    """A layer for `(N, C, H, W)` between feature maps of shape `(N, H, W, C)`; in one and three dimensions alike."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """`(N, H, W, C) -> (N, H, W, C)`."""
        out: Tensor = self.layer(x.movedim(-1, 1)).movedim(1, -1)
        return out


def apply_runs(model: nn.Module, runs: Iterable[Run]) -> nn.Module:
    """A copy of `model` in which every run is condensed."""
    small = copy.deepcopy(model)
    for run in runs:
        if run.condenses:
            check_paths(small, run)
            _condense(small, run)
    return small


def check_paths(model: nn.Module, run: Run) -> None:
    """A ValueError if the model does not have the blocks of a run."""
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    for path in (*run.members(), *run.readers, *((run.transition,) if run.transition is not None else ())):
        if path not in known:
            raise ValueError(
                f"Plan.apply: {type(model).__name__} has no module {path!r}, which the run {run.path} names. The plan "
                "was made for another model; make a new one with pdecnn.plan."
            )


def _condense(model: nn.Module, run: Run) -> None:
    if run.is_dense:
        like = next(model.get_submodule(run.readers[-1]).parameters())
        training = model.get_submodule(run.readers[-1]).training
        shorten(model, run)
        if run.transition is not None:
            layer = _new(build(run, None, like).train(training), run)
            model.get_submodule(run.transition).add_module("global_layer", layer)
        return
    parent = model.get_submodule(run.parent)
    modules = [parent._modules[name] for unit in run.removed for name in unit]
    removed = [m for m in modules if m is not None]
    like = next((p for m in removed for p in m.parameters()), torch.empty(()))
    make = own_replacement(removed) if run.replacement != NOTHING else None
    last = removed[-1]
    if make is not None:
        layer = make(removed, run)
    else:
        layer = _new(build(run, _first_guess(parent, run), like), run)
        layer = ChannelsLast(layer) if run.channels_last else layer
    new = {m: nn.Identity() for m in removed[:-1]} | {last: _with_hooks(layer.train(last.training), last)}
    replace(model, lambda module: new.get(module, module))


def _new(layer: nn.Module, run: Run) -> nn.Module:
    setattr(layer, NEW, run.replacement != NOTHING)
    return layer


def own_replacement(removed: Sequence[nn.Module]) -> Replacement | None:
    """The function that a user registered for these blocks, if any; norms and activations beside them do not count."""
    return registered([m for m in removed if any(True for _ in m.parameters())])


def _first_guess(parent: nn.Module, run: Run) -> nn.Module | None:
    if run.init == "identity":
        return None
    modules = [parent.get_submodule(name) for name in run.removed[0]]
    guess = modules[0] if len(modules) == 1 else nn.Sequential(*modules)
    return nn.Sequential(ToLast(), guess, ToFirst()) if run.channels_last else guess


class ToLast(nn.Module):
    """`(N, C, H, W) -> (N, H, W, C)`."""

    def forward(self, x: Tensor) -> Tensor:
        """The permuted map."""
        return x.movedim(1, -1)


class ToFirst(nn.Module):
    """`(N, H, W, C) -> (N, C, H, W)`."""

    def forward(self, x: Tensor) -> Tensor:
        """The permuted map."""
        return x.movedim(-1, 1)


def _with_hooks(layer: nn.Module, old: nn.Module) -> nn.Module:
    """Gives `layer` the forward hooks of the module it replaces."""
    for name in ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks"):
        getattr(layer, name).update(getattr(old, name))
    layer._forward_pre_hooks_with_kwargs.update(old._forward_pre_hooks_with_kwargs)
    return layer


def new_layers(model: nn.Module, runs: Sequence[Run]) -> dict[str, nn.Module]:
    """The layers of a condensed model that have nothing of the model before, by the path of their site."""
    return {site: layer for site, layer in site_modules(model, runs).items() if getattr(layer, NEW, False)}


def site_modules(model: nn.Module, runs: Sequence[Run]) -> dict[str, nn.Module]:
    """What stands at the site of each run that was condensed."""
    found = {}
    for run in runs:
        if run.condenses and run.site:
            module = model.get_submodule(run.site)
            found[run.site] = module.layer if isinstance(module, ChannelsLast) else module
    return found
