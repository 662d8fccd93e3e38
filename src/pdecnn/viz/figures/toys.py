"""What the three toys of 524 parameters see: the maps before and after their block, for a few digits [KS22, Fig. 2]."""

from typing import Any

import timm
import torch

from pdecnn.training.datasets import load_sample
from pdecnn.viz.figures.canvas import new_figure, show_map

TOYS = {"conv": "two convolutions", "residual": "a residual block", "global": "a PDE"}
DIGITS = (3, 5, 8, 2)


def draw() -> Any:
    """Rows of digits, 3 and 5 first; for each toy z and the block's output, with the class that it answers."""
    sample = load_sample("mnist")
    chosen = torch.stack([sample.x[sample.y == digit][0] for digit in DIGITS])
    figure = new_figure(9.4, 1.5 * len(DIGITS) + 0.5)
    grid = figure.subplots(len(DIGITS), 1 + 2 * len(TOYS))
    for i, image in enumerate(chosen):
        show_map(grid[i][0], image[0], "digit" if i == 0 else "", cmap="gray")
    for t, (toy, what) in enumerate(TOYS.items()):
        model = timm.create_model(f"mnist_toy_{toy}.mnist", pretrained=True).eval()
        mean, std = model.pretrained_cfg["mean"][0], model.pretrained_cfg["std"][0]
        with torch.no_grad():
            x = (chosen / 255 - mean) / std
            (z, out), answers = model.forward_intermediates(x, [0, 1], intermediates_only=True), model(x).argmax(1)
        for i in range(len(DIGITS)):
            before, after = grid[i][1 + 2 * t], grid[i][2 + 2 * t]
            show_map(before, z[i, 0], "z" if i == 0 else "", cmap="viridis")
            show_map(after, out[i, 0], f"after {what}" if i == 0 else "", cmap="viridis")
            after.set_xlabel(f"takes it for {answers[i].item()}", fontsize=8)
    return figure
