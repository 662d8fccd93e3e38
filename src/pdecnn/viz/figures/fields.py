"""The velocity and the diffusivities that a trained Global layer computes, over the image that they belong to."""

from typing import Any

import timm
import torch
from torch import Tensor

from pdecnn.layers import GlobalLayer
from pdecnn.training.datasets import CIFAR10_CLASSES, load_sample
from pdecnn.viz.figures.canvas import INK, new_figure, show_map

NAME = "cifar_resnet_tiny_global.cifar10"
IMAGES = 4
NAMES = ("u", "v", "D_x", "D_y")


def draw() -> Any:
    """Rows of images; a layer's mean velocity as arrows over them, and the means of u, v, D_x, D_y over the channels.

    It is the layer with the most flow along both axes: in the shipped net the first one moves along y alone.
    """
    model = timm.create_model(NAME, pretrained=True).eval()
    sample = load_sample("cifar10")
    pictures, labels = sample.x[:IMAGES], sample.y[:IMAGES].tolist()
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    found: list[dict[str, Tensor]] = []

    def look(layer: Any, args: Any) -> None:
        h, _ = layer.first_guess(args[0])
        fields = zip(NAMES, layer.coefficients(h), strict=True)
        found.append({name: torch.as_tensor(q).expand(h.shape).mean(1) for name, q in fields})

    hooks = [m.register_forward_pre_hook(look) for m in model.modules() if isinstance(m, GlobalLayer)]
    with torch.no_grad():
        model((pictures / 255 - mean) / std)
    for hook in hooks:
        hook.remove()
    maps = max(found, key=lambda fields: min(fields["u"].mean(), fields["v"].mean()))
    side = maps["u"].shape[-1]
    over = {"extent": (-0.5, side - 0.5, side - 0.5, -0.5)}  # the picture in the places of the map
    figure = new_figure(9.4, 1.85 * IMAGES)
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.985))  # with bars below, constrained layout cuts the titles above
    grid = figure.subplots(IMAGES, 2 + len(NAMES))
    places = torch.arange(side // 16, side, max(1, side // 10))
    for i, row in enumerate(grid):
        picture = pictures[i].permute(1, 2, 0)
        show_map(row[0], picture, CIFAR10_CLASSES[labels[i]])
        title = f"flow (u, v), {side}x{side}" if i == 0 else ""
        show_map(row[1], picture, title, alpha=0.45, **over)
        u, v = (maps[name][i][places][:, places] for name in ("u", "v"))
        row[1].quiver(places, places, u, v, color=INK, angles="xy", pivot="mid", width=0.008)
    for column, name in enumerate(NAMES, start=2):
        values = maps[name]
        dead = not values.any()  # a ReLU that no image passes
        for i, row in enumerate(grid):
            title = f"{name}: 0 everywhere" if dead else name
            top = 1.0 if dead else values.max()
            shown = show_map(row[column], values[i], title if i == 0 else "", cmap="magma", vmin=0, vmax=top)
        figure.colorbar(shown, ax=grid[:, column], orientation="horizontal", shrink=0.9).ax.tick_params(labelsize=7)
    return figure
