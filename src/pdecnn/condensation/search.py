"""Plans for a budget: what each choice costs in the runtime, what it harms, and the best combinations of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pdecnn.condensation.choose import Choice, best_combinations
from pdecnn.condensation.harm import Harms
from pdecnn.condensation.latency import LatencyTable, time_models, without_blocks
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.propose import parse_budget, predicted, with_layer_cost
from pdecnn.condensation.replacements import NOTHING, choice_of, chosen
from pdecnn.condensation.site import Run
from pdecnn.shared.progress import ProgressCallback

CHOICES = ("nothing", "depthwise", "separable", "pde K=1", "pde", "paper")
ATTEMPTS = 4
SLACK = 1.02  # a plan that measures this much above its budget is within the noise of the clock


@dataclass(frozen=True)
class Proposal:
    """A plan, the harm that its choices add up to if that is known, and the milliseconds predicted and measured."""

    plan: Plan
    harm: float | None
    predicted_ms: float | None = None
    ms: float | None = None

    def describe(self) -> str:
        """What becomes of each run, in one line."""
        parts = self.plan.narrower()
        for run in self.plan.runs:
            layer = "" if run.replacement == NOTHING or not run.condenses else f"+{choice_of(run)}"
            parts.append(f"{run.path} {len(run.units)}->{run.keep if run.condenses else len(run.units)}{layer}")
        times = {"measured": self.ms, "predicted": self.predicted_ms}
        ms = ", ".join(f"{value:.3f} ms {how}" for how, value in times.items() if value is not None)
        return ", ".join(parts) + (f"; {ms}" if ms else "")

    def row(self) -> dict[str, Any]:
        """The like as plain data."""
        kept = {r.path: {"keep": r.keep, "of": len(r.units), "choice": choice_of(r)} for r in self.plan.runs}
        inner = {one.last: {"keep": one.keep, "of": one.channels} for one in self.plan.inner}
        return {
            "width": self.plan.width, "inner": inner, "runs": kept, "harm": self.harm,
            "predicted_ms": self.predicted_ms, "ms": self.ms,
        }  # fmt: skip


def propose_plans(
    plan: Plan,
    model: nn.Module,
    x: Tensor,
    budget: Mapping[str, Any],
    harms: Harms,
    table: LatencyTable | None = None,
    *,
    measured: bool = True,
    count: int = 3,
    progress: ProgressCallback | None = None,
) -> list[Proposal]:
    """The best plans within a budget, that with the least harm first.

    A budget of milliseconds is met as measured, not as predicted: where a plan takes longer than allowed, the bound is
    drawn tighter and the choice made again.

    Args:
        plan: Every run with the fewest blocks that may stay; of a narrower model, if it has a `width`.
        model: The model before.
        x: What it is timed on.
        budget: As in `pdecnn.plan`.
        harms: What `measure_harms` found.
        table: What `measure_sites` found with all channels; needed for `latency_ms`.
        measured: Whether plans are timed; not if the table is of another device.
        count: How many plans.
        progress: As in `pdecnn.plan`.
    """
    if "latency_ms" in budget and table is None:
        raise ValueError("propose_plans: a budget of latency_ms needs a latency table.")
    before, narrowed = table.total(plan.before) if table else plan.before, plan.narrowed
    limits = parse_budget(budget, before)
    if narrowed and table:
        small = {"": plan.narrow(model), NOTHING: without_blocks(plan).apply(model)}
        times = time_models(small, x, table.runtime, table.threads, progress=progress)
        table = table.scaled(times[""]).anchored(plan.runs, times[NOTHING])
        narrowed = table.total(narrowed)
    total = narrowed or before
    choices = [_choices(run, harms.get(run.path, {}), table) for run in plan.runs]
    asked = limits.get("ms")
    found: list[Proposal] = []
    for _ in range(ATTEMPTS):
        combinations = best_combinations(choices, total, limits, count)
        if not combinations:
            break
        known = dataclasses.replace(plan, before=before, narrowed=narrowed)
        plans = [dataclasses.replace(known, runs=tuple(c.run for c in combo)) for combo in combinations]
        sums = [sum(c.harm for c in combo) for combo in combinations]
        found = [Proposal(p, h, predicted(total, p.runs).ms) for p, h in zip(plans, sums, strict=True)]
        if asked is None or table is None or not measured:
            return found
        nets = {i: p.apply(model) for i, p in enumerate(plans)}
        times = time_models(nets, x, table.runtime, table.threads, progress=progress)
        found = [dataclasses.replace(f, ms=times[i]) for i, f in enumerate(found)]
        within = [f for f in found if f.ms is not None and f.ms <= SLACK * asked]
        if within:
            return within
        limits["ms"] *= 0.98 * asked / min(times.values())
    least = predicted(total, [min(group, key=lambda c: c.run.after.ms or 0.0).run for group in choices])
    best = min((f.ms for f in found if f.ms is not None), default=None)
    shown = {"params": least.params, "macs": least.macs, "latency_ms": best or least.ms}
    words = ", ".join(f"{name}={value}" for name, value in budget.items())
    raise ValueError(
        f"condense: the budget {words} cannot be met: at least "
        + ", ".join(f"{name}={shown[name]:,.4g}" for name in budget if shown.get(name) is not None)
        + " is needed. Raise the budget, or allow more: keep=1, more replacements, a smaller model."
    )


def _choices(run: Run, harms: Mapping[str, Sequence[float]], table: LatencyTable | None) -> list[Choice]:
    """The run unchanged, and with every number of blocks and every replacement that was measured."""
    options = [(chosen(run, NOTHING, keep=len(run.units)), 0.0)]
    for name, values in harms.items():
        one = with_layer_cost(chosen(run, name))
        options += [(dataclasses.replace(one, keep=run.keep + i), value) for i, value in enumerate(values)]
    return [Choice(table.with_ms(r) if table else r, value) for r, value in options]
