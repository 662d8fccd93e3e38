"""The best combination of choices within a budget, exactly: a small integer programme."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from pdecnn.condensation.site import Cost, Run


class Option(Protocol):
    """One of several things that a part of a model may become."""

    @property
    def harm(self) -> float:
        """How much it harms the answers."""

    @property
    def saved(self) -> Cost:
        """What it saves."""


Part = TypeVar("Part", bound=Option)


@dataclass(frozen=True)
class Choice:
    """One thing that a run may become, and how much that harms the answers."""

    run: Run
    harm: float

    @property
    def saved(self) -> Cost:
        """What it saves."""
        return self.run.before - self.run.after


def best_combinations(
    choices: Sequence[Sequence[Part]],
    total: Cost,
    limits: Mapping[str, float],
    count: int = 1,
    apart: Sequence[Sequence[int]] = (),
) -> list[list[Part]]:
    """The combinations of one choice for each run with the least harm in all, the best first.

    Args:
        choices: Those of each run, or other part of the model.
        total: The cost of the model before.
        limits: Upper bounds of `params`, `macs` or `ms` of the whole.
        count: How many; fewer are returned if no more fit.
        apart: Sets of which no two go together, as numbers of the choices if all are counted through.

    Example:
        >>> from dataclasses import replace
        >>> from pdecnn.condensation.site import Cost, Run
        >>> run = Run("chain", "", (("0",), ("1",)), 1, "Block", (1, 2, 2), costs=(Cost(ms=2.0), Cost(ms=2.0)))
        >>> few, all_ = Choice(run, 1.0), Choice(replace(run, keep=2), 0.0)
        >>> [c[0].harm for c in best_combinations([[few, all_]], Cost(ms=5.0), {"ms": 4.0}, count=2)]
        [1.0]
    """
    flat = [c for group in choices for c in group]
    if not flat:  # there is nothing to choose, which the solver does not take
        return [[]] if all(_number(total, name) <= limit for name, limit in limits.items()) else []
    harm = np.array([c.harm for c in flat])
    harm /= harm.max(initial=0.0) or 1.0  # what the solver takes for equal is an absolute number
    saved = {name: np.array([_number(c.saved, name) for c in flat]) for name in limits}
    one_each = np.zeros((len(choices), len(flat)))
    start = 0
    for i, group in enumerate(choices):
        one_each[i, start : start + len(group)] = 1
        start += len(group)
    rules = [LinearConstraint(one_each, 1, 1)]
    for name, limit in limits.items():
        least = _number(total, name) - limit
        rules.append(LinearConstraint(saved[name][None] / max(abs(least), 1.0), least / max(abs(least), 1.0), np.inf))
    if apart:
        one_of = np.zeros((len(apart), len(flat)))
        for i, numbers in enumerate(apart):
            one_of[i, list(numbers)] = 1
        rules.append(LinearConstraint(one_of, -np.inf, 1))
    found: list[list[Part]] = []
    while len(found) < count:
        answer = milp(
            harm, constraints=rules, integrality=np.ones(len(flat), dtype=int), bounds=Bounds(0, 1),
            options={"mip_rel_gap": 0.0},
        )  # fmt: skip
        if not answer.success:
            break
        taken = np.round(answer.x)
        found.append([c for c, t in zip(flat, taken, strict=True) if t])
        rules.append(LinearConstraint(taken[None], -np.inf, len(choices) - 1))  # not the same again
    return found


def _number(cost: Cost, name: str) -> float:
    return float(getattr(cost, name) or 0.0)
