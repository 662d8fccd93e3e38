"""The training loop.

The state of a run is its weights, its optimiser and one number, the step: the batch, the augmentation, the dropout
masks and the learning rate of step t are functions of the recipe and of t. So a run that was killed and resumed makes
the same floating-point operations as one that was not.
"""

from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from pdecnn.models.build import described_steps
from pdecnn.models.described import tell_timm
from pdecnn.shared.extras import require
from pdecnn.training.choice import settle, sound
from pdecnn.training.data import Dataset
from pdecnn.training.loaders import Loaders, make_loaders
from pdecnn.training.objective import Classification, Distillation, Objective
from pdecnn.training.processes import Processes
from pdecnn.training.progress import Reporter
from pdecnn.training.recipe import DistillRecipe, Recipe
from pdecnn.training.rundir import RunFolder
from pdecnn.training.trainer import FitResult, Trainer


def fit(
    model: nn.Module,
    data: Dataset | Loaders,
    recipe: Recipe,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    teacher: nn.Module | None = None,
    objective: Objective | None = None,
    model_config: dict[str, Any] | None = None,
    on_nan: Literal["stop", "resume"] = "stop",
    on_step: Callable[[int, float, float], None] | None = None,
    reporter: Reporter | None = None,
) -> FitResult:
    """Trains `model` in place by the recipe and returns how it went.

    Under `torchrun` or `accelerate launch` every process calls this, and the batch is shared among them.

    Args:
        model: Any classifier. Its weights after the call are those to use: the moving average if the recipe has one.
        data: A dataset in memory, or loaders.
        recipe: The settings; `recipe.model` is not read here.
        run_dir: Folder for logs and checkpoints; without it nothing is written.
        resume: Continue the run in `run_dir` from its newest whole checkpoint, or start it if there is none.
        teacher: Distil from this classifier, as `recipe.distill` says.
        objective: Replaces loss and distillation: `objective(model, x, y) -> (loss, logits)`.
        model_config: Description of the model for the checkpoints; `recipe.model` by default.
        on_nan: At a non-finite loss, `"stop"` with a `DivergedError` error, or `"resume"` from the last checkpoint with
            half the learning rate, at most five times.
        on_step: Called after every step with the step, the loss and the learning rate.
        reporter: Shows the progress; silent by default.

    Example:
        >>> from pdecnn.training import Recipe, build_model, load_dataset
        >>> recipe = Recipe.parse({"model": {"name": "test_resnet", "kwargs": {"in_chans": 1, "num_classes": 10}},
        ...                        "data": {"name": "fashion-mini", "train_limit": 256, "test_limit": 64}, "epochs": 1})
        >>> result = fit(build_model(recipe.model.model_dump()), load_dataset("fashion-mini"), recipe)
        >>> result.status, result.step
        ('finished', 2)
    """
    accelerator = make_accelerator(recipe)
    run = None if run_dir is None else RunFolder(run_dir)
    if on_nan == "resume" and run is None:
        raise ValueError("fit: on_nan='resume' goes back to a checkpoint, so it needs run_dir.")
    reporter, loaders = reporter or Reporter(), data
    if isinstance(loaders, Dataset):
        loaders = make_loaders(loaders, recipe, accelerator.process_index, accelerator.num_processes)
    with closing(run) if run is not None else nullcontext():
        recipe = Processes().first(partial(_start, model, loaders, recipe, accelerator, run, resume, reporter))
        trainer = _trainer(model, loaders, recipe, teacher, objective, accelerator, run, reporter, on_step)
        trainer.model_config = recipe.model.model_dump(exclude={"pretrained"}) if model_config is None else model_config
        if trainer.sandwich:
            tell_timm(model, {**trainer.model_config, **described_steps(model)})
        try:
            if resume:
                trainer.restore()
            with nullcontext() if recipe.onednn else torch.backends.mkldnn.flags(enabled=False):
                return trainer.run_to_end(on_nan)
        finally:
            trainer.close()


def _start(
    model: nn.Module,
    loaders: Loaders,
    recipe: Recipe,
    accelerator: Any,
    run: RunFolder | None,
    resume: bool,
    reporter: Reporter,
) -> Recipe:
    """Opens the run folder; the recipe of the run with the ways to compute that it takes, now or since it began."""
    recipe = sound(recipe, model, reporter.message)
    saved = None if run is None else run.open(recipe, resume=resume)
    shape = loaders.input.get("shape", ())
    # a run that has a recipe but no choice is from before there was one
    steps = 0 if saved is not None else recipe.epochs * len(loaders.train)
    settled = settle(saved or recipe, model, shape, steps, autocast=accelerator.autocast, say=reporter.message)
    if run is not None and saved is None:
        run.write_recipe(settled)
    return settled


def _trainer(
    model: nn.Module,
    loaders: Loaders,
    recipe: Recipe,
    teacher: nn.Module | None,
    objective: Objective | None,
    accelerator: Any,
    run: RunFolder | None,
    reporter: Reporter,
    on_step: Callable[[int, float, float], None] | None,
) -> Trainer:
    if objective is None:
        objective = Classification(recipe.loss, loaders.num_classes)
        if teacher is not None:
            aims, compiled = recipe.distill or DistillRecipe(), recipe.compile is True
            objective = Distillation(teacher.to(accelerator.device), aims, objective, compiled=compiled)
    return Trainer(model, loaders, recipe, objective, accelerator, run, reporter, on_step)


def make_accelerator(recipe: Recipe) -> Any:
    """The accelerate object for this recipe; on machines without a GPU several processes talk over gloo."""
    accelerate = require("accelerate", "train")
    accelerate.state.AcceleratorState._reset_state()  # a second run in this process may ask for another precision
    precision = {"fp32": "no"}.get(recipe.precision, recipe.precision)
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    return accelerate.Accelerator(mixed_precision=precision, cpu=not gpu)
