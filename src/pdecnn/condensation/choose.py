"""The best combination of choices within a budget, exactly: a small integer programme."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from pdecnn.condensation.site import Cost, Run


@dataclass(frozen=True)
class Choice:
    """One thing that a run may become, and how much that harms the answers."""

    run: Run
    harm: float


def best_combinations(
    choices: Sequence[Sequence[Choice]], total: Cost, limits: Mapping[str, float], count: int = 1
) -> list[list[Choice]]:
    """The combinations of one choice for each run with the least harm in all, the best first.

    Args:
        choices: Those of each run.
        total: The cost of the model before.
        limits: Upper bounds of `params`, `macs` or `ms` of the whole.
        count: How many; fewer are returned if no more fit.

    Example:
        >>> from dataclasses import replace
        >>> from pdecnn.condensation.site import Cost, Run
        >>> run = Run("chain", "", (("0",), ("1",)), 1, "Block", (1, 2, 2), costs=(Cost(ms=2.0), Cost(ms=2.0)))
        >>> few, all_ = Choice(run, 1.0), Choice(replace(run, keep=2), 0.0)
        >>> [c[0].harm for c in best_combinations([[few, all_]], Cost(ms=5.0), {"ms": 4.0}, count=2)]
        [1.0]
    """
    flat = [c for group in choices for c in group]
    harm = np.array([c.harm for c in flat])
    saved = {name: np.array([_number(c.run.before - c.run.after, name) for c in flat]) for name in limits}
    one_each = np.zeros((len(choices), len(flat)))
    start = 0
    for i, group in enumerate(choices):
        one_each[i, start : start + len(group)] = 1
        start += len(group)
    rules = [LinearConstraint(one_each, 1, 1)]
    for name, limit in limits.items():
        least = _number(total, name) - limit
        rules.append(LinearConstraint(saved[name][None] / max(abs(least), 1.0), least / max(abs(least), 1.0), np.inf))
    found: list[list[Choice]] = []
    while len(found) < count:
        answer = milp(harm, constraints=rules, integrality=np.ones(len(flat), dtype=int), bounds=Bounds(0, 1))
        if not answer.success:
            break
        taken = np.round(answer.x)
        found.append([c for c, t in zip(flat, taken, strict=True) if t])
        rules.append(LinearConstraint(taken[None], -np.inf, len(choices) - 1))  # not the same again
    return found


def _number(cost: Cost, name: str) -> float:
    return float(getattr(cost, name) or 0.0)
