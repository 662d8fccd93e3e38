"""Plans for a budget: what each choice costs in the runtime, what it harms, and the best combinations of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pdecnn.condensation.choose import Choice, best_combinations
from pdecnn.condensation.harm import Harms
from pdecnn.condensation.inner import cut_inner
from pdecnn.condensation.latency import LatencyTable, time_models, without_blocks
from pdecnn.condensation.places import Fewer, Place, choices_of, unit_of
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.propose import (
    BUDGETS,
    BudgetError,
    module_costs,
    parse_budget,
    predicted,
    with_costs,
    with_layer_cost,
)
from pdecnn.condensation.replacements import NOTHING, choice_of, chosen
from pdecnn.condensation.site import Cost, Run
from pdecnn.shared.progress import ProgressCallback
from pdecnn.shared.trees import arguments

CHOICES = ("nothing", "depthwise", "separable", "pde K=1", "pde", "paper")
ATTEMPTS = 4
SLACK = 1.02  # a plan that measures this much above its budget is within the noise of the clock


@dataclass(frozen=True)
class Proposal:
    """A plan, the harm that its choices add up to, and the milliseconds predicted and measured."""

    plan: Plan
    harm: float
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
    places: Sequence[Place] = (),
    measured: bool = True,
    count: int = 3,
    progress: ProgressCallback | None = None,
) -> list[Proposal]:
    """The best plans within a budget, that with the least harm first: of runs and inner channels, chosen together.

    A budget of milliseconds is met as measured, not as predicted: where a plan takes longer than allowed, the bound is
    drawn tighter and the choice made again.

    Args:
        plan: Every run with the fewest blocks that may stay; of a narrower model, if it has a `width`.
        model: The model before.
        x: What it is timed on.
        budget: As in `pdecnn.plan`.
        harms: What `measure_harms` found; runs that are not in it keep all their blocks.
        table: What `measure_sites` found with all channels; needed for `latency_ms`.
        places: What `measure_places` found; for models of one tensor with all their channels.
        measured: Whether plans are timed; not if the table is of another device.
        count: How many plans.
        progress: As in `pdecnn.plan`.
    """
    if "latency_ms" in budget and table is None:
        raise ValueError("propose_plans: a budget of latency_ms needs a latency table.")
    before, narrowed = table.total(plan.before) if table else plan.before, plan.narrowed
    wide = table  # of the model with all its channels
    limits = parse_budget(budget, before)
    if narrowed and table:
        small = {"": plan.narrow(model), NOTHING: without_blocks(plan).apply(model)}
        times = _as_in(table, model, small, x, progress)
        table = table.scaled(times[""]).anchored(plan.runs, times[NOTHING])
        narrowed = table.total(narrowed)
    total = narrowed or before
    choices: list[Sequence[Choice | Fewer]] = [_choices(run, harms.get(run.path, {}), table) for run in plan.runs]
    choices += [choices_of(place) for place in places]
    apart = _apart(choices)
    asked = limits.get("ms")
    found: list[Proposal] = []
    for _ in range(ATTEMPTS):
        combinations = best_combinations(choices, total, limits, count, apart)
        if not combinations:
            break
        known = dataclasses.replace(plan, before=before, narrowed=narrowed)
        plans = [_planned(known, model, x, combo) for combo in combinations]
        sums = [sum(c.harm for c in combo) for combo in combinations]
        found = [Proposal(p, h, predicted(p.whole, p.runs).ms) for p, h in zip(plans, sums, strict=True)]
        if asked is None or wide is None or not measured:
            return found
        times = _as_in(wide, model, dict(enumerate(p.apply(model) for p in plans)), x, progress)
        found = [dataclasses.replace(f, ms=times[i]) for i, f in enumerate(found)]
        within = [f for f in found if f.ms is not None and f.ms <= SLACK * asked]
        if within:
            return within
        limits["ms"] *= 0.98 * asked / min(times.values())
    best = min((f.ms for f in found if f.ms is not None), default=None)
    shown = {name: _least(choices, total, kind) for name, kind in BUDGETS.items()}
    shown["latency_ms"] = best or shown["latency_ms"]
    words = ", ".join(f"{name}={value}" for name, value in budget.items())
    raise BudgetError(
        f"condense: the budget {words} cannot be met: at least "
        + ", ".join(f"{name}={shown[name]:,.4g}" for name in budget if shown.get(name) is not None)
        + " is needed. Raise the budget, or allow more: keep=1, more replacements, a smaller model."
    )


def _as_in(
    table: LatencyTable, model: nn.Module, nets: Mapping[Any, nn.Module], x: Tensor, progress: ProgressCallback | None
) -> dict[Any, float]:
    """Milliseconds of networks, as they would be beside the model when the table was measured.

    A machine that is busier than it was then slows all of them.
    """
    before = object()
    times = time_models({before: model, **nets}, x, table.runtime, table.threads, progress=progress)
    whole = times.pop(before)
    return {key: table.ms * ms / whole for key, ms in times.items()}


def _apart(choices: Sequence[Sequence[Choice | Fewer]]) -> list[list[int]]:
    """What does not go together: for each place and run, fewer channels, and what leaves no such channels."""
    numbered, start = [], 0
    for group in choices:
        numbered.append(list(enumerate(group, start)))
        start += len(group)
    sets = []
    for place in (g for g in numbered if isinstance(g[0][1], Fewer)):
        fewer = [(j, c) for j, c in place if isinstance(c, Fewer) and c.inner.keep < c.inner.channels]
        for run in (g for g in numbered if isinstance(g[0][1], Choice)):
            gone = [i for i, c in run if isinstance(c, Choice) and fewer and not fewer[0][1].goes_with(c.run)]
            sets += [[j for j, _ in fewer] + gone] if gone else []
    return sets


def _planned(plan: Plan, model: nn.Module, x: Tensor, choices: Sequence[Choice | Fewer]) -> Plan:
    """The plan of a combination, with the costs of the model that has its inner channels."""
    runs = [c.run for c in choices if isinstance(c, Choice)]
    fewer = [c for c in choices if isinstance(c, Fewer) and c.inner.keep < c.inner.channels]
    if not fewer:
        return dataclasses.replace(plan, runs=tuple(runs))
    inner = tuple(c.inner for c in fewer)
    small = cut_inner(model, inner)
    costs = module_costs(small, arguments(model, x), [path for run in runs for path in run.members()])
    ms = None if plan.before.ms is None else plan.before.ms - sum(c.saved.ms or 0.0 for c in fewer)
    narrower = [_less_channels(run, with_costs(run, costs, small), fewer) for run in runs]
    return dataclasses.replace(plan, runs=tuple(narrower), inner=inner, narrowed=dataclasses.replace(costs[""], ms=ms))


def _less_channels(old: Run, new: Run, fewer: Sequence[Fewer]) -> Run:
    """The run with the milliseconds that are known of it, less those of channels that go."""
    if any(cost.ms is None for cost in old.costs):
        return new
    blocks = []
    for number, (was, cost) in enumerate(zip(old.costs, new.costs, strict=True)):
        gone = sum(c.saved.ms or 0.0 for c in fewer if unit_of(c.inner.last, old) == number)
        blocks.append(dataclasses.replace(cost, ms=max(0.0, (was.ms or 0.0) - gone)))
    layer = dataclasses.replace(new.layer_cost, ms=old.layer_cost.ms)
    return dataclasses.replace(new, costs=tuple(blocks), layer_cost=layer)


def _least(choices: Sequence[Sequence[Choice | Fewer]], total: Cost, kind: str) -> float | None:
    """The least that can be reached of one kind of cost."""
    if getattr(total, kind) is None:
        return None
    best = [max(group, key=lambda c: getattr(c.saved, kind) or 0) for group in choices]
    runs = [c.run for c in best if isinstance(c, Choice)]
    there = [c for c in best if isinstance(c, Choice) or all(map(c.goes_with, runs))]
    return float(getattr(total, kind) - sum(getattr(c.saved, kind) or 0 for c in there))


def _choices(run: Run, harms: Mapping[str, Sequence[float]], table: LatencyTable | None) -> list[Choice]:
    """The run unchanged, and with every number of blocks and every replacement that was measured."""
    options = [(chosen(run, NOTHING, keep=len(run.units)), 0.0)]
    for name, values in harms.items():
        one = with_layer_cost(chosen(run, name))
        options += [(dataclasses.replace(one, keep=run.keep + i), value) for i, value in enumerate(values)]
    return [Choice(table.with_ms(r) if table else r, value) for r, value in options]
