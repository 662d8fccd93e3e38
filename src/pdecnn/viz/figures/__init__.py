"""The figures of the papers and of trained nets, one file each; `pdecnn figure NAME` draws them."""

from importlib import import_module
from pathlib import Path
from typing import Any

from pdecnn.shared.names import close_to
from pdecnn.viz.figures.canvas import format_of, save

FIGURES = {
    "toys": "feature maps of the three toys, as Figure 2 of the Global paper",
    "receptive-field": "pixels that reach one pixel in K steps, in theory and by gradients of trained layers",
    "stability": "the region in which no wave grows, and the Courant numbers of trained layers on it",
    "fields": "velocity and diffusivity of a trained layer over images",
    "cost": "multiply-adds of the low-cost convolutions against their sizes",
    "steps": "accuracy against K: printed, our own runs, and trained nets with other K",
}


def draw_figure(name: str, path: Path, **options: Any) -> Path:
    """Draws a figure by its name and saves it as a PNG, PDF or SVG, by the ending; `options` are of its `draw`."""
    if name not in FIGURES:
        raise ValueError(f"figure: no figure named {name!r}.{close_to(name, FIGURES)} There are {', '.join(FIGURES)}.")
    format_of(path)
    figure = import_module(f"pdecnn.viz.figures.{name.replace('-', '_')}").draw(**options)
    save(figure, path)
    return path
