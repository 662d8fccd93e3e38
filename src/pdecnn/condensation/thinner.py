"""Fewer inner channels in a search: as many as a budget leaves, and some beside blocks that go."""

import dataclasses
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from pdecnn.condensation.inner import cut_inner, find_inner
from pdecnn.condensation.latency import LatencyTable, time_models
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.propose import module_costs, parse_budget
from pdecnn.condensation.replacements import NOTHING, chosen
from pdecnn.condensation.search import ATTEMPTS, SLACK, Proposal
from pdecnn.condensation.site import Cost
from pdecnn.shared.modules import tensors_in
from pdecnn.shared.progress import ProgressCallback
from pdecnn.shared.trees import arguments

SHARES = (0.875, 0.75, 0.625, 0.5, 0.375, 0.25)
MARGIN = 0.98  # of a bound: what is between two shares is not measured
BESIDE = 0.75  # the share that goes together with fewer blocks


def thinner_costs(
    teacher: nn.Module, example: Any, table: LatencyTable | None, progress: ProgressCallback | None = None
) -> dict[float, Cost]:
    """What the model costs with each share of its inner channels; nothing if it has none.

    Args:
        teacher: The model before.
        example: One input.
        table: Milliseconds with all channels; None where they do not matter.
        progress: As in `plan`.
    """
    inputs = arguments(teacher, example)
    try:
        found = {share: find_inner(teacher, inputs, share) for share in SHARES}
    except Exception:  # Torch-Pruning does not know such a model
        return {}
    nets = {share: cut_inner(teacher, inner) for share, inner in found.items() if inner}
    costs = {share: module_costs(net, inputs, [])[""] for share, net in nets.items()}
    if table is None or not costs:
        return costs
    (x,) = tensors_in(example)
    times = time_models({0.0: teacher, **nets}, x, table.runtime, table.threads, progress=progress)
    ms = {share: table.ms * times[share] / times[0.0] for share in nets}
    return {share: dataclasses.replace(cost, ms=ms[share]) for share, cost in costs.items()}


def keep_blocks(
    thinner: Mapping[float, Cost],
    make: Callable[[float], Plan],
    teacher: nn.Module,
    x: Tensor,
    before: Cost,
    bounds: Mapping[str, Any],
    table: LatencyTable | None = None,
    progress: ProgressCallback | None = None,
) -> Proposal | None:
    """The plan that is within the bounds with all its blocks, and as many inner channels as it can; None if none is.

    Args:
        thinner: What `thinner_costs` found.
        make: The plan of a share; a ValueError if there is none.
        teacher: The model before.
        x: What it is timed on.
        before: The cost of the model with all channels.
        bounds: As in `plan`.
        table: Milliseconds with all channels, if they are bounded.
        progress: As in `plan`.
    """
    limits = parse_budget(bounds, before)
    share = share_within(thinner, before, limits)
    for _ in range(ATTEMPTS):
        if share is None or share < min(thinner):
            return None
        try:
            made = make(share)
        except ValueError:
            return None
        made = dataclasses.replace(made, runs=tuple(chosen(r, NOTHING, keep=len(r.units)) for r in made.runs))
        cost = made.whole
        if table is not None:
            times = time_models(
                {0: teacher, 1: made.narrow(teacher)}, x, table.runtime, table.threads, progress=progress
            )
            cost = dataclasses.replace(cost, ms=table.ms * times[1] / times[0])
            made = dataclasses.replace(made, before=before, narrowed=cost)
        over = max(getattr(cost, name) / limit for name, limit in limits.items())
        if over <= SLACK:
            return Proposal(made, None, ms=cost.ms)
        share *= MARGIN / over
    return None


def share_within(thinner: Mapping[float, Cost], before: Cost, limits: Mapping[str, float]) -> float | None:
    """The largest share of inner channels within the limits, by a straight line between those that are known."""
    for (wide, dear), (thin, cheap) in pairwise([(1.0, before), *thinner.items()]):
        if all(getattr(cheap, name) <= limit for name, limit in limits.items()):
            t = min(_part(getattr(cheap, n), getattr(dear, n), MARGIN * limit) for n, limit in limits.items())
            return thin + t * (wide - thin)
    return None


def _part(low: float, high: float, limit: float) -> float:
    """How far `limit` is on the way from `low` to `high`."""
    return min(1.0, max(0.0, (limit - low) / max(high - low, 1e-12)))
