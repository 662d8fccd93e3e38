"""Table 1 of the hyperbolic paper again: its twelve rows as printed, beside our counts and our own runs.

A second table has the same rows, and a few more, as small nets that were trained here alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import timm
import torch

from pdecnn.analysis import latency
from pdecnn.analysis.cost import profile
from pdecnn.analysis.lowcost_tables import PaperTable
from pdecnn.analysis.own_runs import Found, find_runs, read_results
from pdecnn.analysis.tables import ROUNDS
from pdecnn.shared.progress import ProgressCallback, begin, counted

DATASET, OWN_DATASET = "100 classes of ImageNet", "imagenet100"
CLASSES, SIDE = 100, 224
MERGED = "the cell of the activation is merged over the last four rows"


@dataclass(frozen=True)
class Row:
    """A row as printed, and the network we build for it."""

    name: str
    params: str
    accuracy: float | None
    model: str
    activation: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""


def _row(name: str, params: str, accuracy: float, model: str, activation: str, place: str, remark: str = "") -> Row:
    options = {"activation": activation, "activation_at": place}
    return Row(name, params, accuracy, f"hyperbolic50_{model}", f"{activation}@{place}", options, remark)


ROWS = (
    Row("ResNet50", "23.7M", 84.52, "resnet50"),
    Row("MobileNetV3-large", "4.33M", 82.91, "mobilenetv3_large_100"),
    _row("(3)", "8.61M", 82.06, "eq3", "relu", "all"),
    _row("(3)", "8.61M", 82.34, "eq3", "hardtanh", "ds"),
    _row("(3)", "8.61M", 83.50, "eq3", "hardball", "ds"),
    _row("(3)", "8.61M", 83.66, "eq3", "softball", "ds"),
    _row("(3) no ws", "8.73M", 84.24, "eq3_nows", "softball", "ds"),
    _row("(3) no ws x6", "13.0M", 84.58, "eq3_nows_x6", "softball", "ds"),
    _row("(4)", "5.70M", 81.88, "eq4", "softball", "ds", "one C for all derivatives; as written 8.95M; " + MERGED),
    _row("(5)", "4.26M", 78.64, "eq5", "softball", "ds", "without a norm at the end; with one 4.27M; " + MERGED),
    _row("(6)", "5.61M", 82.52, "eq6", "softball", "ds", MERGED),
    _row("(7) no ws x6", "13.0M", 84.96, "eq7_nows_x6", "softball", "ds", MERGED),
)
COLUMNS = ["name", "activation", "params_published", "params", "macs", "accuracy_published"]

SMALL, SMALL_DATA, SMALL_SHAPE = "fashion_hyperbolic_cp", "fashion-mini", (1, 1, 28, 28)


def _small(row: Row) -> Row:
    """The row as a small net: its equation, stencils and activation as options."""
    _, equation, *kinds = row.model.split("_")
    options = {"equation": equation, "f": 6 if "x6" in kinds else 4, "shared": "nows" not in kinds, **row.options}
    return Row(row.name, "", None, SMALL, row.activation, options)


def _as_written(row: Row) -> Row:
    return replace(row, name=f"{row.name} as written", options={**row.options, "reading": "text"})


_FACTORED = tuple(_small(row) for row in ROWS if row.model.startswith("hyperbolic50"))
_TENSOR = {"equation": "tensor", "activation": "relu", "activation_at": "all"}
ABLATION = (
    *_FACTORED,
    *(_as_written(row) for row in _FACTORED if row.name in ("(4)", "(5)")),
    Row("CP", "", None, SMALL, "hardball@ds"),
    Row("(2), the whole tensor", "", None, SMALL, "relu@all", _TENSOR),
    Row("(2), block-diagonal", "", None, SMALL, "relu@all", {**_TENSOR, "groups": 2}),
)


def build_tables(
    *,
    measure_latency: bool = False,
    results: str | Path | None = "results",
    progress: ProgressCallback | None = None,
) -> list[PaperTable]:
    """The table, for `pdecnn tables hyperbolic`.

    Our own runs count if their dataset is called `imagenet100`, or is a folder of 100 classes at 224 pixels, and their
    model has the row's name and activation.

    Example:
        >>> [row["params"] for row in build_tables(results=None)[0].rows][:3]
        [23712932, 4330132, 8608868]
    """
    own = read_results(results) if results is not None else {}
    timings = _latencies(progress) if measure_latency else {}
    rows = []
    for row in counted(ROWS, progress, "counting the hyperbolic networks"):
        runs = find_runs(own, row.model, OWN_DATASET, row.options)
        report = _report(row)
        rows.append(
            {
                "table": "hyperbolic 1",
                "name": row.name,
                "dataset": DATASET,
                "model": row.model,
                "activation": row.activation,
                "params_published": row.params,
                "params": report.params,
                "macs": report.exact,
                "accuracy_published": row.accuracy,
                "accuracy": runs.mean,
                "runs": len(runs.accuracies),
                "epochs": runs.epochs,
                "trained": runs.note(),
                "latency_ms": timings.get(_named(row)),
                "remark": row.remark,
            }
        )
    trained = any(row["accuracy"] is not None for row in rows)
    columns = [*COLUMNS, *["accuracy"] * trained, *["latency_ms"] * bool(timings)]
    title = "Table 1. Hyperbolic networks, 100 classes of ImageNet (single runs)"
    return [PaperTable(title, tuple(columns), tuple(rows)), *_ablation(own)]


def _ablation(own: Found) -> list[PaperTable]:
    """The rows as small nets that were trained here; no table if none was."""
    rows = []
    for row in ABLATION:
        runs = find_runs(own, row.model, SMALL_DATA, row.options)
        report = _report(row)
        rows.append(
            {
                "table": "hyperbolic, small",
                "name": row.name,
                "dataset": SMALL_DATA,
                "model": row.model,
                "activation": row.activation,
                "params": report.params,
                "macs": report.exact,
                "accuracy": runs.mean,
                "runs": len(runs.accuracies),
                "epochs": runs.epochs,
                "trained": runs.note(),
            }
        )
    if all(row["accuracy"] is None for row in rows):
        return []
    title = "Ours: its rows as small nets, trained alike for a short time on the 5,000 images that ship"
    columns = ("name", "activation", "params", "macs", "accuracy")
    return [PaperTable(title, columns, tuple(rows))]


def _report(row: Row) -> Any:
    small = row.model == SMALL
    with torch.device("meta"):
        model = timm.create_model(row.model, num_classes=10 if small else CLASSES, **row.options).eval()
        return profile(model, torch.zeros(SMALL_SHAPE if small else (1, 3, SIDE, SIDE)))


def _named(row: Row) -> str:
    return f"{row.name} {row.activation}"


def _latencies(progress: ProgressCallback | None) -> dict[str, float]:
    """Milliseconds for one image, all networks in interleaved rounds."""
    x = torch.randn(1, 3, SIDE, SIDE)
    nets = {_named(row): timm.create_model(row.model, num_classes=CLASSES, **row.options).eval() for row in ROWS}
    done = begin(progress, f"timing {len(nets)} networks", ROUNDS)

    def call(net: torch.nn.Module) -> Any:
        return lambda: net(x)

    with torch.no_grad():
        timings = latency.measure(
            {name: call(net) for name, net in nets.items()}, rounds=ROUNDS, max_seconds=60.0, done=done
        )
    return {name: 1e3 * t.median for name, t in timings.items()}
