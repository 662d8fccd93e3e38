"""The velocity and the diffusivities that a trained Global layer computes, over the image that they belong to."""

from typing import Any

import timm
import torch

from pdecnn.layers import GlobalLayer
from pdecnn.training.datasets import CIFAR10_CLASSES, load_sample
from pdecnn.viz.figures.canvas import INK, new_figure, show_map

NAME = "cifar_resnet_tiny_global.cifar10"
IMAGES = 4


def draw() -> Any:
    """Rows of images; the first layer's mean velocity as arrows over it, and the means of u, v, D_x, D_y."""
    model = timm.create_model(NAME, pretrained=True).eval()
    sample = load_sample("cifar10")
    pictures, labels = sample.x[:IMAGES], sample.y[:IMAGES].tolist()
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    layer = next(m for m in model.modules() if isinstance(m, GlobalLayer))
    found: list[Any] = []
    hook = layer.register_forward_pre_hook(lambda m, args: found.append(m.coefficients(m.first_guess(args[0])[0])))
    with torch.no_grad():
        model((pictures / 255 - mean) / std)
    hook.remove()
    names = ("u", "v", "D_x", "D_y")
    maps = {
        name: torch.as_tensor(c).expand(IMAGES, layer.channels, 32, 32) for name, c in zip(names, found[0], strict=True)
    }
    maps = {name: q.mean(1) for name, q in maps.items()}
    figure = new_figure(9.4, 1.85 * IMAGES)
    grid = figure.subplots(IMAGES, 2 + len(names))
    places = torch.arange(1, 32, 3)
    for i, row in enumerate(grid):
        picture = pictures[i].permute(1, 2, 0)
        show_map(row[0], picture, CIFAR10_CLASSES[labels[i]])
        show_map(row[1], picture, "flow (u, v)" if i == 0 else "", alpha=0.45)
        u, v = (maps[name][i][places][:, places] for name in ("u", "v"))
        row[1].quiver(places, places, u, v, color=INK, angles="xy", pivot="mid", width=0.008)
    for column, name in enumerate(names, start=2):
        values = maps[name]
        dead = not values.any()  # a ReLU that no image passes
        for i, row in enumerate(grid):
            title = f"{name}: 0 everywhere" if dead else name
            top = 1.0 if dead else values.max()
            shown = show_map(row[column], values[i], title if i == 0 else "", cmap="magma", vmin=0, vmax=top)
        figure.colorbar(shown, ax=grid[:, column], orientation="horizontal", shrink=0.9).ax.tick_params(labelsize=7)
    return figure
