"""As fast as an accuracy allows: candidates of fewer and fewer milliseconds are distilled, by bisection."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from pdecnn.condensation.propose import BudgetError
from pdecnn.condensation.search import Proposal
from pdecnn.shared.files import remove_folder, write_atomic

SEARCH = "search.json"
RUNGS = (15, 20, 25, 30, 40, 50, 60, 70, 80, 90)  # per cent of the milliseconds before


def fastest(
    folder: Path,
    before: float,
    points: float,
    candidates: Callable[[Mapping[str, Any], Path], list[Proposal]],
    attempt: Callable[[str, Proposal, int], nn.Module],
    accuracy: Callable[[nn.Module], float],
    epochs: int,
    say: Callable[[str], None] = lambda text: None,
    *,
    higher_is_better: bool = True,
) -> Proposal:
    """The fastest plan that loses no more than some points after the whole distillation.

    The best candidate of a share of the milliseconds is distilled for all epochs; if it holds, fewer milliseconds are
    tried, else more. About three of ten shares are.

    Args:
        folder: Gets search.json: what was tried, and what that reached.
        before: The accuracy of the model before.
        points: How many of them may go, as in `parse_points`: -0.5 is half a point less, or more of an error.
        candidates: Gives the best plans within bounds, and keeps them in a file.
        attempt: Distils one in a folder of that name, for so many epochs.
        accuracy: Measures a model.
        epochs: How many.
        say: Called with a line about each trial.
        higher_is_better: Whether more of what `accuracy` gives is better.
    """
    sign = 1 if higher_is_better else -1
    least = before + sign * points
    rows: list[dict[str, Any]] = []
    best: Proposal | None = None
    low, high = 0, len(RUNGS)
    while low < high:
        middle = (low + high) // 2
        share = f"{RUNGS[middle]}%"
        try:
            tried = candidates({"latency_ms": share}, folder / f"trial-{RUNGS[middle]}.json")[0]
        except BudgetError:  # no plan is that fast
            low = middle + 1
            continue
        reached = accuracy(attempt(f"trial-{RUNGS[middle]}", tried, epochs))
        rows.append({**tried.row(), "latency": share, "accuracy": reached})
        say(f"{share} of the milliseconds: {reached:.2f}, {least:.2f} asked; {tried.describe()}")
        best, low, high = (tried, low, middle) if sign * (reached - least) >= 0 else (best, middle + 1, high)
    write_atomic(folder / SEARCH, json.dumps({"least_accuracy": least, "tried": rows}, indent=2) + "\n")
    remove_trials(folder)
    if best is None:
        most = max((row["accuracy"] for row in rows), key=lambda value: sign * value, default=float("nan"))
        raise ValueError(
            f"condense: no plan that was tried reaches {least:.2f}; the best has {most:.2f} after {epochs} epoch(s). "
            "Allow more points, or more epochs."
        )
    return best


def remove_trials(folder: Path) -> None:
    """Removes what was kept so that a killed search could go on."""
    for path in folder.glob("trial-*"):
        remove_folder(path) if path.is_dir() else path.unlink()
