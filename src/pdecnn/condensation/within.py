"""The plan of a job that has a budget: measured in its runtime, its best candidates distilled for a moment."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.condensation.distill import distill
from pdecnn.condensation.fit import answer_distance, fit_layers, hold_out
from pdecnn.condensation.harm import measure_harms
from pdecnn.condensation.latency import LatencyTable, measure_sites
from pdecnn.condensation.plan import MAX_PLAN, Plan, plan
from pdecnn.condensation.replacements import NOTHING, PDE
from pdecnn.condensation.search import CANDIDATES as REPLACEMENTS
from pdecnn.condensation.search import Proposal, propose_plans
from pdecnn.condensation.stages import StoppedError
from pdecnn.shared.files import remove_folder, write_atomic
from pdecnn.shared.modules import eval_mode, tensors_in
from pdecnn.shared.progress import ProgressCallback
from pdecnn.shared.reading import read_object
from pdecnn.shared.trees import arguments
from pdecnn.training import Loaders
from pdecnn.training.batches import as_batch
from pdecnn.training.progress import Reporter
from pdecnn.training.seeding import seed_everything

LATENCY, HARMS, CANDIDATES, SEARCH = "latency.json", "harms.json", "candidates.json", "search.json"
WORK = 2e11  # multiply-adds that one pass over the calibration images may take
BATCHES = 4


def plan_within(
    folder: Path,
    teacher: nn.Module,
    data: Loaders,
    example: Any,
    budget: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    runtime: str = "optimized",
    latency_table: str | Path | None = None,
    trial: Mapping[str, Any] | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    progress: ProgressCallback | None = None,
    reporter: Callable[[], Reporter] = Reporter,
) -> Plan:
    """The best plan within `budget`; what was measured is kept in `folder`, so that a killed job goes on from there.

    Args:
        folder: Gets latency.json, harms.json and, in the end, search.json.
        teacher: The model before.
        data: Its images.
        example: One input.
        budget: As in `plan`.
        options: Further options of `plan`; a `replacement` restricts the choice to it and nothing.
        runtime: Where milliseconds are measured: one of `pdecnn.deploy.bench.RUNTIMES`.
        latency_table: A file of `pdecnn bench --sites`, measured elsewhere, in place of measuring here.
        trial: Options of `distill` for the short distillation of the best three; None takes the first.
        seed: Seed of all that is drawn.
        say: Called with a line about each step.
        progress: As in `plan`.
        reporter: Makes what shows the progress of the training.
    """
    images = tensors_in(example)
    if len(images) != 1 or not isinstance(images[0], Tensor):
        raise ValueError("condense: a budget is for models of one tensor; plan with keep= and replacement= instead.")
    x = images[0]
    given = options.get("replacement")
    names = REPLACEMENTS if given is None else tuple(dict.fromkeys((NOTHING, str(given))))
    full = plan(teacher, example, **{**options, "replacement": given or PDE}, progress=progress)
    table = _table(folder, full, teacher, x, budget, names, runtime, latency_table, progress)
    if table:
        say(f"{table.runtime}, {table.threads} thread(s): {table.ms:.3f} ms before")
    inputs, held = _calibration(data, teacher, full)
    harms = _kept(
        folder / HARMS, lambda: measure_harms(full, teacher, inputs, held, names, seed=seed, progress=progress)
    )

    def propose() -> dict[str, Any]:
        here = latency_table is None
        made = propose_plans(full, teacher, x, budget, harms, table, measured=here, progress=progress)
        return {"plans": [{**asdict(p), "plan": p.plan.to_dict()} for p in made]}

    kept = _kept(folder / CANDIDATES, propose)["plans"]  # a clock would not give the same again
    found = [Proposal(**{**p, "plan": Plan.from_dict(p["plan"])}) for p in kept]
    say("\n".join(f"candidate {i + 1}: {describe_plan(p)}" for i, p in enumerate(found)))
    distances = [0.0]
    if trial is not None and len(found) > 1:
        briefly = partial(_try, teacher=teacher, data=data, held=held, inputs=inputs, trial={"seed": seed, **trial})
        distances = [briefly(folder / f"trial-{i}", p, reporter=reporter()) for i, p in enumerate(found)]
    best = min(range(len(distances)), key=distances.__getitem__)
    rows = [{**_row(p), "distance_after_trial": d} for p, d in zip(found, distances, strict=False)]
    write_atomic(folder / SEARCH, json.dumps({"chosen": best, "candidates": rows}, indent=2) + "\n")
    for i in range(len(found)):
        if (folder / f"trial-{i}").is_dir():
            remove_folder(folder / f"trial-{i}")
    (folder / CANDIDATES).unlink()  # the trials are of these
    say(f"chosen: {describe_plan(found[best])}")
    return found[best].plan


def describe_plan(p: Proposal) -> str:
    """What becomes of each run, in one line."""
    parts = []
    for run in p.plan.runs:
        layer = "" if run.replacement == NOTHING or not run.condenses else f"+{run.replacement}"
        parts.append(f"{run.path} {len(run.units)}->{run.keep if run.condenses else len(run.units)}{layer}")
    ms = "" if p.ms is None else f"; {p.ms:.3f} ms measured, {p.predicted_ms:.3f} predicted"
    return ", ".join(parts) + ms


def _row(p: Proposal) -> dict[str, Any]:
    runs = {r.path: {"keep": r.keep, "of": len(r.units), "replacement": r.replacement, "K": r.K} for r in p.plan.runs}
    return {"runs": runs, "harm": p.harm, "predicted_ms": p.predicted_ms, "ms": p.ms}


def _table(
    folder: Path,
    full: Plan,
    teacher: nn.Module,
    x: Tensor,
    budget: Mapping[str, Any],
    names: Sequence[str],
    runtime: str,
    given: str | Path | None,
    progress: ProgressCallback | None,
) -> LatencyTable | None:
    if given is not None:
        return LatencyTable.load(given)
    if "latency_ms" not in budget:
        return None
    file = folder / LATENCY
    if not file.is_file():
        measure_sites(full, teacher, x, runtime=runtime, replacements=names, progress=progress).save(file)
    return LatencyTable.load(file)


def _kept(file: Path, find: Callable[[], Any]) -> Any:
    """What a file holds; if there is none, what is found now and written to it."""
    if not file.is_file():
        write_atomic(file, json.dumps(find(), indent=2) + "\n")
    return read_object(file, MAX_PLAN)


def _calibration(data: Loaders, teacher: nn.Module, made: Plan) -> tuple[list[Any], Any]:
    """A few batches, fewer images for large networks, and one more that is held out."""
    source = data.plain if data.plain is not None else (b for b in data.train.batches(0))
    batches = [as_batch(b)[0] for b in islice(source, BATCHES + 1)]
    most = max(8, int(WORK / max(made.before.macs, 1)) // len(batches))
    return hold_out([b[:most] for b in batches], teacher)


def _try(
    folder: Path,
    proposal: Proposal,
    teacher: nn.Module,
    data: Loaders,
    held: Any,
    inputs: Sequence[Any],
    trial: Mapping[str, Any],
    reporter: Reporter,
) -> float:
    """How far the answers are from the teacher's after a short distillation, on images of no augmentation."""
    seed_everything(trial["seed"], "condense")
    student = proposal.plan.apply(teacher)
    fit_layers(student, teacher, proposal.plan, [*inputs, held], seed=trial["seed"])
    outcome = distill(student, teacher, data, run_dir=folder, resume=folder.is_dir(), reporter=reporter, **trial)
    if outcome.status == "stopped":
        raise StoppedError(f"stopped at step {outcome.step} of trying a plan; all that was done is in {folder.parent}")
    with torch.no_grad(), eval_mode(student), eval_mode(teacher):
        return answer_distance(student(*arguments(student, held)), teacher(*arguments(teacher, held)))
