"""Which pixels reach one pixel through K steps: in theory, and measured as gradients of trained Global layers."""

from typing import Any

import timm
import torch
from torch import Tensor

from pdecnn.layers import GlobalLayer
from pdecnn.reference import advection_diffusion
from pdecnn.training.datasets import load_sample
from pdecnn.viz.figures.canvas import new_figure, show_map

SIDE = 32
STEPS = (1, 5, 10, 20)
NAME = "cifar_resnet_tiny_global.cifar10"


def theoretical(K: int, side: int = SIDE) -> Tensor:
    """Where a value can come from that is at the middle after K steps: all places of at most K moves, periodically.

    Example:
        >>> int(theoretical(5).sum()), int(theoretical(1).sum())
        (61, 5)
    """
    h = torch.zeros(1, 1, side, side, dtype=torch.float64)
    h[..., side // 2, side // 2] = 1.0
    ones = torch.ones_like(h)
    total = torch.zeros_like(h)
    for k in range(1, K + 1):  # leapfrog reaches the places of one parity of moves at a time
        total += advection_diffusion(h, h_prev=h, u=0.3 * ones, v=0.2 * ones, D_x=1.0, D_y=1.0, f=h, K=k).abs()
    return total[0, 0] > 0


def effective(layer: GlobalLayer, x: Tensor) -> Tensor:
    """The mean over channels and images of |d out / d in|, moved so that the output's pixel is in the middle."""
    x = x.detach().requires_grad_()
    h, source = layer.first_guess(x)
    out = layer.solve(h, source, layer.coefficients(h))
    side = x.shape[-1]
    out[:, :, side // 2, side // 2].sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad.abs().mean((0, 1))


def draw() -> Any:
    """Above: reached pixels for K = 1, 5, 10, 20. Below: the gradients in the trained layers of the tiny net."""
    figure = new_figure(9.4, 5.2)
    above, below = figure.subplots(2, len(STEPS))
    for axes, K in zip(above, STEPS, strict=True):
        reached = theoretical(K)
        show_map(
            axes, reached, f"K = {K}: {int(reached.sum())} of {SIDE * SIDE} pixels", cmap="Greys", vmin=0, vmax=1.4
        )
    model = timm.create_model(NAME, pretrained=True).eval()
    inputs: dict[GlobalLayer, Tensor] = {}
    layers = [m for m in model.modules() if isinstance(m, GlobalLayer)]
    hooks = [m.register_forward_pre_hook(lambda m, args: inputs.__setitem__(m, args[0])) for m in layers]
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        model((load_sample("cifar10").x[:32] / 255 - mean) / std)
    for hook in hooks:
        hook.remove()
    for axes, layer in zip(below, layers, strict=False):
        field = effective(layer, inputs[layer])
        share = field / field.sum()
        centre = share[share.shape[0] // 2, share.shape[1] // 2].item()
        size = f"{share.shape[0]}x{share.shape[1]}"
        shown = show_map(axes, share.clamp_min(1e-6).log10(), f"trained, {size}, centre {100 * centre:.0f} %", vmin=-6)
    below[-1].axis("off")
    bar = figure.colorbar(shown, cax=below[-1].inset_axes((0.1, 0.05, 0.08, 0.9)))
    bar.set_label("log10 of the share of |d out / d in|")
    above[0].set_ylabel("theory", fontsize=10)
    below[0].set_ylabel(f"measured, K = {layers[0].K}", fontsize=10)
    return figure
