"""The embedded example: a ResNet-32 and images that ship in the package, as a preset of the job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
from torch import nn

from pdecnn.condensation.stages import TEACHER as TEACHER_RUN
from pdecnn.condensation.stages import StoppedError
from pdecnn.training import Dataset, Loaders, fit, load_dataset, load_recipe
from pdecnn.training.own import in_memory
from pdecnn.training.progress import Reporter
from pdecnn.training.seeding import seed_everything

DATA, TEACHER, RECIPE = "fashion-mini", "fashion_resnet32.fashion_mini", "quick/fashion-teacher"
PRESET: dict[str, Any] = {"lr": 0.05, "new": 1.0}  # ten epochs of small images bear more than a network of one's own
PLAN: dict[str, Any] = {"keep": 2, "K": 1}  # of benchmarks/frontier.py: twice as fast, and hardly less accurate


def example(
    folder: Path,
    *,
    seed: int = 0,
    train_teacher: bool = False,
    say: Callable[[str], None],
    reporter: Callable[[], Reporter] = Reporter,
) -> tuple[nn.Module, Loaders]:
    """The teacher, loaded or trained in `folder`, and its images."""
    data = load_dataset(DATA)
    return _teacher(train_teacher, data, folder, say, reporter), in_memory(data, 64, seed)


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
    run = folder / TEACHER_RUN
    outcome = fit(teacher, data, recipe, run_dir=run, resume=True, reporter=reporter())
    if outcome.status == "stopped":
        raise StoppedError(f"stopped while training the teacher, at step {outcome.step}; it is saved in {run}")
    return teacher.eval()
