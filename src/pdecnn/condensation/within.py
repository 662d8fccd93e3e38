"""The plan of a job that has a budget: measured in its runtime, its best candidates distilled for a moment."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.condensation.distill import distill
from pdecnn.condensation.fastest import SEARCH, fastest, remove_trials
from pdecnn.condensation.fit import answer_distance, fit_layers, hold_out
from pdecnn.condensation.harm import Harms, measure_harms
from pdecnn.condensation.latency import LatencyTable, measure_sites
from pdecnn.condensation.places import Place, measure_places
from pdecnn.condensation.plan import MAX_PLAN, NoRunsError, Plan, plan
from pdecnn.condensation.propose import BudgetError, parse_points
from pdecnn.condensation.replacements import NOTHING, PDE, choices_at
from pdecnn.condensation.search import CHOICES, Proposal, propose_plans
from pdecnn.condensation.site import Run, from_plain
from pdecnn.condensation.stages import StoppedError
from pdecnn.shared.files import write_atomic
from pdecnn.shared.modules import eval_mode, tensors_in
from pdecnn.shared.progress import ProgressCallback
from pdecnn.shared.reading import read_object
from pdecnn.shared.trees import arguments, ordered
from pdecnn.training import Loaders
from pdecnn.training.batches import as_batch
from pdecnn.training.data import Batch
from pdecnn.training.loaders import Batches
from pdecnn.training.progress import Reporter
from pdecnn.training.seeding import seed_everything

LATENCY, HARMS, CANDIDATES, PLACES = "latency.json", "harms.json", "candidates.json", "places.json"
RUNTIME = "optimized"
WORK = 1e11  # multiply-adds that one pass over the calibration images may take
FEWEST = 12  # images of a batch of these
BATCHES = 4
JUDGES = 8  # batches more, at the most, that trials are judged by
WIDTHS = (1.0, 0.75, 0.5)
COUNT = 3  # candidates that are distilled


@dataclass(frozen=True)
class Measured:
    """What a search stands on: a plan of each width, what every choice costs and harms, inner channels, and images."""

    plans: tuple[Plan, ...]
    table: LatencyTable | None
    harms: Harms
    places: tuple[Place, ...]
    inputs: list[Any]
    held: Any
    judges: list[Any]  # that one and others that nothing was fitted to: by them trials are compared


@dataclass(frozen=True)
class Brief:
    """Training batches, but no more than some of each epoch."""

    whole: Batches
    steps: int

    def __len__(self) -> int:
        return min(self.steps, len(self.whole))

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from position `start` on."""
        return islice(self.whole.batches(epoch, start), len(self) - start)


def plan_within(
    folder: Path,
    teacher: nn.Module,
    data: Loaders,
    example: Any,
    budget: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    runtime: str | None = None,
    latency_table: str | Path | None = None,
    trial: Mapping[str, Any] | None = None,
    accuracy: Callable[[nn.Module], float] | None = None,
    higher_is_better: bool = True,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    progress: ProgressCallback | None = None,
    reporter: Callable[[], Reporter] = Reporter,
) -> Plan:
    """The best plan within `budget`; what was measured is kept in `folder`, so that a killed job goes on from there.

    Args:
        folder: Gets latency.json, harms.json, places.json and, in the end, search.json.
        teacher: The model before.
        data: Its images.
        example: One input.
        budget: As in `plan`; or `accuracy`, such as -0.5: as fast as half a point allows.
        options: Further options of `plan`; a `replacement` restricts the choice to it and nothing, a `width` or
            `inner` to that.
        runtime: Where milliseconds are measured: one of `pdecnn.deploy.bench.RUNTIMES`; by default `RUNTIME`, or that
            of the table.
        latency_table: A file of `pdecnn bench --sites`, measured elsewhere, in place of measuring here. It must be of
            this model, these inputs and, if one is given, this runtime, and have what `options` name.
        trial: Options of `distill`, with the epochs of the whole job; None takes the first candidate untried.
        accuracy: Measures a model in per cent, or by a metric; for a budget of `accuracy`.
        higher_is_better: Whether more of it is better.
        seed: Seed of all that is drawn.
        say: Called with a line about each step.
        progress: As in `plan`.
        reporter: Makes what shows the progress of the training.
    """
    images = tensors_in(example)
    if len(images) != 1 or not isinstance(images[0], Tensor):
        raise ValueError("condense: a budget is for models of one tensor; plan with keep= and replacement= instead.")
    x = images[0]
    by_accuracy = "accuracy" in budget
    given = options.get("replacement")
    names = CHOICES if given is None else tuple(dict.fromkeys((NOTHING, str(given))))
    wishes = {**options, "replacement": given or PDE}
    none: NoRunsError | None = None
    try:
        full = plan(teacher, example, **wishes, progress=progress)
    except NoRunsError as error:  # inner channels may be enough
        full, none = error.plan, error
    timed = by_accuracy or "latency_ms" in budget
    table = (
        _table(folder, full, teacher, x, names, runtime, latency_table, progress) if timed or latency_table else None
    )
    if table:
        say(f"{table.where}: {table.ms:.3f} ms before")
        for run in full.runs if given or "K" in options else ():
            table.with_ms(run)  # what was named must have been timed
    worth = {run.path: that_pay(run, names, table if given is None else None) for run in full.runs}
    inputs, held, judges = calibration(data, teacher, full)
    harms = _kept(
        folder / HARMS, lambda: measure_harms(full, teacher, inputs, held, worth, seed=seed, progress=progress)
    )
    plans = [full]
    free = latency_table is None and find_spec("torch_pruning") and not {"width", "inner"} & set(options)
    asked = {name: options[name] for name in ("ignore", "only") if name in options}
    places = (
        _places(folder, lambda: measure_places(teacher, x, inputs, held, table, **asked, progress=progress))
        if free
        else ()
    )
    if none and not places:
        raise none
    if free and not places:
        plans += _narrower(teacher, example, wishes, say, progress)
    known = Measured(tuple(plans), table, harms, places, inputs, held, judges)

    def candidates(bounds: Mapping[str, Any], file: Path) -> list[Proposal]:
        def find() -> dict[str, Any]:
            made = propose_candidates(known, teacher, x, bounds, measured=latency_table is None, progress=progress)
            return {"plans": [{**asdict(p), "plan": p.plan.to_dict()} for p in made]}

        kept = _kept(file, find)["plans"]  # a clock would not give the same again
        return [Proposal(**{**p, "plan": Plan.from_dict(p["plan"])}) for p in kept]

    def attempt(name: str, proposal: Proposal, epochs: int, images: Loaders = data) -> nn.Module:
        options = {**(trial or {}), "seed": seed, "epochs": epochs}
        return _try(folder / name, proposal, teacher, images, known, options, reporter())

    if by_accuracy:
        assert trial is not None
        assert accuracy is not None
        points, epochs = parse_points(budget["accuracy"]), trial["epochs"]
        best = fastest(
            folder, accuracy(teacher), points, candidates, attempt, accuracy, epochs, say,
            higher_is_better=higher_is_better,
        )  # fmt: skip
        say(f"chosen: {best.describe()}")
        return best.plan
    found = candidates(budget, folder / CANDIDATES)
    say("\n".join(f"candidate {i + 1}: {p.describe()}" for i, p in enumerate(found)))
    distances: list[float | None] = [None] * len(found)
    if trial is not None and len(found) > 1:
        epoch = len(data.train)
        steps = max(1, min(epoch, trial["epochs"] * epoch // (2 * len(found))))  # at most half as long as the job
        few = replace(data, train=Brief(data.train, steps), evaluation=None)
        say(f"trying {len(found)} candidates, {steps} step{'s' if steps > 1 else ''} each")
        students = (attempt(f"trial-{i}", p, 1, few) for i, p in enumerate(found))
        distances = [_distance(student, teacher, judges) for student in students]
    first = min(range(len(found)), key=lambda i: distances[i] or 0.0)
    rows = [{**p.row(), "distance_after_trial": d} for p, d in zip(found, distances, strict=True)]
    write_atomic(folder / SEARCH, json.dumps({"chosen": first, "candidates": rows}, indent=2) + "\n")
    remove_trials(folder)
    (folder / CANDIDATES).unlink()  # the trials were of these
    say(f"chosen: {found[first].describe()}")
    return found[first].plan


def about_milliseconds(folder: Path, made: Plan, latency_table: str | Path | None = None) -> list[str]:
    """A line on what the chosen plan takes where it was searched for; none where the files of the search are gone."""
    file = Path(latency_table or folder / LATENCY)
    if not file.is_file() or not (folder / SEARCH).is_file():
        return []
    table, mine = LatencyTable.load(file), Proposal(made, 0.0).row()
    found = read_object(folder / SEARCH, MAX_PLAN)
    rows = [*found.get("candidates", ()), *found.get("tried", ())]
    lines = []
    for row in [r for r in rows if all(r.get(k) == mine[k] for k in ("runs", "width", "inner"))][:1]:
        ms, how = (row["predicted_ms"], "predicted") if row["ms"] is None else (row["ms"], "measured")
        where = f"{table.where}, {table.cpu}"
        lines.append(f"Searched for {where}: {table.ms:.3f} ms before, {ms:.3f} ms after, {how} before training.")
        if table.runtime.endswith("int8"):
            lines.append(f"Files of 8 bits: pdecnn export {folder / 'student'} --int8 --data ...")
    return lines


def _table(
    folder: Path,
    full: Plan,
    teacher: nn.Module,
    x: Tensor,
    names: Sequence[str],
    runtime: str | None,
    given: str | Path | None,
    progress: ProgressCallback | None,
) -> LatencyTable:
    if given is not None:
        table = LatencyTable.load(given)
        table.check(full, runtime)
        return table
    file = folder / LATENCY
    if not file.is_file():
        measure_sites(full, teacher, x, runtime=runtime or RUNTIME, replacements=names, progress=progress).save(file)
    return LatencyTable.load(file)


def _places(folder: Path, find: Callable[[], Sequence[Place]]) -> tuple[Place, ...]:
    kept = _kept(folder / PLACES, lambda: {"places": [asdict(place) for place in find()]})["places"]
    return tuple(from_plain(Place, values, f"{folder / PLACES}: a place") for values in kept)


def that_pay(run: Run, names: Sequence[str], table: LatencyTable | None) -> list[str]:
    """The replacements that were timed and take less than a block: instead of any other, one more block may stay."""
    choices = choices_at(run, names)
    if table is None:
        return choices
    site = table.of(run)
    return [name for name in choices if name == NOTHING or site.layers.get(name, math.inf) < site.block]


def _narrower(
    teacher: nn.Module,
    example: Any,
    wishes: Mapping[str, Any],
    say: Callable[[str], None],
    progress: ProgressCallback | None,
) -> list[Plan]:
    """Plans of narrower models; none where Torch-Pruning cannot make them."""
    made = []
    for width in WIDTHS[1:]:
        say(f"planning for {width:.0%} of the channels")
        try:
            made.append(plan(teacher, example, **wishes, width=width, progress=progress))
        except ValueError:
            break
    return made


def propose_candidates(
    known: Measured,
    teacher: nn.Module,
    x: Tensor,
    bounds: Mapping[str, Any],
    *,
    measured: bool,
    progress: ProgressCallback | None,
) -> list[Proposal]:
    """The candidates within the bounds.

    Of a model with inner channels: the best of all that may go, and, as harms of the two kinds may not be comparable,
    the best of blocks alone and of inner channels alone. Of one without: some of each width.
    """
    further: dict[str, Any] = {"table": known.table, "measured": measured, "progress": progress}
    ways: list[tuple[Plan, Harms, Sequence[Place], int]]
    ways = [(p, known.harms, (), -(-COUNT // len(known.plans))) for p in known.plans]
    if known.places:
        (full,) = known.plans
        ways = [(full, known.harms, known.places, 1), (full, known.harms, (), 1), (full, {}, known.places, 1)]
    found, errors = [], []
    for way, harms, places, count in ways:
        try:
            found.append(propose_plans(way, teacher, x, bounds, harms, places=places, count=count, **further))
        except BudgetError as error:  # another way may meet it
            errors.append(error)
    if not found:
        raise errors[0]
    different: list[Proposal] = []
    for proposal in [p for part in found for p in part]:
        different += [proposal] if all(proposal.plan != other.plan for other in different) else []
    return different[:COUNT]


def _kept(file: Path, find: Callable[[], Any]) -> Any:
    """What a file holds; if there is none, what is found now and written to it."""
    if not file.is_file():
        write_atomic(file, json.dumps(find(), indent=2) + "\n")
    return read_object(file, MAX_PLAN)


def calibration(data: Loaders, teacher: nn.Module, made: Plan) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """A few batches, fewer images for large networks; one more that is held out; and what trials are judged by."""
    source = data.plain if data.plain is not None else (b for b in data.train.batches(0))
    batches = [ordered(as_batch(b)[0]) for b in islice(source, BATCHES + 1)]
    most = max(FEWEST, int(WORK / max(made.before.macs, 1)) // len(batches))
    inputs, held = hold_out([b[:most] for b in batches], teacher)
    rest = [part for b in batches for part in b[most:].split(most) if len(part)]
    return inputs, held, [held, *rest[:JUDGES]]


def _try(
    folder: Path,
    proposal: Proposal,
    teacher: nn.Module,
    data: Loaders,
    known: Measured,
    trial: Mapping[str, Any],
    reporter: Reporter,
) -> nn.Module:
    """The student of a candidate after a distillation."""
    seed_everything(trial["seed"], "condense")
    student = proposal.plan.apply(teacher)
    fit_layers(student, teacher, proposal.plan, [*known.inputs, known.held], seed=trial["seed"])
    outcome = distill(student, teacher, data, run_dir=folder, resume=folder.is_dir(), reporter=reporter, **trial)
    if outcome.status == "stopped":
        raise StoppedError(f"stopped at step {outcome.step} of trying a plan; all that was done is in {folder.parent}")
    return student


def _distance(student: nn.Module, teacher: nn.Module, batches: Sequence[Any]) -> float:
    """How far the answers are from the teacher's, on images of no augmentation."""
    far = 0.0
    with torch.no_grad(), eval_mode(student), eval_mode(teacher):
        for x in batches:
            far += len(x) * answer_distance(student(*arguments(student, x)), teacher(*arguments(teacher, x)))
    return far / sum(map(len, batches))
