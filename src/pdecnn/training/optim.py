"""Optimiser and schedule of a recipe: timm's, by name."""

from functools import partial
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
            scaled_groups(model, recipe) if o.lr_scale else model,
            opt=o.name,
            lr=o.lr,
            weight_decay=o.weight_decay,
            momentum=o.momentum,
            filter_bias_and_bn=not o.decay_bias_and_norm,
            **options,
        )
    except (ValueError, TypeError, AssertionError) as error:
        raise ValueError(f"recipe: optimizer {o.name!r} with options {options}: {error}") from error
    if "muon" in o.name.lower() and all(p.device.type == "cpu" for p in model.parameters()):
        orthogonalise_in_float32(optimizer)
    return optimizer


def orthogonalise_in_float32(optimizer: torch.optim.Optimizer) -> None:
    """Lets timm's Muon iterate in float32: it does so in bfloat16, which most CPUs emulate, six times slower."""
    from timm.optim import muon

    usual = muon.zeropower_via_newtonschulz
    exact = partial(usual, dtype=torch.float32)
    optimizer.register_step_pre_hook(lambda *_: setattr(muon, usual.__name__, exact))
    optimizer.register_step_post_hook(lambda *_: setattr(muon, usual.__name__, usual))


def scaled_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Parameters by the factor of their learning rate, and by whether they decay."""
    o = recipe.optimizer
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): []}  # the rate that is shown is that of these
    for path in o.lr_scale:
        model.get_submodule(path)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor = next((f for path, f in o.lr_scale.items() if name.startswith(f"{path}.")), 1.0)
            groups.setdefault((factor, o.decay_bias_and_norm or parameter.ndim > 1), []).append(parameter)
    return [
        {"params": group, "lr": o.lr * factor, "weight_decay": o.weight_decay if decays else 0.0}
        for (factor, decays), group in groups.items()
    ]


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
