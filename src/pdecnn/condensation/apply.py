"""Carry out a plan: the blocks of each run go, a Global layer comes in the place of the last of them."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import fields

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pdecnn.condensation.blocks import Replacement, registered
from pdecnn.condensation.dense import shorten
from pdecnn.condensation.site import Run
from pdecnn.layers.global_layer_nd import GLOBAL_LAYERS, AnyGlobalLayer, GlobalLayer1d, GlobalLayer3d
from pdecnn.models._options import GlobalOptions
from pdecnn.shared.modules import replace

DEFAULTS = GlobalOptions(coef_bias=False)
COMMON = (
    "K", "dt", "kernel_size", "source", "h_prev", "residual", "boundary", "coef_bias", "coef_bn_eps", "velocity_bound",
)  # fmt: skip


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
            layer = global_layer(run, None, like).train(training)
            model.get_submodule(run.transition).add_module("global_layer", layer)
        return
    parent = model.get_submodule(run.parent)
    modules = [parent._modules[name] for unit in run.removed for name in unit]
    removed = [m for m in modules if m is not None]
    like = next((p for m in removed for p in m.parameters()), torch.empty(()))
    make = own_replacement(removed)
    last = removed[-1]
    if make is not None:
        layer = make(removed, run)
    else:
        layer = global_layer(run, _first_guess(parent, run), like)
        layer = ChannelsLast(layer) if run.channels_last else layer
    new = {m: nn.Identity() for m in removed[:-1]} | {last: _with_hooks(layer.train(last.training), last)}
    replace(model, lambda module: new.get(module, module))


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


def global_layer(run: Run, init: nn.Module | None, like: Tensor) -> AnyGlobalLayer:
    """The Global layer of a run, on the device and in the type of `like`.

    Where the feature map has negative values the layer is `h + norm(h^K)` and starts as the identity; where a ReLU
    made it, the layer is `relu(norm(h^K))`.
    """
    options = DEFAULTS.replace({"residual": run.signed, **run.options, "K": run.K})
    dtype = like.dtype if like.dtype.is_floating_point else torch.float32
    layer = _build(options, run.shape, init, like.device, dtype)
    start_coefficients(layer, run.rms)
    if options.residual:
        layer.act = nn.Identity()
        nn.init.zeros_(layer.norm.weight)  # type: ignore[arg-type]
    return layer


def _build(
    options: GlobalOptions, shape: tuple[int, ...], init: nn.Module | None, device: torch.device, dtype: torch.dtype
) -> AnyGlobalLayer:
    """The layer for maps `(C, W)`, `(C, H, W)` or `(C, D, H, W)`."""
    if len(shape) == 3:
        return options.build(shape[0], init, device=device, dtype=dtype)
    for name in (f.name for f in fields(options)):
        if name not in COMMON and getattr(options, name) != getattr(DEFAULTS, name):
            raise ValueError(f"plan: the Global layer of {len(shape) - 1}-D maps has no option {name!r}.")
    values = {name: getattr(options, name) for name in COMMON}
    return (GlobalLayer1d if len(shape) == 2 else GlobalLayer3d)(
        shape[0], init=init, device=device, dtype=dtype, **values
    )


@torch.no_grad()
def start_coefficients(layer: AnyGlobalLayer, rms: float) -> None:
    """Lets velocities and diffusivities of maps as large as `rms` start about as large as they will be in training.

    A new norm divides by 1 until it has seen data. The velocities of a large map are then as large as the map, far
    beyond what the scheme can carry (`reference/courant.py`), and each such layer makes the next map larger still.
    Maps smaller than 1 are left as they are.
    """
    for part in (layer.velocity, layer.diffusion):
        for norm in part.modules():
            if isinstance(norm, _BatchNorm) and norm.running_var is not None:
                norm.running_var.fill_(max(1.0, rms**2))


def _with_hooks(layer: nn.Module, old: nn.Module) -> nn.Module:
    """Gives `layer` the forward hooks of the module it replaces."""
    for name in ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks"):
        getattr(layer, name).update(getattr(old, name))
    layer._forward_pre_hooks_with_kwargs.update(old._forward_pre_hooks_with_kwargs)
    return layer


def global_layers(model: nn.Module, runs: Sequence[Run]) -> dict[str, AnyGlobalLayer]:
    """The Global layers of a condensed model by the path of their site."""
    layers = {}
    for run in runs:
        module = model.get_submodule(run.site) if run.condenses and run.site else None
        module = module.layer if isinstance(module, ChannelsLast) else module
        if isinstance(module, GLOBAL_LAYERS):
            layers[run.site] = module
    return layers
