"""The plan that a visitor edits, with what it costs: counted, predicted from measured parts, and measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import get_clock_info, perf_counter, thread_time
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.analysis.latency import threads
from pdecnn.condensation.latency import time_models
from pdecnn.condensation.plan import Plan, plan
from pdecnn.condensation.replacements import NOTHING, PAPER, PDE, STEPS, build, chosen, replacements
from pdecnn.condensation.site import Run
from pdecnn.deploy.optimize import optimize_for_inference
from pdecnn.layers.transport import MAX_K
from pdecnn.shared.modules import eval_mode, listen
from pdecnn.shared.progress import ProgressCallback, begin
from pdecnn.shared.tables import short
from pdecnn.viz.studio import strip
from pdecnn.viz.studio.drawing import note, table
from pdecnn.viz.studio.nets import Net

RUNTIME = "optimized"
SECONDS = 4.0  # of timing at a time
PASSES = 10
CLOCK = thread_time if get_clock_info("thread_time").resolution < 1e-5 else perf_counter
STEPPED = (PDE, PAPER)
EXAMPLE = {"keep": 2, "K": 1}  # as `pdecnn condense` plans the embedded network


@dataclass(frozen=True, eq=False)
class Planned:
    """A net, its plan as edited so far, and the blocks of its strip."""

    net: Net
    plan: Plan
    cells: tuple[strip.Cell, ...]


@dataclass(frozen=True, eq=False)
class Parts:
    """Milliseconds of a net, of the blocks of each of its runs, and of what may replace them there."""

    net: Net | None
    ms: float
    blocks: Mapping[str, tuple[float, ...]]
    layers: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Measured:
    """Milliseconds of a net and of what a plan makes of it."""

    plan: Plan
    before: float
    after: float


def example_input(net: Net) -> Tensor:
    """An input of the right shape, always the same."""
    return torch.randn(1, *net.wanted.shape, generator=torch.Generator().manual_seed(0))


def start(net: Net, progress: ProgressCallback | None = None) -> Planned:
    """Finds the runs of a net and plans them all, as the command does."""
    options: dict[str, Any] = dict(EXAMPLE) if net.name.startswith("fashion_resnet32") else {}
    if net.found.description.get("builder") == "custom":
        options["base"] = net.found.description
    x = example_input(net)
    made = plan(net.model, x, **options, progress=progress)
    return Planned(net, made, strip.cells(net.model, x, made))


def edit(planned: Planned, path: str, *, keep: int, replacement: str, K: int) -> Planned:
    """Another choice at one run."""
    if replacement == PDE and K > MAX_K:
        raise ValueError(f"The layer pde makes at most {MAX_K} steps, got K={K}.")
    changes: dict[str, Any] = {"keep": int(keep), "replacement": replacement}
    if replacement in STEPPED:
        changes["K"] = int(K)
    return replace(planned, plan=planned.plan.edit(path, **changes))


def choices() -> list[str]:
    """What may come in the place of blocks, the usual one first."""
    return sorted(replacements(), key=lambda name: (name != PDE, name))


def measure_parts(planned: Planned, progress: ProgressCallback | None = None) -> Parts:
    """Times every block inside the net and every replacement by itself, from which any edit is predicted."""
    model, runs, x = planned.net.model, planned.plan.runs, example_input(planned.net)
    names = [*replacements(), *(f"{name} K=1" for name in STEPPED)]
    done = begin(progress, "timing blocks and what may replace them", 1 + len(runs))
    served = optimize_for_inference(model, x)
    whole, within = fastest(served, x)[""], fastest(served, x, [path for run in runs for path in run.members()])
    done()
    like = next(model.parameters())
    layers: dict[str, dict[str, float]] = {}
    for run in runs:
        h = torch.zeros(1, *run.shape, dtype=like.dtype)
        made = {name: nn.Sequential(build(chosen(run, name), None, like)).eval() for name in names if name != NOTHING}
        ready = {name: optimize_for_inference(layer, h) for name, layer in made.items()}
        layers[run.path] = {name: fastest(layer, h)[""] for name, layer in ready.items()} | {NOTHING: 0.0}
        done()
    blocks = {run.path: tuple(sum(within[run.child(n)] for n in unit) for unit in run.units) for run in runs}
    return Parts(planned.net, whole, blocks, layers)


@torch.no_grad()
def fastest(model: nn.Module, x: Tensor, paths: Sequence[str] = ()) -> dict[str, float]:
    """The least milliseconds of several passes on one thread: of the whole, `""`, and of modules inside it.

    It is the time of the processor where the system tells it well: a pass that others interrupt takes no longer.
    """
    names = {model.get_submodule(path): path for path in paths} | {model: ""}
    began: dict[nn.Module, float] = {}
    least = dict.fromkeys(names.values(), float("inf"))

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        began[module] = CLOCK()

    def leave(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        least[names[module]] = min(least[names[module]], 1e3 * (CLOCK() - began[module]))

    with threads(1), listen(names, before=enter, after=leave), eval_mode(model):
        for _ in range(PASSES):
            model(x)
    return least


def predict(made: Plan, parts: Parts) -> float:
    """The share of the time that is left after a plan: without the blocks that go, with the layers that come."""
    saved = 0.0
    for run in made.runs:
        if run.condenses:
            stays = len(run.units) - len(run.removed)
            saved += sum(parts.blocks[run.path][stays:]) - layer_ms(run, parts.layers[run.path])
    return max(0.0, 1 - saved / parts.ms)


def layer_ms(run: Run, layers: Mapping[str, float]) -> float:
    """Milliseconds of the layer that comes at a run; those of a PDE are affine in its steps.

    Example:
        >>> from pdecnn.condensation import Run
        >>> run = Run("chain", "layer1", (("0",), ("1",)), 1, "Block", (8, 4, 4), replacement="pde", K=5)
        >>> layer_ms(run, {"pde": 3.0, "pde K=1": 1.0})
        5.0
    """
    usual = layers[run.replacement]
    if run.replacement not in STEPPED:
        return usual
    one = layers[f"{run.replacement} K=1"]
    return max(0.0, one + (usual - one) * (run.K - 1) / (STEPS[run.replacement] - 1))


def measure(planned: Planned, progress: ProgressCallback | None = None) -> Measured:
    """Times the net and what its plan makes of it, in turns."""
    nets = {"before": planned.net.model, "after": planned.plan.apply(planned.net.model)}
    found = time_models(nets, example_input(planned.net), RUNTIME, rounds=15, max_seconds=SECONDS, progress=progress)
    return Measured(planned.plan, found["before"], found["after"])


def costs(planned: Planned, parts: Parts | None = None, measured: Measured | None = None) -> str:
    """The table: before, after and how many times less; milliseconds as far as they are those of this plan."""
    b, a = planned.plan.before, planned.plan.after
    rows = [("parameters", short(b.params), short(a.params), _times(b.params, a.params))]
    rows.append(("multiply-adds", short(b.macs), short(a.macs), _times(b.macs, a.macs)))
    waiting = ("…", "…", "being measured")
    if parts is not None and parts.net is planned.net:
        left = predict(planned.plan, parts)
        rows.append(("predicted, ms", f"{parts.ms:.2f}", f"{left * parts.ms:.2f}", _times(1.0, left)))
    else:
        rows.append(("predicted, ms", *waiting))
    if measured is not None and measured.plan is planned.plan:
        before, after = measured.before, measured.after
        rows.append(("measured, ms", f"{before:.2f}", f"{after:.2f}", _times(before, after)))
    else:
        rows.append(("measured, ms", *waiting))
    text = (
        "One image, one thread, prepared for inference. Predicted: blocks and new layers timed one by one and added "
        "up. Measured: both networks, in turns."
    )
    return table(("", "before", "after", "times less"), rows) + note(text)


def weights_of(planned: Planned) -> str:
    """Where the weights are from, in a sentence."""
    found = planned.net.found
    return (
        f"Weights: {found.weights}."
        if found.weights
        else "Its weights are random: plans and times hold, answers do not."
    )


def _times(before: float, after: float) -> str:
    return f"{before / after:.2f}" if after > 0 else "all of it"
