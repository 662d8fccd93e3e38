"""The whole way: a teacher and images in; a plan, a condensed student, its recovery, and the comparison out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from pdecnn.condensation.compare import Figures, comparison_rows, figures
from pdecnn.condensation.deployed import OnnxComparison, compare_onnx
from pdecnn.condensation.distill import LR, NEW, distill, known_to
from pdecnn.condensation.fit import Fitted, fit_layers
from pdecnn.condensation.plan import Plan, plan
from pdecnn.condensation.progress import ProgressCallback
from pdecnn.condensation.saved import save
from pdecnn.condensation.stages import DISTILLATION, FITTED, Stages, digest
from pdecnn.condensation.worse import what_got_worse
from pdecnn.deploy.check import ExportError
from pdecnn.shared.tables import make_table
from pdecnn.training import Loaders, evaluate, load_checkpoint
from pdecnn.training.check import check_data
from pdecnn.training.progress import Reporter
from pdecnn.training.seeding import seed_everything

SAMPLES = 64  # images that the ONNX files are compared on


class StoppedError(Exception):
    """The job was stopped while it trained; what was finished is on disk."""


@dataclass(frozen=True)
class JobResult:
    """What `run_job` did and found; accuracies in per cent, by stage in the order of the job.

    `onnx` is None where it could not be had; `notes` then say why. Without labels (`labelled`) accuracies are agreement
    with the teacher; without evaluation images there are none.
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

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table: label, before, after and change as text."""
        rows = [*comparison_rows(self.before, self.after, self.speedups), *(self.onnx.rows() if self.onnx else ())]
        if self.labelled:
            return rows
        return [("agreement with the teacher, %", *row[1:]) if row[0] == "accuracy, %" else row for row in rows]

    @property
    def worse(self) -> list[str]:
        """What did not get better, and why."""
        return what_got_worse(self.before, self.after, self.plan, self.speedups, self.onnx)

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
    image: Tensor | None = None,
    epochs: int = 10,
    seed: int = 0,
    lr: float = LR,
    new: float = NEW,
    plan_options: Mapping[str, Any] | None = None,
    fit_options: Mapping[str, Any] | None = None,
    distill_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    arguments: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
    progress: ProgressCallback | None = None,
    reporter: Callable[[], Reporter] = Reporter,
) -> tuple[nn.Module, JobResult]:
    """Condenses a classifier and recovers its accuracy; returns the student, and everything is written to `folder`.

    Killed at any moment, it goes on with `resume=True` and gives the same bits.

    Args:
        folder: Gets plan.json, the checkpoints `teacher` and `student`, result.json, report.html and, with the extra
            `export`, student.onnx; also job.json, which says how far it has come.
        teacher: The model; it is not changed.
        data: Its images.
        image: One input; that of the first training image by default.
        epochs: Epochs of distillation.
        seed: Seed of the student's new layers and of the distillation.
        lr: Learning rate of the blocks that stay.
        new: How many times larger that of the new layers is.
        plan_options: Options of `plan`.
        fit_options: Options of `fit_layers`.
        distill_options: Further options of `distill`.
        resume: Continue the job in the folder.
        arguments: What the command was given; kept in job.json.
        say: Called with a line about each step.
        progress: Shows the planning, as in `plan`.
        reporter: Makes what shows the progress of the training.
    """
    began, folder, say = perf_counter(), Path(folder), say or (lambda text: None)
    data = known_to(teacher, check_data(teacher.eval(), data))
    options, fitting = dict(plan_options or {}), dict(fit_options or {})
    settings = {
        "model": type(teacher).__name__, "weights": digest(teacher), "epochs": epochs, "seed": seed, "lr": lr,
        "new": new, "input": data.input, "classes": list(data.classes), "steps": len(data.train),
        "plan": {key: str(value) for key, value in options.items() if key != "progress"},
        "fit": {key: str(value) for key, value in fitting.items()},
        "distill": {key: str(value) for key, value in (distill_options or {}).items()},
    }  # fmt: skip
    stages = Stages(folder, settings, resume=resume, arguments=arguments)
    accuracies: dict[str, float] = {}

    def measured(stage: str, model: nn.Module) -> None:
        if data.evaluation is not None:
            evaluation = data.evaluation
            accuracies[stage] = stages.value(stage, lambda: evaluate(model, evaluation).accuracy)

    notes: dict[str, Any] = {"classes": list(data.classes), "input": data.input}
    measured("teacher", teacher)
    if not (folder / "teacher" / "config.json").is_file() or not resume:
        save(teacher, folder / "teacher", base=options.get("base"), **notes, accuracy=accuracies.get("teacher"))
    example = torch.zeros(1, *data.input["shape"]) if image is None else image[:1]

    if resume and (folder / "plan.json").is_file():
        made = Plan.load(folder / "plan.json")
    else:
        made = plan(teacher, example, **options, progress=progress)
        made.save(folder / "plan.json")
    seed_everything(seed, "condense")
    student = made.apply(teacher)
    if stages.finished:
        say(f"the job in {folder} is finished")
        stages.tidy()
        load_checkpoint(folder / "student", model=student)
        return student, JobResult.from_dict(stages.result(), folder)
    measured("new layers untrained", student)

    say("fitting each Global layer to the feature maps of the blocks it replaces, without labels")
    batches = data.plain if data.plain is not None else (b for b in data.train.batches(0))

    def fit_them() -> list[dict[str, Any]]:
        seed_everything(seed, "fit")
        return [f.to_dict() for f in fit_layers(student, teacher, made, batches, **{"seed": seed, **fitting})]

    fitted = tuple(Fitted(**f) for f in stages.weights(FITTED, student, fit_them))
    measured("fitted, no labels", student)
    if "fitted, no labels" in accuracies:
        kind = "accuracy without any training on labels" if data.labelled else "agreement with the teacher"
        say(f"{kind}: {accuracies['fitted, no labels']:.2f} %")

    outcome = distill(
        student, teacher, data, epochs=epochs, seed=seed, lr=lr, new=new, recipe={"evaluate_every": 1},
        run_dir=folder / DISTILLATION, resume=(folder / DISTILLATION).is_dir(), reporter=reporter(),
        **(distill_options or {}),
    )  # fmt: skip
    if outcome.status == "stopped":
        stages.add_seconds(perf_counter() - began)
        raise StoppedError(f"stopped at step {outcome.step} of distilling; all that was done is in {folder}")
    measured("distilled", student)

    say("counting, timing, writing")
    ends = {"before": accuracies.get("teacher"), "after": accuracies.get("distilled")}
    save(student, folder / "student", **notes, accuracy=ends["after"])
    files = {n: folder / path / "model.safetensors" for n, path in (("before", "teacher"), ("after", "student"))}
    found, speedups = figures({"before": teacher, "after": student}, example, ends, files)
    say("writing for ONNX Runtime, comparing, timing")
    images = next(iter(data.evaluation or data.plain or data.train.batches(0)))[0][:SAMPLES]
    onnx, lines = deploy(teacher, student, images, folder / "student.onnx", metadata=notes)
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
    )
    write_report(result)
    stages.finish(result.to_dict())
    return student.eval(), result


def write_report(result: JobResult) -> Path:
    """Writes report.html into the folder of a job."""
    room = import_module("pdecnn.viz")  # it stands on this one
    path: Path = room.write_report(result, result.folder / "report.html")
    return path


def deploy(
    teacher: nn.Module, student: nn.Module, images: Tensor, path: Path, *, metadata: Mapping[str, Any] | None = None
) -> tuple[OnnxComparison | None, list[str]]:
    """The comparison in ONNX Runtime, and lines that say what is missing from it and why."""
    notes: list[str] = []
    try:
        return compare_onnx(teacher, student, images, path, say=notes.append, metadata=metadata), notes
    except ImportError as error:  # the extra is not installed
        return None, [f"No ONNX file and no figures of it: {error}"]
    except ExportError as error:
        return None, [f"No {path.name}: {error}"]
