"""The results of a sweep as one table: mean and spread over seeds of every combination of the other settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from pdecnn.shared.tables import make_table
from pdecnn.training.sweep import Point

SEED = "seed"


@dataclass(frozen=True)
class SweepRow:
    """The runs that differ by their seed alone.

    Attributes:
        params: Their settings, without the seed.
        accuracies: Of those that finished, in the order of the seeds.
        failed: How many ended in an error.
        left: How many are still to be made.
        seconds: Training time of all that finished.
        error: The last error.
    """

    params: dict[str, str]
    accuracies: tuple[float, ...]
    failed: int
    left: int
    seconds: float
    error: str = ""

    @property
    def mean(self) -> float | None:
        """The mean accuracy; None if no run finished."""
        return mean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; None of fewer than two."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        return {
            "params": self.params,
            "mean": self.mean,
            "std": self.spread,
            "accuracies": list(self.accuracies),
            "runs": len(self.accuracies),
            "failed": self.failed,
            "left": self.left,
            "seconds": round(self.seconds, 1),
            "error": self.error,
        }


def sweep_rows(points: Sequence[Point]) -> list[SweepRow]:
    """The points of a sweep, grouped by everything but the seed."""
    groups: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for point in points:
        key = tuple((name, value) for name, value in point.params.items() if name != SEED)
        groups.setdefault(key, []).append(point)
    return [
        SweepRow(
            dict(key),
            tuple(p.accuracy for p in group if p.accuracy is not None),
            sum(p.status == "failed" for p in group),
            sum(p.status in ("running", "waiting") for p in group),
            sum(p.seconds or 0.0 for p in group),
            next((p.error for p in reversed(group) if p.error), ""),
        )
        for key, group in groups.items()
    ]


def sweep_table(title: str, rows: Sequence[SweepRow]) -> Table:
    """The rows to look at."""
    keys = list(rows[0].params) if rows else []
    table = make_table(title, [*keys, "runs"], ["accuracy\nmean %", "\n+- std", "\nlowest", "\nhighest", "\nseconds"])
    for row in rows:
        a = row.accuracies
        parts = [f"{len(a)}", f"{row.failed} failed" * bool(row.failed), f"{row.left} left" * bool(row.left)]
        numbers = [row.mean, row.spread, min(a, default=None), max(a, default=None)]
        cells = ["" if x is None else f"{x:.2f}" for x in numbers]
        table.add_row(*row.params.values(), ", ".join(p for p in parts if p), *cells, f"{row.seconds:.0f}")
    return table
