"""The two plots of a run. matplotlib is imported when they are drawn."""

import io
from pathlib import Path
from typing import Any

from torch import Tensor

from pdecnn.shared.extras import require
from pdecnn.shared.files import write_atomic


def draw_curve(path: Path, curve: list[dict[str, Any]]) -> None:
    """Loss and accuracy by epoch, as a PNG."""
    figure = require("matplotlib.figure", "viz").Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, what in ((left, "loss"), (right, "accuracy")):
        for split, style in (("train", "-"), ("eval", "o-")):
            points = [(row["epoch"], row[f"{split}_{what}"]) for row in curve if row.get(f"{split}_{what}") is not None]
            if points:
                axes.plot(*zip(*points, strict=True), style, label=split, markersize=3)
        axes.set_xlabel("epoch")
        axes.set_ylabel(what if what == "loss" else "accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend()
    _save(figure, path)


def draw_confusion(path: Path, confusion: Tensor, classes: tuple[str, ...]) -> None:
    """The confusion matrix with its counts, as a PNG."""
    size = (1.5 + 0.55 * len(classes), 1.2 + 0.5 * len(classes))
    figure = require("matplotlib.figure", "viz").Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    rates = confusion / confusion.sum(dim=1, keepdim=True).clamp_min(1)
    axes.imshow(rates.numpy(), cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(confusion.tolist()):
        for j, count in enumerate(row):
            if count:
                axes.text(
                    j, i, count, ha="center", va="center", size=7, color="white" if rates[i, j] > 0.5 else "black"
                )
    axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=120)
    write_atomic(path, png.getvalue())
