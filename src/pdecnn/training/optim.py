"""Optimiser and schedule of a recipe: timm's, by name."""

from typing import Any

import torch
from torch import nn

from pdecnn.training.recipe import Recipe


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The timm optimiser that the recipe names."""
    from timm.optim import create_optimizer_v2

    o = recipe.optimizer
    options: dict[str, Any] = dict(o.options)
    try:
        optimizer: torch.optim.Optimizer = create_optimizer_v2(
            model,
            opt=o.name,
            lr=o.lr,
            weight_decay=o.weight_decay,
            momentum=o.momentum,
            filter_bias_and_bn=not o.decay_bias_and_norm,
            **options,
        )
    except (ValueError, TypeError, AssertionError) as error:
        raise ValueError(f"recipe: optimizer {o.name!r} with options {options}: {error}") from error
    return optimizer


def make_schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, steps_per_epoch: int) -> Any:
    """The timm schedule that the recipe names, with the step as its time."""
    from timm.scheduler import create_scheduler_v2

    s = recipe.schedule
    constant = s.name == "constant"
    schedule, _ = create_scheduler_v2(
        optimizer,
        sched="step" if constant else s.name,
        num_epochs=recipe.epochs,
        warmup_epochs=s.warmup_epochs,
        warmup_lr=s.warmup_lr,
        min_lr=s.min_lr,
        decay_milestones=list(s.milestones),
        decay_epochs=s.decay_epochs,
        decay_rate=1.0 if constant else s.decay_rate,
        noise=list(s.noise) if s.noise else None,
        noise_seed=recipe.seed,
        step_on_epochs=False,
        updates_per_epoch=steps_per_epoch,
    )
    return schedule
