"""The whole way on the embedded data: a teacher, a plan, a condensed student, its recovery, and the comparison."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import timm
import torch
from torch import nn

from pdecnn.condensation.checkpoint import describe, save_condensed
from pdecnn.condensation.compare import Figures, figures
from pdecnn.condensation.deployed import OnnxComparison, compare_onnx
from pdecnn.condensation.distill import distill
from pdecnn.condensation.fit import Fitted, fit_layers
from pdecnn.condensation.plan import Plan, plan
from pdecnn.condensation.progress import Report
from pdecnn.deploy.check import ExportError
from pdecnn.shared.files import clean_up, saving, write_atomic
from pdecnn.training import Dataset, EvalLoader, evaluate, fit, load_dataset, load_recipe, save_checkpoint
from pdecnn.training.progress import Reporter
from pdecnn.training.seeding import seed_everything

DATA, TEACHER, RECIPE = "fashion-mini", "fashion_resnet32.fashion_mini", "quick/fashion-teacher"
AUGMENT = {"pad": 2, "flip": 0.5}


class StoppedError(Exception):
    """The job was stopped while it trained; what was finished is on disk."""


@dataclass(frozen=True)
class JobResult:
    """What `run_job` did and found; accuracies in per cent, by stage in the order of the job.

    `onnx` is None where it could not be had; `notes` then say why.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "plan": self.plan.to_dict(),
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "speedups": self.speedups,
            "accuracies": self.accuracies,
            "fitted": [f.to_dict() for f in self.fitted],
            "history": list(self.history),
            "seed": self.seed,
            "seconds": self.seconds,
            "onnx": self.onnx and self.onnx.to_dict(),
            "notes": list(self.notes),
            "threads": self.threads,
        }


def run_job(
    folder: str | Path,
    *,
    epochs: int = 10,
    seed: int = 0,
    train_teacher: bool = False,
    plan_options: Mapping[str, Any] | None = None,
    data: Dataset | None = None,
    say: Callable[[str], None] | None = None,
    progress: Report | None = None,
    reporter: Callable[[], Reporter] = Reporter,
) -> JobResult:
    """Condenses a ResNet-32 on the embedded images and recovers its accuracy; everything is written to `folder`.

    Args:
        folder: Gets plan.json, the checkpoints `teacher` and `student`, result.json and, with the extra `export`,
            student.onnx.
        epochs: Epochs of distillation.
        seed: Seed of the student's new layers and of the distillation.
        train_teacher: Train the teacher anew instead of loading the weights that ship in the package.
        plan_options: Options of `plan`.
        data: Another dataset of grey images; the embedded one by default.
        say: Called with a line about each step.
        progress: Shows the planning, as in `plan`.
        reporter: Makes what shows the progress of the training.
    """
    start, folder, say = perf_counter(), Path(folder), say or (lambda text: None)
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
    clean_up(folder)
    data = load_dataset(DATA) if data is None else data
    teacher = _teacher(train_teacher, data, folder, say, reporter)
    image = torch.zeros(1, *data.image_shape)
    test = EvalLoader(data.test, 250, data.mean, data.std)
    accuracies = {"teacher": evaluate(teacher, test).accuracy}
    save_checkpoint(folder / "teacher", teacher, {"model": describe(teacher), "accuracy": accuracies["teacher"]})

    seed_everything(seed, "condense")
    made = plan(teacher, image, **(plan_options or {}), progress=progress)
    made.save(folder / "plan.json")
    student = made.apply(teacher)
    accuracies["new layers untrained"] = evaluate(student, test).accuracy

    say("fitting each Global layer to the feature maps of the blocks it replaces, without labels")
    fitted = fit_layers(student, teacher, made, EvalLoader(data.train, 128, data.mean, data.std), seed=seed)
    accuracies["fitted, no labels"] = evaluate(student, test).accuracy
    say(f"accuracy without any training on labels: {accuracies['fitted, no labels']:.2f} %")

    settings = {"evaluate_every": 1}
    outcome = distill(
        student, teacher, data, epochs=epochs, seed=seed, augment=AUGMENT, recipe=settings, reporter=reporter()
    )
    if outcome.status == "stopped":
        raise StoppedError(f"stopped at step {outcome.step} of distilling; the plan and the teacher are in {folder}")
    accuracies["distilled"] = evaluate(student, test).accuracy

    say("counting, timing, writing")
    save_condensed(folder / "student", student, accuracy=accuracies["distilled"])
    files = {n: folder / path / "model.safetensors" for n, path in (("before", "teacher"), ("after", "student"))}
    named = {"before": teacher, "after": student}
    found, speedups = figures(named, image, {"before": accuracies["teacher"], "after": accuracies["distilled"]}, files)
    say("writing for ONNX Runtime, comparing, timing")
    images, _ = next(iter(EvalLoader(data.test, 64, data.mean, data.std)))
    onnx, notes = deploy(teacher, student, images, folder / "student.onnx")
    result = JobResult(
        folder=folder,
        plan=made,
        before=found["before"],
        after=found["after"],
        speedups=speedups,
        accuracies=accuracies,
        fitted=tuple(fitted),
        history=tuple(outcome.history),
        seed=seed,
        seconds=perf_counter() - start,
        onnx=onnx,
        notes=tuple(notes),
        threads=torch.get_num_threads(),
    )
    write_atomic(folder / "result.json", json.dumps(result.to_dict(), indent=2) + "\n")
    return result


def _teacher(
    train: bool, data: Dataset, folder: Path, say: Callable[[str], None], reporter: Callable[[], Reporter]
) -> nn.Module:
    if not train and timm.models.is_model_pretrained(TEACHER):
        say(f"loading the teacher {TEACHER}")
        loaded: nn.Module = timm.create_model(TEACHER, pretrained=True, num_classes=data.num_classes)
        return loaded.eval()
    say("training the teacher")
    recipe = load_recipe(RECIPE)
    seed_everything(recipe.seed, "init")
    teacher: nn.Module = timm.create_model(recipe.model.name, num_classes=data.num_classes)
    outcome = fit(teacher, data, recipe, reporter=reporter())
    if outcome.status == "stopped":
        raise StoppedError(f"stopped while training the teacher, at step {outcome.step}; nothing was written")
    return teacher.eval()


def deploy(
    teacher: nn.Module, student: nn.Module, images: torch.Tensor, path: Path
) -> tuple[OnnxComparison | None, list[str]]:
    """The comparison in ONNX Runtime, and lines that say what is missing from it and why."""
    notes: list[str] = []
    try:
        return compare_onnx(teacher, student, images, path, say=notes.append), notes
    except ImportError as error:  # the extra is not installed
        return None, [f"No ONNX file and no figures of it: {error}"]
    except ExportError as error:
        return None, [f"No {path.name}: {error}"]
