"""The whole way: a teacher and images in; a plan, a condensed student, its recovery, and the comparison out."""

import copy
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.table import Table
from torch import nn

from pdecnn.condensation.apply import NEW as MARK
from pdecnn.condensation.apply import site_modules
from pdecnn.condensation.card import make_card
from pdecnn.condensation.compare import BUSY, Figures, comparison_rows, figures, was_busy
from pdecnn.condensation.deployed import BATCHES, OnnxComparison, compare_onnx
from pdecnn.condensation.distill import LR, NEW, check_recipe, distill, imitation, known_to
from pdecnn.condensation.fastest import remove_trials
from pdecnn.condensation.fit import Fitted, fit_layers
from pdecnn.condensation.plan import Plan, plan
from pdecnn.condensation.propose import check_budget, with_layer_cost
from pdecnn.condensation.replacements import BUILT_IN, NOTHING, STEPS, chosen
from pdecnn.condensation.saved import save
from pdecnn.condensation.stages import DISTILLATION, FITTED, NULL, Stages, StoppedError, digest
from pdecnn.condensation.within import CANDIDATES, HARMS, LATENCY, PLACES, RUNTIME, about_milliseconds, plan_within
from pdecnn.condensation.worse import what_got_worse
from pdecnn.deploy.check import CannotExportError, ExportError
from pdecnn.deploy.served import check_runtime
from pdecnn.layers.steps import serve_steps, set_steps
from pdecnn.shared.files import write_atomic
from pdecnn.shared.progress import ProgressCallback, begin
from pdecnn.shared.tables import make_table
from pdecnn.shared.trees import part, takes_images
from pdecnn.training import Loaders, evaluate, load_checkpoint
from pdecnn.training.check import check_data
from pdecnn.training.checkpoint import CARD, read_config
from pdecnn.training.imitation import OwnLoss
from pdecnn.training.processes import Processes
from pdecnn.training.progress import Reporter
from pdecnn.training.seeding import seed_everything

SAMPLES = 64  # images that the ONNX files are compared on
NULL_STAGE = "null, distilled"


@dataclass(frozen=True)
class JobResult:
    """What `run_job` did and found; accuracies in per cent, by stage in the order of the job.

    `onnx` is None where it could not be had; `notes` then say why. Without labels (`labelled`) accuracies are agreement
    with the teacher; without evaluation images there are none. With a `metric` they are its values.
    """

    folder: Path
    plan: Plan
    before: Figures
    after: Figures
    speedups: dict[str, float]
    accuracies: dict[str, float]
    fitted: tuple[Fitted, ...]
    history: tuple[dict[str, Any], ...]
    seed: int
    seconds: float
    onnx: OnnxComparison | None = None
    notes: tuple[str, ...] = ()
    threads: int = 1
    labelled: bool = True
    metric: str = ""  # what `accuracies` are, if not accuracies
    higher_is_better: bool = True

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table: label, before, after and change as text."""
        rows = [*comparison_rows(self.before, self.after, self.speedups), *(self.onnx.rows() if self.onnx else ())]
        if self.metric:
            b, a = self.before.accuracy or 0.0, self.after.accuracy or 0.0
            label = self.metric + ("" if self.higher_is_better else " (less is better)")
            return [(label, f"{b:.4g}", f"{a:.4g}", f"{a - b:+.4g}") if r[0] == "accuracy, %" else r for r in rows]
        if self.labelled:
            return rows
        return [("agreement with the teacher, %", *row[1:]) if row[0] == "accuracy, %" else row for row in rows]

    @property
    def worse(self) -> list[str]:
        """What did not get better, and why."""
        name = self.metric or ("accuracy, %" if self.labelled else "agreement with the teacher, %")
        found = (self.before, self.after, self.plan, self.speedups, self.onnx)
        return what_got_worse(*found, metric=name, higher_is_better=self.higher_is_better)

    def table(self) -> Table:
        """The rows as a table."""
        table = make_table(f"{self.plan.model}, before and after", ("",), ("before", "after", "change"))
        for row in self.rows():
            table.add_row(*row)
        return table

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "folder"}
        plain = {key: value.to_dict() for key, value in values.items() if hasattr(value, "to_dict")}
        lists = {"fitted": [f.to_dict() for f in self.fitted], "history": list(self.history), "notes": list(self.notes)}
        return {**values, **plain, **lists}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: Path) -> "JobResult":
        """The inverse of `to_dict`."""
        made = {
            "plan": Plan.from_dict(values["plan"]),
            "before": Figures(**values["before"]),
            "after": Figures(**values["after"]),
            "fitted": tuple(Fitted(**f) for f in values["fitted"]),
            "history": tuple(values["history"]),
            "onnx": OnnxComparison.from_dict(values["onnx"]) if values["onnx"] else None,
            "notes": tuple(values["notes"]),
        }
        return cls(**{**values, **made, "folder": folder})


def run_job(
    folder: str | Path,
    teacher: nn.Module,
    data: Loaders,
    *,
    image: Any = None,
    loss: OwnLoss | None = None,
    metric: Any = None,
    epochs: int = 10,
    seed: int = 0,
    lr: float = LR,
    new: float = NEW,
    prepared: Plan | None = None,
    plan_options: Mapping[str, Any] | None = None,
    fit_options: Mapping[str, Any] | None = None,
    distill_options: Mapping[str, Any] | None = None,
    runtime: str | None = None,
    latency_table: str | Path | None = None,
    null: bool = False,
    resume: bool = False,
    arguments: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
    progress: ProgressCallback | None = None,
    reporter: Callable[[], Reporter] = Reporter,
) -> tuple[nn.Module, JobResult]:
    """Condenses a model and recovers what it lost; returns the student, and everything is written to `folder`.

    Killed at any moment, it goes on with `resume=True` and gives the same bits. Under `torchrun` or `accelerate launch`
    every process calls this: the first plans, fits and writes, and all share evaluation and distillation.

    Args:
        folder: Gets plan.json, the checkpoints `teacher` and `student`, result.json, report.html and, with the extra
            `export`, student.onnx; also job.json, which says how far it has come.
        teacher: The model; it is not changed.
        data: Its images.
        image: One input; that of the first training image by default.
        loss: A loss of the user's own, as in `distill`.
        metric: What is measured in place of accuracy, as in `distill`.
        epochs: Epochs of distillation.
        seed: Seed of the student's new layers and of the distillation.
        lr: Learning rate of the blocks that stay.
        new: How many times larger that of the new layers is.
        prepared: A plan of this teacher, such as one that was edited run by run; then nothing is planned here.
        plan_options: Options of `plan`. With a `budget` the plan is searched for: what replaces which blocks, as
            measured on these images and in the `runtime`.
        fit_options: Options of `fit_layers`.
        distill_options: Further options of `distill`.
        runtime: Where milliseconds of a budget are measured: `eager`, `optimized`, `compile`, `onnx`, `onnx-fused`,
            `onnx-int8` or `c`; by default `optimized`, or that of the `latency_table`.
        latency_table: Milliseconds that were measured on another device, by `pdecnn bench --sites`.
        null: Whether to distil the null too: the same blocks gone and nothing in their place, for as many epochs.
        resume: Continue the job in the folder.
        arguments: What the command was given; kept in job.json.
        say: Called with a line about each step.
        progress: Shows everything but the training, as in `plan`.
        reporter: Makes what shows the progress of the training.
    """
    began, processes = perf_counter(), Processes()
    folder = processes.first(lambda: Path(folder).absolute() if processes.count > 1 else Path(folder))
    say = say if say is not None and processes.is_first else (lambda text: None)
    progress = progress if processes.is_first else None
    processes.share(teacher)  # the weights of a network of the user's own may be drawn at random
    options, fitting = dict(plan_options or {}), dict(fit_options or {})
    further = dict(distill_options or {})
    check_wishes(options, further.get("steps"), teacher, runtime)
    if "accuracy" in (options.get("budget") or {}) and (data.evaluation is None or processes.count > 1):
        raise ValueError("condense: a budget of accuracy needs evaluation images and a single process.")
    check_recipe(further.get("recipe"), epochs)
    aims: dict[str, Any] = {k: further[k] for k in ("distance", "features") if k in further}
    aims |= {"loss": loss, "metric": metric}
    own = imitation(teacher.eval(), data, **aims)
    data = known_to(teacher, check_data(teacher, data)) if own is None else data
    larger = own is None or own.higher_is_better
    settings = {
        "model": type(teacher).__name__, "weights": digest(teacher), "epochs": epochs, "seed": seed, "lr": lr,
        "new": new, "input": data.input, "classes": list(data.classes), "steps": len(data.train),
        "plan": {key: str(value) for key, value in options.items() if key != "progress"}
        if prepared is None
        else prepared.to_dict(),
        "fit": {key: str(value) for key, value in fitting.items()}, "runtime": runtime or RUNTIME, "null": null,
        "distill": {key: getattr(value, "__qualname__", str(value)) for key, value in {**further, **aims}.items()},
    }  # fmt: skip
    learning = {
        **further, "recipe": {"evaluate_every": 1, **further.get("recipe", {})}, "loss": loss, "metric": metric,
        "epochs": epochs, "seed": seed, "lr": lr, "new": new,
    }  # fmt: skip
    for_one_K = {**learning, "steps": None}  # candidates and the null may have no steps
    stages = Stages(folder, settings, resume=resume, arguments=arguments, processes=processes)
    accuracies: dict[str, float] = {}

    def accuracy(model: nn.Module) -> float:
        judge: Any = partial(evaluate, num_classes=data.num_classes) if own is None else own.evaluate
        shared = {"rank": processes.rank, "world_size": processes.count, "reduce": processes.sum}
        found: float = judge(model, data.evaluation, **shared, progress=progress).accuracy
        return found

    def measured(stage: str, model: nn.Module) -> None:
        if data.evaluation is not None:
            accuracies[stage] = stages.value(stage, lambda: accuracy(model))

    notes: dict[str, Any] = {"classes": list(data.classes), "input": data.input, "data": data.name or None}
    measured("teacher", teacher)
    example = torch.zeros(1, *data.input["shape"]) if image is None else image
    example = part(example, slice(1), takes_images(teacher, example))

    def plan_job() -> Plan:
        if prepared is not None:
            return prepared
        if not options.get("budget"):
            return plan(teacher, example, **options, progress=progress)
        if not resume:  # of an earlier job
            for name in (LATENCY, HARMS, PLACES, CANDIDATES):
                (folder / name).unlink(missing_ok=True)
            remove_trials(folder)
        wishes = {key: value for key, value in options.items() if key != "budget"}
        return plan_within(
            folder, teacher, data, example, options["budget"], wishes, runtime=runtime, latency_table=latency_table,
            trial=for_one_K if processes.count == 1 else None, seed=seed, say=say,
            accuracy=None if data.evaluation is None else accuracy, higher_is_better=larger, progress=progress,
            reporter=reporter,
        )  # fmt: skip

    def plan_it() -> dict[str, Any]:
        if not (folder / "teacher" / "config.json").is_file() or not resume:
            before = {**notes, "accuracy": accuracies.get("teacher")}
            save(teacher, folder / "teacher", base=options.get("base"), card=False, **before)
        if not (resume and (folder / "plan.json").is_file()):
            plan_job().save(folder / "plan.json")
        return Plan.load(folder / "plan.json").to_dict()

    made = Plan.from_dict(processes.first(plan_it))
    seed_everything(seed, "condense")
    student = made.apply(teacher)
    if stages.finished:
        say(f"the job in {folder} is finished")
        stages.tidy()
        processes.first(lambda: load_checkpoint(folder / "student", model=student) and None)
        processes.share(student)
        result = JobResult.from_dict(stages.result(), folder)
        processes.first(
            lambda: None if (folder / "student" / CARD).is_file() else write_pages(result, student, example)
        )
        return student, result
    check_steps(further.get("steps"), student)
    measured("new layers untrained", student)

    say("fitting each new layer to the feature maps of the blocks it replaces, without labels")

    def images() -> Any:
        return data.plain if data.plain is not None else (b for b in data.train.batches(0))

    def fit_them() -> list[dict[str, Any]]:
        seed_everything(seed, "fit")
        return [f.to_dict() for f in fit_shown(student, teacher, made, images(), progress, **{"seed": seed, **fitting})]

    fitted = tuple(Fitted(**f) for f in stages.weights(FITTED, student, fit_them))
    measured("fitted, no labels", student)
    if "fitted, no labels" in accuracies and own is None:
        kind = "accuracy without any training on labels" if data.labelled else "agreement with the teacher"
        say(f"{kind}: {accuracies['fitted, no labels']:.2f} %")

    outcome = distill(
        student, teacher, data, run_dir=folder / DISTILLATION,
        resume=processes.first((folder / DISTILLATION).is_dir), reporter=reporter(), **learning,
    )  # fmt: skip
    if outcome.status == "stopped":
        stages.add_seconds(perf_counter() - began)
        raise StoppedError(f"stopped at step {outcome.step} of distilling; all that was done is in {folder}")
    processes.share(student)
    measured("distilled", student)
    bare = without_layers(made)
    if null and has_layers(made):
        dropped = bare.apply(teacher)
        fit_layers(dropped, teacher, bare, images(), seed=seed) if bare.inner else None
        say("distilling the null: the same blocks gone, nothing in their place")
        end = distill(
            dropped, teacher, data, run_dir=folder / NULL, resume=processes.first((folder / NULL).is_dir),
            reporter=reporter(), **for_one_K,
        )  # fmt: skip
        if end.status == "stopped":
            raise StoppedError(f"stopped at step {end.step} of distilling the null; all that was done is in {folder}")
        processes.share(dropped)
        measured(NULL_STAGE, dropped)

    def compare_them() -> JobResult:
        say("counting, timing, writing")
        ends = {"before": accuracies.get("teacher"), "after": accuracies.get("distilled")}
        save(student, folder / "student", card=False, **notes, accuracy=ends["after"], epochs=epochs, seeds=[seed])
        files = {n: folder / path / "model.safetensors" for n, path in (("before", "teacher"), ("after", "student"))}
        batches = BATCHES if own is None else BATCHES[:1]
        sides = {"before": teacher, "after": student}
        seconds = outcome.wall_time
        found, speedups = figures(sides, example, ends, files, batches=batches, progress=progress)
        say("writing for ONNX Runtime, comparing, timing")
        shown = next(iter(data.evaluation or data.plain or data.train.batches(0)))[0]
        shown = part(shown, slice(SAMPLES if own is None else 2), takes_images(teacher, shown))
        target = folder / "student.onnx"
        onnx, lines = deploy(teacher, student, shown, target, batches, metadata=notes, progress=progress)
        times = [
            (getattr(found["before"], f"ms_{n}"), getattr(found["after"], f"ms_{n}"), ratio)
            for n, ratio in speedups.items()
        ]
        times += [time[1:] for time in onnx.times()] if onnx else []
        lines += [BUSY] if was_busy(times) else []
        lines += [about_null(made, bare, accuracies, seconds)]
        if prepared is None and {"latency_ms", "accuracy"} & set(options.get("budget") or {}):
            lines += about_milliseconds(folder, made, latency_table)
        result = JobResult(
            folder=folder,
            plan=made,
            before=found["before"],
            after=found["after"],
            speedups=speedups,
            accuracies=accuracies,
            fitted=fitted,
            history=tuple(outcome.history),
            seed=seed,
            seconds=stages.seconds + perf_counter() - began,
            onnx=onnx,
            notes=tuple(([data.note] if data.note else []) + lines),
            threads=torch.get_num_threads(),
            labelled=data.labelled,
            metric=own.metric_name if own else "",
            higher_is_better=larger,
        )
        stages.finish(result.to_dict())  # the pages can be made again from it
        write_pages(result, student, example)
        return result

    return student.eval(), processes.first(compare_them)


def fit_shown(
    student: nn.Module, teacher: nn.Module, plan: Plan, data: Any, progress: ProgressCallback | None, **options: Any
) -> list[Fitted]:
    """`fit_layers` as a stage with a part for each layer."""
    total = sum(hasattr(layer, MARK) for layer in site_modules(student, plan.runs).values())
    done = begin(progress if total else None, "fitting new layers", total)
    return fit_layers(student, teacher, plan, data, **{"progress": lambda line: done(), "solving": progress, **options})


def without_layers(made: Plan) -> Plan:
    """The null of a plan: the same blocks go, and nothing comes in their place."""
    return replace(made, runs=tuple(with_layer_cost(chosen(run, NOTHING)) for run in made.runs))


def has_layers(made: Plan) -> bool:
    """Whether a plan puts anything in the place of blocks."""
    return any(run.condenses and run.replacement != NOTHING for run in made.runs)


def about_null(made: Plan, bare: Plan, accuracies: Mapping[str, float], seconds: float) -> str:
    """What the new layers are worth, or what it costs to know."""
    if not has_layers(made):
        return "No new layer stands where blocks were: this network is its own null."
    if NULL_STAGE not in accuracies:
        cost = f"--null also distils the network without them, about {seconds:.0f} s"
        return f"What the new layers are worth is not known: {cost}."
    gain = accuracies.get("distilled", 0.0) - accuracies[NULL_STAGE]
    return (
        f"The null, nothing in the place of these blocks, as many epochs: {accuracies[NULL_STAGE]:.2f}, "
        f"{bare.after.params:,} parameters; the new layers are worth {gain:+.2f}."
    )


def check_wishes(
    options: Mapping[str, Any], steps: tuple[int, int] | None, teacher: nn.Module, runtime: str | None
) -> None:
    """A ValueError for what a job cannot do, so that nobody waits for it."""
    check_budget(options.get("budget") or {})
    if runtime is not None:
        check_runtime("condense", runtime)
    name = options.get("replacement")
    if steps is not None and name in BUILT_IN and name not in STEPS and not set_steps(copy.deepcopy(teacher), steps[0]):
        raise ValueError(
            f"condense: one net for every K from {steps[0]} to {steps[1]} needs layers with time steps, and "
            f"replacement={name!r} has none. Use {' or '.join(STEPS)}."
        )


def check_steps(steps: tuple[int, int] | None, student: nn.Module) -> None:
    """Raises what keeps a student from serving every K of a range, before it is fitted."""
    if steps is not None:
        serve_steps(copy.deepcopy(student), *steps)


def write_pages(result: JobResult, student: nn.Module, example: Any) -> None:
    """Writes report.html and, last, the card of the student."""
    write_report(result)
    write_student_card(result, student, example)


def write_report(result: JobResult) -> Path:
    """Writes report.html into the folder of a job."""
    room = import_module("pdecnn.viz")  # it stands on this one
    path: Path = room.write_report(result, result.folder / "report.html")
    return path


def write_student_card(result: JobResult, student: nn.Module, example: Any) -> None:
    """Writes the card of the student, with the comparison of the job."""
    home = result.folder / "student"
    config = read_config(home)
    if result.metric or not result.labelled:  # then what is called accuracy is something else; the comparison names it
        config.pop("accuracy")
    told = {"example": example, "timed": False, "comparison": result.rows()}
    write_atomic(home / CARD, make_card(student, config, result.folder.absolute().name, **told))


def deploy(
    teacher: nn.Module,
    student: nn.Module,
    images: Any,
    path: Path,
    batches: Sequence[int] = BATCHES,
    *,
    metadata: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[OnnxComparison | None, list[str]]:
    """The comparison in ONNX Runtime, and lines that say what is missing from it and why."""
    notes: list[str] = []
    further: dict[str, Any] = {"say": notes.append, "batches": batches, "metadata": metadata, "progress": progress}
    try:
        return compare_onnx(teacher, student, images, path, **further), notes
    except ImportError as error:  # the extra is not installed
        return None, [f"No ONNX file and no figures of it: {error}"]
    except (ExportError, CannotExportError) as error:
        return None, [f"No {path.name}: {error}"]
    except (ValueError, TypeError) as error:  # a defect, but hours of training are not lost for it
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}, line {at.lineno}"
        return None, [f"No {path.name}, by a defect of the export: {type(error).__name__} in {where}: {error}"]
