"""The published Global layer in the place of removed blocks."""

from dataclasses import fields

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pdecnn.condensation.site import Run
from pdecnn.layers.global_layer_nd import AnyGlobalLayer, GlobalLayer1d, GlobalLayer3d
from pdecnn.models._options import GlobalOptions

DEFAULTS = GlobalOptions(coef_bias=False)
COMMON = (
    "K", "dt", "kernel_size", "source", "h_prev", "residual", "boundary", "coef_bias", "coef_bn_eps", "velocity_bound",
)  # fmt: skip


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
