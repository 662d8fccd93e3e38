"""Plots of a condensed model, as SVG text that a page can hold."""

import io
from collections.abc import Callable
from textwrap import fill
from typing import Any

from pdecnn.condensation.compare import ROWS
from pdecnn.condensation.job import JobResult
from pdecnn.shared.extras import require

BEFORE, AFTER, INK = "#9aa5b1", "#1f6f8b", "#22303c"


def draw(paint: Callable[[Any], None], width: float = 5.6, height: float = 3.2) -> str:
    """The SVG of one pair of axes that `paint` fills."""
    style = {"font.size": 9, "axes.edgecolor": INK, "svg.fonttype": "none", "svg.hashsalt": "pdecnn"}
    with require("matplotlib", "viz").rc_context(style):
        figure = require("matplotlib.figure", "viz").Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        paint(axes)
        axes.spines[["top", "right"]].set_visible(False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def cost_bars(result: JobResult) -> str:
    """What is left of each cost, in per cent of the model before."""
    costs = {label: (getattr(result.before, n), getattr(result.after, n)) for n, label, _ in ROWS if n != "accuracy"}
    costs = {label: pair for label, pair in costs.items() if None not in pair}
    left = {label: 100 * a / max(b, 1e-9) for label, (b, a) in costs.items()}
    times = {f"latency, batch {n}, ms": result.speedups.get(f"batch_{n}") for n in (1, 64)}
    if result.onnx:
        times["ONNX Runtime, batch 1, ms"] = result.onnx.speedups["batch_1"]
        times["ONNX Runtime, fused, batch 1, ms"] = result.onnx.speedups.get("fused_batch_1")
    left |= {label: 100 / ratio for label, ratio in times.items() if ratio}  # as the table has it
    labels, shares = list(left), list(left.values())

    def paint(axes: Any) -> None:
        axes.barh(labels, [100] * len(labels), color=BEFORE, height=0.62, label="before")
        bars = axes.barh(labels, shares, color=AFTER, height=0.62, label="after")
        for bar, share in zip(bars, shares, strict=True):  # beside both bars
            middle = bar.get_y() + bar.get_height() / 2
            axes.annotate(f"{share:.0f} %", (max(share, 100), middle), (4, 0), textcoords="offset points", va="center")
        axes.axvline(100, color=INK, linewidth=0.8, linestyle=":")
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * max(100, *shares))
        axes.set_xlabel("per cent of the model before")

    return draw(paint)


def accuracy_steps(result: JobResult) -> str:
    """Accuracy of the teacher and of the student after each step of the way."""
    names, values = list(result.accuracies), list(result.accuracies.values())

    def paint(axes: Any) -> None:
        bars = axes.bar([fill(n, 12) for n in names], values, color=[BEFORE, *[AFTER] * (len(names) - 1)])
        axes.bar_label(bars, [f"{v:.3g}" for v in values], padding=2, color=INK)
        axes.axhline(values[0], color=INK, linewidth=0.8, linestyle=":")
        axes.set_ylim(*((None, None) if result.metric else (0, 108)))
        axes.set_ylabel(result.metric or "test accuracy, %")

    return draw(paint)


def learning_curve(result: JobResult) -> str:
    """Accuracy of the student, epoch by epoch."""
    epochs = [row["epoch"] for row in result.history]
    train = [row["train_accuracy"] for row in result.history]
    test = [row.get("eval_accuracy") for row in result.history]

    def paint(axes: Any) -> None:
        if any(value is not None for value in train):
            axes.plot(epochs, train, color=BEFORE, marker="o", markersize=3, label="training images (augmented)")
        if any(value is not None for value in test):
            axes.plot(epochs, test, color=AFTER, marker="o", markersize=3, label="test images")
        if "teacher" in result.accuracies:
            label = "teacher, test images"
            axes.axhline(result.accuracies["teacher"], color=INK, linewidth=0.8, linestyle=":", label=label)
        axes.set_xticks(epochs[:: 1 + (len(epochs) - 1) // 12])
        axes.set_xlabel("epoch of distillation")
        axes.set_ylabel(result.metric or "accuracy, %")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)

    return draw(paint)


def fit_bars(result: JobResult) -> str:
    """How much of the removed blocks' output each Global layer explains, before any label was seen."""
    sites = [f.site for f in result.fitted]

    def paint(axes: Any) -> None:
        place = range(len(sites))
        series = (("blocks left out", "skipped", BEFORE), ("Global layer, fitted", "after", AFTER))
        for shift, (label, name, color) in zip((-0.19, 0.19), series, strict=True):
            heights = [min(getattr(f, name), 2.0) for f in result.fitted]
            axes.bar([p + shift for p in place], heights, 0.36, color=color, label=label)
        axes.set_xticks(list(place), sites)
        axes.set_ylabel("unexplained variance")
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)

    return draw(paint)
