"""Inner channels in a search: at each place by itself, what each number of them saves and what it harms.

Milliseconds are measured inside the whole model with the fewest channels that may stay, and taken to be saved evenly by
each of those that go; parameters and multiply-adds are counted. The harm is measured with half of the channels and with
the fewest; with other numbers it is taken to grow as the squared error of the layer that reads them does, which least
squares tell for all numbers at once.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.condensation.filters import Given, inner_asked_for
from pdecnn.condensation.fit import answer_distance
from pdecnn.condensation.inner import ROUND, Inner, cut_inner, find_inner, inner_errors
from pdecnn.condensation.latency import LatencyTable, time_models
from pdecnn.condensation.propose import module_costs
from pdecnn.condensation.site import STRICT, Cost, Run
from pdecnn.shared.modules import eval_mode
from pdecnn.shared.progress import ProgressCallback
from pdecnn.shared.trees import arguments

SHARES = (0.875, 0.75, 0.625, 0.5, 0.375, 0.25)  # of the channels that may stay
TRIED = 0.5  # a share whose harm is measured
VECTOR = 16  # channels are kept by so many where there are at least four times as many, else by `ROUND`


@dataclass(frozen=True)
class Place:
    """Inner channels that one layer reads.

    Attributes:
        inner: Where; with the fewest channels that may stay.
        saved: What that saves.
        harms: How many channels may stay, from the most to the fewest, and how far the answers are off then.
    """

    __pydantic_config__ = STRICT

    inner: Inner
    saved: Cost
    harms: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Fewer:
    """One number of channels for a place: a choice like those of runs."""

    inner: Inner
    harm: float
    saved: Cost = field(default_factory=Cost)

    def goes_with(self, run: Run) -> bool:
        """Whether the place is untouched, or all of it still there, when the run becomes this."""
        if self.inner.keep == self.inner.channels or not run.condenses:
            return True
        units = {unit_of(path, run) for path in (self.inner.first, *self.inner.between, self.inner.last)}
        (unit, *others) = units
        return not others and (unit is None or unit < run.keep)


def unit_of(path: str, run: Run) -> int | None:
    """The number of the block of a run that a layer is in, or is; None outside."""
    for number, unit in enumerate(run.units):
        if any(path == child or path.startswith(f"{child}.") for child in map(run.child, unit)):
            return number
    return None


def choices_of(place: Place) -> list[Fewer]:
    """All channels, and each smaller number."""
    whole, least, saved = place.inner.channels, place.inner.keep, place.saved
    found = [Fewer(dataclasses.replace(place.inner, keep=whole), 0.0)]
    for keep, harm in place.harms:
        part = (whole - keep) / (whole - least)
        ms = None if saved.ms is None else part * saved.ms
        cost = Cost(round(part * saved.params), round(part * saved.macs), ms)
        found.append(Fewer(dataclasses.replace(place.inner, keep=keep), harm, cost))
    return found


def measure_places(
    teacher: nn.Module,
    x: Any,
    inputs: Sequence[Any],
    held: Any,
    table: LatencyTable | None = None,
    *,
    ignore: Given | Sequence[Given] = (),
    only: Given | Sequence[Given] = (),
    progress: ProgressCallback | None = None,
) -> tuple[Place, ...]:
    """What fewer inner channels save and harm; nothing if the model has none.

    Args:
        teacher: The model before.
        x: What it is timed on.
        inputs: Batches of images to solve on.
        held: A batch to measure on.
        table: Milliseconds with all channels; None where they do not matter.
        ignore: As in `plan`.
        only: As in `plan`.
        progress: As in `plan`.
    """
    try:
        found = find_inner(teacher, arguments(teacher, x), min(SHARES))
    except Exception:  # Torch-Pruning does not know such a model
        return ()
    found = inner_asked_for(found, teacher, arguments(teacher, x), ignore, only)
    if not found:
        return ()
    keeps = [numbers(one.channels) for one in found]
    fewest = [dataclasses.replace(one, keep=few[-1]) for one, few in zip(found, keeps, strict=True)]
    saved = _saved(teacher, x, fewest, table, progress)
    with torch.no_grad(), eval_mode(teacher):
        wanted = teacher(*arguments(teacher, held))
    made = [
        [min(few, key=lambda n: abs(n - TRIED * one.channels)), few[-1]] for one, few in zip(found, keeps, strict=True)
    ]
    places = []
    solved = inner_errors(teacher, found, inputs, keeps, made, progress=progress)
    for one, few, tried, cost, (errors, models) in zip(fewest, keeps, made, saved, solved, strict=True):
        measured = {}
        for number, small in zip(tried, models, strict=True):
            with torch.no_grad(), eval_mode(small):
                measured[number] = answer_distance(small(*arguments(small, held)), wanted)
        if all(map(math.isfinite, measured.values())):
            harms = between(dict(zip(few, errors, strict=True)), measured)
            places.append(Place(one, cost, tuple(harms.items())))
    return tuple(places)


def between(errors: Mapping[int, float], measured: Mapping[int, float]) -> dict[int, float]:
    """The harm of each number of channels, straight lines over the error between no harm and those that were measured.

    Example:
        >>> between({6: 1.0, 4: 2.0, 3: 3.0, 2: 4.0}, {4: 0.25, 2: 0.75})
        {6: 0.125, 4: 0.25, 3: 0.5, 2: 0.75}
    """
    known = [(0.0, 0.0)]
    own = {}
    for n in sorted(measured, reverse=True):
        known.append((max(errors[n], known[-1][0]), max(measured[n], known[-1][1])))
        own[n] = known[-1][1]
    return {n: own.get(n, _on_lines(known, error)) for n, error in errors.items()}


def _on_lines(known: Sequence[tuple[float, float]], error: float) -> float:
    """The harm at an error, on the lines through those known; beyond the last that of the last."""
    for (x0, y0), (x1, y1) in pairwise(known):
        if error <= x1:
            return y0 + (y1 - y0) * (max(0.0, error - x0) / (x1 - x0) if x1 > x0 else 1.0)
    return known[-1][1]


def numbers(channels: int) -> list[int]:
    """How many of so many channels may stay, from the most to the fewest."""
    by = VECTOR if channels >= 4 * VECTOR else ROUND
    found = {max(by, int(share * channels) // by * by) for share in SHARES}
    return sorted((n for n in found if n < channels), reverse=True)


def _saved(
    teacher: nn.Module, x: Any, fewest: Sequence[Inner], table: LatencyTable | None, progress: ProgressCallback | None
) -> list[Cost]:
    """What the fewest channels save at each place."""
    paths = [path for one in fewest for path in (one.first, *one.between, one.last)]
    costs = module_costs(teacher, arguments(teacher, x), paths)
    found = []
    for one in fewest:
        part = 1 - one.keep / one.channels
        cost = sum((costs[path] for path in (one.first, *one.between, one.last)), Cost())
        found.append(Cost(round(part * (cost.params - _bias(teacher, one.last))), round(part * cost.macs)))
    shared = {one.last: costs[one.last] - Cost(_bias(teacher, one.last)) for one in fewest}
    found = _once(found, fewest, shared)
    if table is None:
        return found
    alike: dict[Any, list[Inner]] = {}  # places that cost the same are timed as one
    for one, cost in zip(fewest, found, strict=True):
        alike.setdefault((one.channels, cost), []).append(one)
    nets: dict[Any, nn.Module] = {"": teacher, "all": cut_inner(teacher, fewest)}
    if table.runtime != "compile":  # each of them would be compiled, for minutes
        nets |= {group[0].last: cut_inner(teacher, group) for group in alike.values()}
    times = time_models(nets, x, table.runtime, table.threads, progress=progress)
    return share_out(found, times, [[one.last for one in group] for group in alike.values()], fewest, table.ms)


def _bias(model: nn.Module, path: str) -> int:
    """How many parameters of a layer do not depend on what it reads."""
    bias = getattr(model.get_submodule(path), "bias", None)
    return bias.numel() if isinstance(bias, Tensor) else 0


def _once(saved: Sequence[Cost], fewest: Sequence[Inner], costs: Mapping[str, Cost]) -> list[Cost]:
    """The costs without what two places both count of a layer that reads one and gives the other.

    Each is spared half of it: with the fewest channels in both the sum is exact, else never too large.
    """
    found = list(saved)
    by_first = {one.first: j for j, one in enumerate(fewest)}
    for i, one in enumerate(fewest):
        j = by_first.get(one.last)
        if j is not None:
            part = (1 - one.keep / one.channels) * (1 - fewest[j].keep / fewest[j].channels) / 2
            twice = Cost(math.ceil(part * costs[one.last].params), math.ceil(part * costs[one.last].macs))
            found[i], found[j] = found[i] - twice, found[j] - twice
    return found


def share_out(
    saved: Sequence[Cost],
    times: Mapping[Any, float],
    groups: Sequence[Sequence[str]],
    fewest: Sequence[Inner],
    whole: float,
) -> list[Cost]:
    """The costs with milliseconds that sum up to what all together save, in proportion to what each group saves.

    Args:
        saved: Of each place, without milliseconds.
        times: Of the model before, `""`; with the fewest channels at every place, `"all"`; and at the places of each
            group alone, by the first of them, if that was measured. Else multiply-adds stand for milliseconds.
        groups: Places that cost the same, by the layers that read them.
        fewest: The places.
        whole: The milliseconds of the model before, where the others come from.
    """
    alone = {
        name: max(0.0, times[""] - times.get(group[0], times[""])) / len(group) for group in groups for name in group
    }
    if not sum(alone.values()):
        alone = {one.last: float(cost.macs) for one, cost in zip(fewest, saved, strict=True)}
    together = max(0.0, times[""] - times["all"]) * whole / times[""]
    unit = together / max(sum(alone.values()), 1e-12)
    return [dataclasses.replace(cost, ms=unit * alone[one.last]) for one, cost in zip(fewest, saved, strict=True)]
