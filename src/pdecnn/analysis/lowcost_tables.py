"""The tables of the low-cost paper again: complexity with counted numbers, and Table 2 beside our own runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import timm
import torch
from rich.console import Group
from torch import nn

from pdecnn.analysis import latency
from pdecnn.analysis.cost import profile
from pdecnn.analysis.own_runs import OwnRuns, find_runs, read_results
from pdecnn.analysis.tables import ROUNDS, Notes
from pdecnn.layers import (
    CirculantReactionDiffusion,
    ExplicitReactionDiffusion,
    ImplicitReactionDiffusion,
    LinearMixConv2d,
)
from pdecnn.shared.progress import ProgressCallback, begin, counted
from pdecnn.shared.tables import make_table, short

# step -> accuracies in per cent as printed, by (dataset, network)
COLUMNS = (
    ("CIFAR-10", "a"),
    ("CIFAR-10", "b"),
    ("CIFAR-100", "b"),
    ("CIFAR-100", "c"),
    ("STL-10", "a"),
    ("STL-10", "b"),
)
SIDES = {"STL-10": 96}  # pixels of its images; 32 of the others
UNPRINTED = ("CIFAR-10", "c")  # of this net the paper has CIFAR-100 alone: shown where we trained it
ACCURACIES = {
    "resnet": (93.1, 93.0, 71.7, 69.9, 74.9, 75.3),
    "mobilenet": (89.5, 91.6, 65.6, 61.9, 74.9, 77.2),
    "linearmix": (91.3, 92.1, 67.9, 69.2, 75.6, 75.6),
    "explicit": (88.9, 90.6, 66.1, 65.2, 74.6, 75.9),
    "implicit": (88.7, 90.3, 64.6, 64.9, 73.8, 73.4),
    "circulant": (86.0, 88.0, 60.2, 60.0, 69.6, 70.5),
}
# parameters as printed, by (classes, network)
_REACTION_DIFFUSION = {(10, "a"): "101K", (10, "b"): "216K", (100, "b"): "250K", (100, "c"): "423K"}
PARAMS = {
    "resnet": {(10, "a"): "1.5M", (10, "b"): "3.5M", (100, "b"): "3.4M", (100, "c"): "6.3M"},
    "mobilenet": {(10, "a"): "101K", (10, "b"): "216K", (100, "b"): "251K", (100, "c"): "423K"},
    "linearmix": {(10, "a"): "195K", (10, "b"): "422K", (100, "b"): "456K", (100, "c"): "789K"},
    "explicit": _REACTION_DIFFUSION,
    "implicit": _REACTION_DIFFUSION,
    "circulant": _REACTION_DIFFUSION,
}
# layer -> weights, cost and our remark; as printed, for n pixels, c channels and an m x m stencil
COMPLEXITY = {
    "fully coupled": ("m^2 c^2", "n m^2 c^2", ""),
    "explicit": ("m^2 c + c^2", "n (m^2 c + c^2)", ""),
    "implicit": ("m^2 c + c^2", "n (c log n + c^2)", ""),
    "circulant": ("m^2 c + c^2", "(n c) log(c n)", "printed without the n c^2 of M, which we count"),
    "linearmix": (None, None, "not in the paper's table"),
}
BUDGET = (1, 10_000)  # epochs and images of the recipe quick/cifar10-lowcost-budget
UNSTABLE = (
    "it does not train at the published rate: its stencils soon grow past the bound of the explicit step, and the "
    "train loss stays above ln 10, that of guessing"
)
TEXTS = ("name", "dataset", "model", "size", "activation")
KEYS = (
    "table",
    "name",
    "dataset",
    "model",
    "size",
    "params_published",
    "params",
    "macs_published",
    "macs",
    "accuracy_published",
    "accuracy",
    "runs",
    "epochs",
    "trained",
    "latency_ms",
    "remark",
)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: a title, the columns to print, and one dict per row. Notes under it have the remarks of
    the rows, and how our own networks were trained."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return list(self.rows)

    def __rich__(self) -> Group:
        texts = [c for c in self.columns if c in TEXTS]
        numbers = [c for c in self.columns if c not in TEXTS]
        table = make_table(self.title, texts, [c.replace("_", "\n") for c in numbers])
        notes = Notes()
        for row in self.rows:
            table.add_row(*(notes.mark(_text(row[c]), why(row, c)) for c in (*texts, *numbers)))
        return Group(table, *notes.lines())


def why(row: Mapping[str, Any], column: str) -> str:
    """What the note of a cell says; empty if it has none."""
    return row.get({"name": "remark", "accuracy": "trained"}.get(column, ""), "") or ""


def complexity_table(channels: int = 64, side: int = 32, kernel_size: int = 3) -> PaperTable:
    """Table 1 with weights and multiply-adds counted for one size, M of the steps included.

    Example:
        >>> [(row["name"], row["params"]) for row in complexity_table(channels=8, side=4).rows][:2]
        [('fully coupled', 576), ('explicit', 136)]
    """
    m = kernel_size
    layers: dict[str, nn.Module] = {
        "fully coupled": nn.Conv2d(channels, channels, m, padding=m // 2, bias=False),
        "explicit": ExplicitReactionDiffusion(channels, kernel_size=m),
        "implicit": ImplicitReactionDiffusion(channels, kernel_size=m),
        "circulant": CirculantReactionDiffusion(channels, kernel_size=m),
        "linearmix": LinearMixConv2d(channels, m),
    }
    size = f"c={channels}, {side}x{side}, m={m}"
    rows = []
    for name, layer in layers.items():
        weights, cost, remark = COMPLEXITY[name]
        report = profile(layer.eval(), torch.zeros(1, channels, side, side))
        rows.append(
            _row(
                1,
                name,
                size=size,
                params_published=weights,
                params=report.params,
                macs_published=cost,
                macs=report.exact,
                remark=remark or None,
            )
        )
    columns = ("name", "params_published", "params", "macs_published", "macs")
    title = f"Table 1. Complexity: as printed, O(.), and counted for one image, {size}"
    return PaperTable(title, columns, tuple(rows))


def accuracy_table(
    *,
    measure_latency: bool = False,
    results: str | Path | None = "results",
    progress: ProgressCallback | None = None,
) -> PaperTable:
    """Table 2: parameters and accuracy as printed, beside our counts, and our own runs where there are some."""
    own = read_results(results) if results is not None else {}
    timings = _latencies(progress) if measure_latency else {}
    rows = []
    for step, accuracies in counted(ACCURACIES.items(), progress, "counting the low-cost networks"):
        printed_for: dict[tuple[str, str], float | None] = {
            **dict(zip(COLUMNS, accuracies, strict=True)),
            UNPRINTED: None,
        }
        for (dataset, size), printed in sorted(printed_for.items(), key=lambda item: item[0][0] != UNPRINTED[0]):
            model, classes = f"lowcost_{step}_{size}", 100 if dataset == "CIFAR-100" else 10
            runs = find_runs(own, model, dataset)
            if printed is None and runs.mean is None:
                continue
            side = SIDES.get(dataset, 32)
            params, macs = _count(model, classes, side)
            rows.append(
                _row(
                    2,
                    step,
                    dataset=dataset,
                    model=model,
                    size=size.upper(),
                    params_published=PARAMS[step].get((classes, size)),
                    params=params,
                    macs=macs,
                    accuracy_published=printed,
                    accuracy=runs.mean,
                    runs=len(runs.accuracies),
                    epochs=runs.epochs,
                    trained=_trained(step, runs, find_runs(own, model, dataset, {"guard": True})),
                    latency_ms=timings.get(f"{model} {side}"),
                    remark=None if printed is not None else "not in the paper's table",
                )
            )
    columns = ["name", "dataset", "size", "params_published", "params", "macs", "accuracy_published"]
    trained = any(row["accuracy"] is not None for row in rows)
    columns += ["accuracy"] * trained + ["latency_ms"] * bool(timings)
    return PaperTable("Table 2. Low-cost networks", tuple(columns), tuple(rows))


def _trained(step: str, runs: OwnRuns, guarded: OwnRuns) -> str:
    """How our networks of a step were trained, and why those that did not learn did not."""
    short = (runs.training.epochs, runs.training.images) == BUDGET
    with_guard = [f"with guard=True {guarded.in_words()}"] if guarded.accuracies else []
    return "; ".join([runs.note(), *[UNSTABLE] * (step == "circulant" and short), *with_guard])


def build_tables(
    *,
    measure_latency: bool = False,
    results: str | Path | None = "results",
    progress: ProgressCallback | None = None,
) -> Sequence[PaperTable]:
    """All tables of the low-cost paper, for `pdecnn tables lowcost`."""
    return [complexity_table(), accuracy_table(measure_latency=measure_latency, results=results, progress=progress)]


@cache
def _count(model: str, classes: int, side: int) -> tuple[int, int]:
    with torch.device("meta"):
        report = profile(timm.create_model(model, num_classes=classes).eval(), torch.randn(1, 3, side, side))
    return report.params, report.exact


def _latencies(progress: ProgressCallback | None) -> dict[str, float]:
    """Milliseconds for one image of each size that a network has a row of, all in interleaved rounds."""
    sizes = {(f"lowcost_{step}_{size}", SIDES.get(data, 32)) for step in ACCURACIES for data, size in COLUMNS}
    nets = {name: timm.create_model(name).eval() for name, _ in sorted(sizes)}
    calls = {f"{name} {side}": partial(nets[name], torch.randn(1, 3, side, side)) for name, side in sorted(sizes)}
    done = begin(progress, f"timing {len(calls)} networks", ROUNDS)
    with torch.no_grad():
        timings = latency.measure(calls, rounds=ROUNDS, max_seconds=60.0, done=done)
    return {name: 1e3 * t.median for name, t in timings.items()}


def _row(table: int, name: str, **values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(KEYS), "table": f"lowcost {table}", "name": name, **values}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return short(value) if isinstance(value, int) else f"{value:.2f}" if isinstance(value, float) else str(value)
