"""What all figures share: a figure without a window, its colours, and how it is saved."""

import io
from pathlib import Path
from typing import Any

from pdecnn.shared.extras import require
from pdecnn.shared.files import saving, write_atomic

INK, BLUE, GREY, RED = "#22303c", "#1f6f8b", "#9aa5b1", "#b5493a"


def new_figure(width: float, height: float) -> Any:
    """An empty figure of that many inches."""
    return require("matplotlib.figure", "viz").Figure(figsize=(width, height), layout="constrained")


def show_map(axes: Any, values: Any, title: str = "", **options: Any) -> Any:
    """A feature map as an image without ticks."""
    shown = axes.imshow(values, interpolation="nearest", **options)
    axes.set_xticks([])
    axes.set_yticks([])
    if title:
        axes.set_title(title, fontsize=9, color=INK)
    return shown


def save(figure: Any, path: Path) -> None:
    """Writes a PNG, all of it or nothing."""
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=130)
    write_atomic(path, png.getvalue())
