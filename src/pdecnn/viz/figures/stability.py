"""The region in which no wave grows, with the Courant numbers of the trained layers on it."""

from typing import Any

import timm
import torch
from torch import Tensor

from pdecnn.layers import GlobalLayer
from pdecnn.reference.courant import von_neumann_number
from pdecnn.training.datasets import load_sample
from pdecnn.viz.figures.canvas import BLUE, GREY, INK, RED, new_figure

NAME = "cifar_resnet_tiny_global.cifar10"
POINTS = 4000


def courant_numbers(layer: GlobalLayer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`|A_x|`, `|A_y|` and the von Neumann number V of every element, for the input `x` of the layer."""
    with torch.no_grad():
        h, _ = layer.first_guess(x)
        u, v, D_x, D_y = (torch.as_tensor(c).double().expand(h.shape) for c in layer.coefficients(h))
    dx, dy = layer.spacings
    A_x, A_y, B_x, B_y = u * layer.dt / dx, v * layer.dt / dy, D_x * layer.dt / dx**2, D_y * layer.dt / dy**2
    return A_x.abs().flatten(), A_y.abs().flatten(), von_neumann_number(A_x, A_y, B_x, B_y).flatten()


def draw() -> Any:
    """One panel for each layer: grey points are stable, red ones would let some wave grow if they were everywhere."""
    model = timm.create_model(NAME, pretrained=True).eval()
    layers = [m for m in model.modules() if isinstance(m, GlobalLayer)]
    inputs: dict[GlobalLayer, Tensor] = {}
    hooks = [m.register_forward_pre_hook(lambda m, args: inputs.__setitem__(m, args[0])) for m in layers]
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        model((load_sample("cifar10").x / 255 - mean) / std)
    for hook in hooks:
        hook.remove()
    figure = new_figure(9.8, 4.1)
    panels = figure.subplots(1, len(layers))
    angle = torch.linspace(0, torch.pi / 2, 100)
    for axes, layer in zip(panels, layers, strict=True):
        A_x, A_y, V = courant_numbers(layer, inputs[layer])
        some = torch.randperm(len(V), generator=torch.Generator().manual_seed(0))[:POINTS]
        for inside, colour, label in ((V <= 1, GREY, "no wave grows"), (V > 1, RED, "with its D some wave grows")):
            at = some[inside[some]]
            axes.plot(A_x[at], A_y[at], ".", color=colour, markersize=2, alpha=0.5, rasterized=True, label=label)
        axes.plot([0, 1], [1, 0], color=INK, label="no diffusion: |A_x| + |A_y| = 1")
        axes.plot(0.5**0.5 * angle.cos(), 0.5**0.5 * angle.sin(), color=BLUE, label="B_x = B_y: A_x^2 + A_y^2 = 1/2")
        beyond = 100 * (V > 1).double().mean().item()
        axes.set_title(f"{layer.channels} channels, {beyond:.1f} % unstable", fontsize=9, color=INK)
        end = 1.05 * max(1.0, A_x.max().item(), A_y.max().item())
        axes.set(xlim=(-0.02, end), ylim=(-0.02, end), xlabel="|A_x| = |u| dt / dx", aspect="equal")
    panels[0].set_ylabel("|A_y| = |v| dt / dy")
    words = {"loc": "outside lower center", "ncols": 4, "frameon": False, "fontsize": 8, "markerscale": 4}
    figure.legend(*panels[0].get_legend_handles_labels(), **words)
    return figure
