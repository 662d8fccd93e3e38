"""Table 1 of the hyperbolic paper again: its twelve rows as printed, beside our counts and our own runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch

from pdecnn.analysis import latency
from pdecnn.analysis.cost import profile
from pdecnn.analysis.lowcost_tables import PaperTable
from pdecnn.analysis.own_runs import find_runs, read_results
from pdecnn.analysis.tables import ROUNDS
from pdecnn.shared.progress import ProgressCallback, begin, counted

DATASET = "100 classes of ImageNet"
CLASSES, SIDE = 100, 224
MERGED = "the cell of the activation is merged over the last four rows"


@dataclass(frozen=True)
class Row:
    """A row as printed, and the network we build for it."""

    name: str
    params: str
    accuracy: float
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
    _row("(4)", "5.70M", 81.88, "eq4", "softball", "ds", "one C for all derivatives; as written 8.95M. " + MERGED),
    _row("(5)", "4.26M", 78.64, "eq5", "softball", "ds", "without a norm at the end; with one 4.27M. " + MERGED),
    _row("(6)", "5.61M", 82.52, "eq6", "softball", "ds", MERGED),
    _row("(7) no ws x6", "13.0M", 84.96, "eq7_nows_x6", "softball", "ds", MERGED),
)
COLUMNS = ["name", "model", "activation", "params_published", "params", "macs", "accuracy_published"]


def build_tables(
    *,
    measure_latency: bool = False,
    results: str | Path | None = "results",
    progress: ProgressCallback | None = None,
) -> list[PaperTable]:
    """The table, for `pdecnn tables hyperbolic`.

    Our own runs count if their dataset is called `imagenet100` and their model has the row's name and activation.

    Example:
        >>> [row["params"] for row in build_tables(results=None)[0].rows][:3]
        [23712932, 4330132, 8608868]
    """
    own = read_results(results) if results is not None else {}
    timings = _latencies(progress) if measure_latency else {}
    rows = []
    for row in counted(ROWS, progress, "counting the hyperbolic networks"):
        runs = find_runs(own, row.model, "imagenet100", row.options)
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
                "latency_ms": timings.get(row.model),
                "remark": row.remark,
            }
        )
    trained = any(row["accuracy"] is not None for row in rows)
    columns = [*COLUMNS, *["accuracy", "epochs", "runs"] * trained, *["latency_ms"] * bool(timings), "remark"]
    title = "Table 1. Hyperbolic networks, 100 classes of ImageNet (single runs)"
    return [PaperTable(title, tuple(columns), tuple(rows))]


def _report(row: Row) -> Any:
    with torch.device("meta"):
        model = timm.create_model(row.model, num_classes=CLASSES, **row.options).eval()
        return profile(model, torch.zeros(1, 3, SIDE, SIDE))


def _latencies(progress: ProgressCallback | None) -> dict[str, float]:
    """Milliseconds for one image, all networks in interleaved rounds."""
    x = torch.randn(1, 3, SIDE, SIDE)
    nets = {row.model: timm.create_model(row.model, num_classes=CLASSES).eval() for row in ROWS}
    done = begin(progress, f"timing {len(nets)} networks", ROUNDS)

    def call(net: torch.nn.Module) -> Any:
        return lambda: net(x)

    with torch.no_grad():
        timings = latency.measure(
            {name: call(net) for name, net in nets.items()}, rounds=ROUNDS, max_seconds=60.0, done=done
        )
    return {name: 1e3 * t.median for name, t in timings.items()}
