"""What condensing would cost and save, and how much of it a budget asks for."""

import copy
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pdecnn.analysis.cost import profile
from pdecnn.analysis.tracker import all_names
from pdecnn.condensation.apply import own_replacement
from pdecnn.condensation.replacements import build
from pdecnn.condensation.site import Cost, Run
from pdecnn.shared.modules import eval_mode, listen
from pdecnn.shared.progress import ProgressCallback, begin
from pdecnn.shared.trees import count, is_images

ROUNDS = 7  # samples of a latency
BUDGETS = {"params": "params", "macs": "macs", "latency_ms": "ms"}

ANY = Cost(1, 1, 1.0)  # to look whether a budget can be read at all


class BudgetError(ValueError):
    """No plan is within the budget."""


def module_costs(model: nn.Module, inputs: tuple[Any, ...], paths: Sequence[str]) -> dict[str, Cost]:
    """The cost of each module named, and of the model as `""`, for one image of the batch."""
    report = profile(model, inputs)
    batch = batch_of(inputs)
    names = all_names(model)  # a report has a module's parameters and its work under any of them
    costs = {}
    for path in ("", *paths):
        parts = [report.subtree(name) for name in names[model.get_submodule(path)]]
        costs[path] = Cost(sum(part.params for part in parts), sum(part.exact for part in parts) // batch)
    return costs


def batch_of(inputs: tuple[Any, ...]) -> int:
    """How many images the arguments hold."""
    images = len(inputs) > 0 and is_images(inputs[0])
    return count(inputs[0] if images else inputs, images) or 1


def with_costs(run: Run, costs: Mapping[str, Cost], model: nn.Module) -> Run:
    """The run with the costs of its blocks and of what replaces them."""
    blocks = tuple(sum((costs[run.child(n)] for n in unit), Cost()) for unit in run.units)
    return dataclasses.replace(run, costs=blocks, layer_cost=_own_cost(run, model) or layer_cost(run))


def layer_cost(run: Run) -> Cost:
    """What the new layer of a run costs, counted on the meta device."""
    like = torch.empty(1, *run.shape, device="meta", dtype=torch.float64)
    report = profile(build(run, None, like), like)
    return Cost(report.params, report.exact)


def with_layer_cost(run: Run) -> Run:
    """The run with what its new layer costs, counted; milliseconds are not known then."""
    return dataclasses.replace(run, layer_cost=layer_cost(run))


def _own_cost(run: Run, model: nn.Module) -> Cost | None:
    """What the replacement that a user registered costs; None if there is none."""
    removed = [] if run.is_dense else [model.get_submodule(path) for path in run.members(run.keep)]
    make = own_replacement(removed)
    if make is None:
        return None
    like = next(model.parameters())
    shape = (*run.shape[1:], run.shape[0]) if run.channels_last else run.shape
    h = torch.zeros(1, *shape, device=like.device, dtype=like.dtype)
    try:
        report = profile(make(copy.deepcopy(removed), run), h)
    except Exception:  # the trial of the plan says why
        return None
    return Cost(report.params, report.exact)


def is_of_the_table(run: Run) -> bool:
    """Whether the cost of what replaces the blocks is that of the table, not of a function registered for them."""
    return dataclasses.replace(run.layer_cost, ms=None) == layer_cost(run)


def measure_ms(model: nn.Module, inputs: tuple[Any, ...], done: Callable[[], None] | None = None) -> float:
    """Milliseconds of one forward pass in eval mode: the median of `ROUNDS`; `done` is called after each of them."""
    with eval_mode(model), torch.inference_mode():
        model(*inputs)
        samples = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            model(*inputs)
            samples.append(1e3 * (time.perf_counter() - start))
            if done:
                done()
    return statistics.median_high(samples)


def timed(
    runs: Sequence[Run], model: nn.Module, inputs: tuple[Any, ...], *, progress: ProgressCallback | None = None
) -> list[Run]:
    """The runs with milliseconds for every block, as measured inside the model, and for every new layer."""
    paths = {path for run in runs for path in run.members()}
    modules = {path: model.get_submodule(path) for path in paths}
    began: dict[nn.Module, float] = {}
    samples: dict[nn.Module, list[float]] = {module: [] for module in modules.values()}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        began[module] = time.perf_counter()

    def leave(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        samples[module].append(1e3 * (time.perf_counter() - began[module]))

    with listen(samples, before=enter, after=leave):
        measure_ms(model, inputs, begin(progress, f"timing {len(paths)} blocks", ROUNDS))
    median = {path: statistics.median_high(samples[module]) for path, module in modules.items()}
    done = begin(progress, "timing new layers", len(runs))
    found = []
    for run in runs:
        found.append(_with_ms(run, median, model, batch_of(inputs)))
        done()
    return found


def _with_ms(run: Run, median: Mapping[str, float], model: nn.Module, batch: int) -> Run:
    blocks = tuple(
        dataclasses.replace(cost, ms=sum(median[run.child(n)] for n in unit))
        for cost, unit in zip(run.costs, run.units, strict=True)
    )
    like = next(model.parameters())
    layer = build(run, None, like)
    ms = measure_ms(layer, (torch.zeros(batch, *run.shape, device=like.device, dtype=like.dtype),))
    return dataclasses.replace(run, costs=blocks, layer_cost=dataclasses.replace(run.layer_cost, ms=ms))


def parse_budget(budget: Mapping[str, Any], total: Cost) -> dict[str, float]:
    """The budget in numbers: `{"params": "50%"}` -> `{"params": half of the model's}`."""
    limits = {}
    for name, value in budget.items():
        if name not in BUDGETS:
            raise ValueError(
                f"plan: budget has no {name!r}; there are {', '.join(BUDGETS)}, and accuracy in jobs with images."
            )
        whole = getattr(total, BUDGETS[name])
        try:
            if isinstance(value, str) and value.strip().endswith("%"):
                limit = float(value.strip()[:-1]) / 100 * whole
            else:
                limit = float(value)
        except (TypeError, ValueError):
            limit = 0.0
        if not limit > 0:
            raise ValueError(f'plan: budget[{name!r}] must be a positive number or such as "50%", got {value!r}.')
        limits[BUDGETS[name]] = limit
    return limits


def check_budget(budget: Mapping[str, Any]) -> None:
    """A ValueError unless a job can read its budget."""
    if "accuracy" in budget:
        parse_points(budget["accuracy"])
        if len(budget) > 1:
            raise ValueError("condense: a budget of accuracy stands alone: as fast as that allows.")
        return
    parse_budget(budget, ANY)


def parse_points(value: Any) -> float:
    """The points of accuracy that may be lost, as a number below zero: `"-0.5"` -> `-0.5`."""
    try:
        points = float(value)
    except (TypeError, ValueError):
        points = math.nan
    if not -math.inf < points <= 0:
        raise ValueError(
            "condense: a budget of accuracy is in points, such as -0.5 where half a point may be lost; got "
            f"{value!r:.80}."
        )
    return points


def predicted(total: Cost, runs: Sequence[Run]) -> Cost:
    """The cost of the model after condensing."""
    return sum((run.after - run.before for run in runs), total)


def choose(runs: Sequence[Run], total: Cost, limits: Mapping[str, float]) -> list[Run]:
    """As many blocks as the budget allows: from the smallest plan, blocks are given back, longest runs first."""
    chosen = list(runs)
    worst = predicted(total, chosen)
    for name, limit in limits.items():
        if getattr(worst, name) > limit:
            label = next(key for key, field in BUDGETS.items() if field == name)
            raise BudgetError(
                f"plan: the budget {label} <= {limit:,.6g} cannot be met: with every run condensed the model still has "
                f"{label} = {getattr(worst, name):,.6g} of {getattr(total, name):,.6g}. Raise the budget, lower keep "
                "or K, or start from a smaller model."
            )
    open_runs = set(range(len(chosen)))
    while open_runs:
        i = max(open_runs, key=lambda j: (len(chosen[j].removed), -chosen[j].costs[-1].macs))
        longer = _give_back(chosen[i])
        trial = [*chosen[:i], longer, *chosen[i + 1 :]]
        cost = predicted(total, trial)
        if all(getattr(cost, name) <= limit for name, limit in limits.items()):
            chosen = trial
        else:
            open_runs.discard(i)
        if not chosen[i].condenses:
            open_runs.discard(i)
    return chosen


def _give_back(run: Run) -> Run:
    longer = dataclasses.replace(run, keep=run.keep + 1)
    return longer if longer.condenses else dataclasses.replace(run, keep=len(run.units))
