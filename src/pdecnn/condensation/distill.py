"""Recover the accuracy of a condensed model from the model it was made of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from pdecnn.condensation.checkpoint import CONFIG, current_config
from pdecnn.condensation.plan import Plan
from pdecnn.training import Dataset, FitResult, Loaders, Recipe, fit
from pdecnn.training.progress import Reporter

DEFAULTS: dict[str, Any] = {
    "optimizer": {"name": "sgd", "lr": 0.05, "weight_decay": 5e-4},
    "schedule": {"name": "cosine", "warmup_epochs": 0.5},
    "tensorboard": False,
    "evaluate_every": 0,
}


def distill(
    student: nn.Module,
    teacher: nn.Module,
    data: Dataset | Loaders,
    *,
    epochs: int = 10,
    batch_size: int = 64,
    weight: float = 0.9,
    temperature: float = 4.0,
    feature_weight: float = 0.1,
    augment: Mapping[str, Any] | None = None,
    seed: int = 0,
    recipe: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> FitResult:
    """Trains `student` in place to answer as `teacher` does, and to have its feature maps where blocks were replaced.

    The loss is `(1 - weight) * cross entropy + weight * T^2 * KL(teacher || student)` plus, for each Global layer,
    `feature_weight` times the distance of its output to that of the run it replaced, relative to the latter.

    Args:
        student: A condensed model, or any classifier of the same classes (then without the feature maps).
        teacher: The model before; it is put in eval mode, its parameters are not touched.
        data: A dataset in memory, or loaders.
        epochs: Passes over the training images.
        batch_size: Images per step.
        weight: Share of the teacher's answers in the loss.
        temperature: T, which softens the answers.
        feature_weight: Weight of the feature maps.
        augment: What is done to the images, as in a recipe: `{"pad": 2, "flip": 0.5}`.
        seed: Seed of order and augmentation.
        recipe: Further settings, as in a recipe: `{"optimizer": {"name": "adamw", "lr": 1e-3}}`.
        run_dir: Folder for logs and checkpoints.
        resume: Continue the run in `run_dir`.
        reporter: Shows the progress.
    """
    taken = sorted({"model", "data", "epochs", "seed", "distill"} & set(recipe or {}))
    if taken:
        raise ValueError(f"distill: recipe may not set {', '.join(taken)}; the arguments of distill do.")
    features = matched_modules(student)
    name = data.name if isinstance(data, Dataset) else "loaders"
    settings = Recipe.parse(
        {
            **DEFAULTS,
            **(recipe or {}),
            "model": {"builder": "condensed", "name": type(student).__name__},
            "data": {"name": name, "batch_size": batch_size, "augment": dict(augment or {})},
            "epochs": epochs,
            "seed": seed,
            "distill": {
                "weight": weight,
                "temperature": temperature,
                "features": features,
                "feature_weight": feature_weight if features else 0.0,
            },
        }
    )
    config = current_config(student) or getattr(student, CONFIG, None)
    return fit(
        student,
        data,
        settings,
        teacher=teacher,
        model_config=config,
        run_dir=run_dir,
        resume=resume,
        reporter=reporter,
    )


def matched_modules(student: nn.Module) -> dict[str, str]:
    """The modules of a condensed model whose outputs have a counterpart in the model before, `{student: teacher}`.

    A Global layer has the path of the last block it replaced.
    """
    config = getattr(student, CONFIG, None)
    if config is None:
        return {}
    runs = [run for run in Plan.from_dict(config["plan"]).runs if run.condenses and run.site]
    return {path: path for path in ((run.transition or "") if run.is_dense else run.site for run in runs) if path}
