"""Plans with fewer inner channels for a search: as many as a budget leaves, and some beside blocks that go."""

import dataclasses
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from torch import nn

from pdecnn.condensation.inner import cut_inner
from pdecnn.condensation.latency import LatencyTable, time_models
from pdecnn.condensation.plan import Plan, plan
from pdecnn.condensation.propose import parse_budget
from pdecnn.condensation.site import Cost
from pdecnn.shared.modules import tensors_in
from pdecnn.shared.progress import ProgressCallback

SHARES = (0.875, 0.75, 0.625, 0.5, 0.375, 0.25)
MARGIN = 0.98  # of a bound: what is between two shares is not measured
BESIDE = 0.75  # the share that goes together with fewer blocks


def thinner_plans(
    full: Plan,
    teacher: nn.Module,
    example: Any,
    wishes: Mapping[str, Any],
    table: LatencyTable | None,
    progress: ProgressCallback | None = None,
) -> dict[float, Plan]:
    """A plan of each share of the inner channels, with its milliseconds if there is a table; none if there are none.

    Args:
        full: The plan with all channels.
        teacher: The model before.
        example: One input.
        wishes: Options of `plan`.
        table: Milliseconds with all channels.
        progress: As in `plan`.
    """
    made = {}
    for share in SHARES:
        try:
            one = plan(teacher, example, **wishes, inner=share, progress=progress)
        except ValueError:  # as narrow as this, no run is left, or Torch-Pruning does not know the model
            break
        if not one.inner or [run.path for run in one.runs] != [run.path for run in full.runs]:
            break
        made[share] = one
    if table is None or not made:
        return made
    (x,) = tensors_in(example)
    nets = {0.0: teacher, **{share: cut_inner(teacher, one.inner) for share, one in made.items()}}
    times = time_models(nets, x, table.runtime, table.threads, progress=progress)
    ms = {share: table.ms * times[share] / times[0.0] for share in made}
    costs = {share: dataclasses.replace(one.whole, ms=ms[share]) for share, one in made.items()}
    return {share: dataclasses.replace(one, narrowed=costs[share]) for share, one in made.items()}


def that_fit(thinner: Mapping[float, Plan], before: Cost, bounds: Mapping[str, Any]) -> list[float]:
    """The largest share of inner channels with which the model is within the bounds with all its blocks, and that
    beside which blocks go.

    Args:
        thinner: What `thinner_plans` made.
        before: The cost of the model with all channels.
        bounds: As in `plan`.
    """
    limits = parse_budget(bounds, before)
    found = []
    shares, costs = (1.0, *thinner), (before, *(one.whole for one in thinner.values()))
    for (wide, dear), (thin, cheap) in pairwise(zip(shares, costs, strict=True)):
        if all(getattr(cheap, name) <= limit for name, limit in limits.items()):
            t = min(_part(getattr(cheap, n), getattr(dear, n), MARGIN * limit) for n, limit in limits.items())
            found.append(thin + t * (wide - thin))
            break
    return [*found, *(share for share in thinner if share == BESIDE)]


def _part(low: float, high: float, limit: float) -> float:
    """How far `limit` is on the way from `low` to `high`."""
    return min(1.0, max(0.0, (limit - low) / max(high - low, 1e-12)))
