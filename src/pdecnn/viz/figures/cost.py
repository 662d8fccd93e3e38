"""What a low-cost convolution costs against a full one, counted, as channels, image and stencil grow [RD, Table 1].

The implicit step is counted as it is computed up to about 80x80 pixels, by small matrix products, which grow faster
with the image than the `n log n` of an FFT.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pdecnn.analysis.cost import profile
from pdecnn.layers import (
    CirculantReactionDiffusion,
    ExplicitReactionDiffusion,
    ImplicitReactionDiffusion,
    LinearMixConv2d,
)
from pdecnn.viz.figures.canvas import INK, new_figure

LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "fully coupled": lambda c, m: nn.Conv2d(c, c, m, padding=m // 2, bias=False),
    "LinearMix": LinearMixConv2d,
    "explicit": lambda c, m: ExplicitReactionDiffusion(c, kernel_size=m),
    "implicit": lambda c, m: ImplicitReactionDiffusion(c, kernel_size=m),
    "circulant": lambda c, m: CirculantReactionDiffusion(c, kernel_size=m),
}
C, SIDE, M = 64, 32, 3
SWEEPS: dict[str, list[tuple[int, int, int]]] = {
    "channels": [(c, SIDE, M) for c in (16, 32, 64, 128, 256)],
    "side of the image": [(C, n, M) for n in (8, 16, 32, 64)],
    "size of the stencil": [(C, SIDE, m) for m in (3, 5, 7, 9)],
}


def macs(name: str, channels: int, side: int, size: int) -> int:
    """Multiply-adds of one layer for one image, its 1x1 convolution included."""
    with torch.device("meta"):
        layer = LAYERS[name](channels, size).eval()
        return profile(layer, torch.zeros(1, channels, side, side)).exact


def draw() -> Any:
    """Three panels, each with one size that varies; the others are 64 channels, 32x32 pixels, 3x3."""
    figure = new_figure(10.4, 3.7)
    panels = figure.subplots(1, len(SWEEPS))
    for axes, (title, sizes) in zip(panels, SWEEPS.items(), strict=True):
        varied = list(SWEEPS).index(title)
        x = [size[varied] for size in sizes]
        for name in LAYERS:
            axes.plot(x, [macs(name, *size) for size in sizes], marker="o", markersize=4, label=name)
        axes.set(xlabel=title, yscale="log", xscale="log")
        axes.set_xticks(x, [str(v) for v in x])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("multiply-adds of one layer, one image", color=INK)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure
