"""The plot of a sweep: accuracy against the first setting that varies, one line for each combination of the others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pdecnn.analysis.sweep_table import SweepRow
from pdecnn.viz.figures.canvas import INK, new_figure, save


def draw_sweep(rows: Sequence[SweepRow], path: Path) -> None:
    """Mean, spread and every run, as a PNG; a setting of words stands in the order given, numbers by their size."""
    done = [row for row in rows if row.accuracies]
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    key, *others = list(rows[0].params) or [""]
    values = list(dict.fromkeys(row.params.get(key, "all runs") for row in done))
    numeric = all(_is_number(value) for value in values)
    lines: dict[str, list[SweepRow]] = {}
    for row in done:
        lines.setdefault(", ".join(f"{k} = {row.params[k]}" for k in others), []).append(row)
    for name, line in lines.items():
        x: list[Any] = [float(r.params[key]) if numeric else values.index(r.params.get(key, "all runs")) for r in line]
        y, spread = [r.mean for r in line], [r.spread or 0.0 for r in line]
        style = "-" if numeric else ""
        drawn = axes.errorbar(x, y, spread, marker="o", markersize=4, capsize=3, linestyle=style, label=name or None)
        for at, row in zip(x, line, strict=True):
            axes.plot([at] * len(row.accuracies), row.accuracies, ".", color=drawn[0].get_color(), alpha=0.4)
    if numeric and len(values) > 2 and min(map(float, values)) > 0 and _ratio(values) >= 10:
        axes.set_xscale("log")
    long = not numeric and max(map(len, values)) > 8
    turned = {"rotation": 30, "ha": "right"} if long else {}
    axes.set_xticks([float(v) for v in values] if numeric else range(len(values)), values, **turned)
    axes.minorticks_off()
    axes.set_xlabel(key)
    axes.set_ylabel("accuracy, %")
    axes.grid(alpha=0.3)
    axes.tick_params(colors=INK)
    if len(lines) > 1:
        axes.legend(frameon=False)
    save(figure, path)


def _ratio(values: list[str]) -> float:
    numbers = [float(v) for v in values]
    return max(numbers) / min(numbers)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
