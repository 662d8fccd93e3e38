"""What is minimised: cross entropy with timm's mixup and smoothing, and distillation from a teacher."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from pdecnn.shared.modules import listen
from pdecnn.training.recipe import DistillRecipe, LossRecipe
from pdecnn.training.variation import weight_variation

Objective = Callable[[nn.Module, Any, Any], tuple[Tensor, Tensor | None]]
"""Called as `objective(model, x, y)`; returns the loss and the logits, if there are any."""


class Classification:
    """Cross entropy of `model(x)` and `y`, with label smoothing, mixup and cutmix as the recipe says.

    A model that returns `(logits, auxiliary logits)` in training has the loss of the latter added, times `aux_weight`.

    Example:
        >>> from pdecnn.training.recipe import LossRecipe
        >>> objective = Classification(LossRecipe(label_smoothing=0.1), num_classes=10)
        >>> loss, logits = objective(nn.Flatten(), torch.zeros(2, 10), torch.tensor([3, 4]))
        >>> round(loss.item(), 4)  # log(10), whatever the smoothing
        2.3026
    """

    def __init__(self, recipe: LossRecipe, num_classes: int) -> None:
        self.recipe, self.num_classes = recipe, num_classes
        self.mixup: Any = None
        if recipe.mixup or recipe.cutmix:
            from timm.data import Mixup

            self.mixup = Mixup(recipe.mixup, recipe.cutmix, label_smoothing=0.0, num_classes=num_classes)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the logits of one batch."""
        target = y
        if self.mixup is not None and len(x) % 2 == 0:  # images are mixed in pairs
            x, target = self.mixup(x, y)
        loss, logits = self.of_output(model(x), target)
        return self.penalised(loss, model), logits

    def penalised(self, loss: Tensor, model: nn.Module) -> Tensor:
        """The loss with what keeps neighbouring blocks similar, if the recipe asks for it."""
        factor = self.recipe.weight_variation
        return loss + factor * weight_variation(model) if factor else loss

    def of_output(self, output: Tensor | tuple[Tensor, Tensor], target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of what the model returned."""
        if isinstance(output, Tensor):
            return nnf.cross_entropy(output, target, label_smoothing=self.recipe.label_smoothing), output
        logits, auxiliary = output
        loss = nnf.cross_entropy(logits, target, label_smoothing=self.recipe.label_smoothing)
        extra = nnf.cross_entropy(auxiliary, target, label_smoothing=self.recipe.label_smoothing)
        return loss + self.recipe.aux_weight * extra, logits


class Distillation:
    r"""A student learns from labels and from a frozen teacher that sees the same images.

    .. math:: (1 - w)\,\ell_{task} + w\,T^2\,KL(p_{teacher}^{(T)} \| p_{student}^{(T)})
        + w_f \sum \mathrm{mean}\,(h_{student} - h_{teacher})^2 / \mathrm{mean}\,h_{teacher}^2

    Args:
        teacher: Any classifier of the same classes; it is put in eval mode and its parameters are not touched.
        recipe: Weight `w`, temperature `T`, feature weight, and `features`, which names pairs of modules
            `{student: teacher}` whose outputs must have the same shape.
        task: Loss on the labels.
        compiled: Whether `torch.compile` runs the teacher; not where `features` are read inside it.

    Example:
        >>> from pdecnn.training.recipe import DistillRecipe, LossRecipe
        >>> teacher = nn.Flatten()
        >>> objective = Distillation(teacher, DistillRecipe(weight=1.0), Classification(LossRecipe(), 10))
        >>> objective(nn.Flatten(), torch.randn(2, 10), torch.tensor([3, 4]))[0].abs().item() < 1e-5  # same logits
        True
    """

    def __init__(
        self, teacher: nn.Module, recipe: DistillRecipe, task: Classification, *, compiled: bool = False
    ) -> None:
        self.teacher, self.recipe, self.task = teacher.eval(), recipe, task
        if compiled and not recipe.features:
            self.teacher = torch.compile(teacher)  # type: ignore[assignment]
        if recipe.feature_weight and not recipe.features:
            raise ValueError("Distillation: feature_weight needs features, pairs of module names {student: teacher}.")
        _check_modules(teacher, recipe.features.values(), "teacher")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the student's logits of one batch."""
        recipe, student = self.recipe, getattr(model, "module", model)
        if self.task.mixup is not None:
            self._answer(y, x)
        target = y
        if self.task.mixup is not None and len(x) % 2 == 0:
            x, target = self.task.mixup(x, y)
        with captured(student, recipe.features.keys(), "student") as h_student:
            output = model(x)
        with torch.no_grad(), captured(self.teacher, recipe.features.values(), "teacher") as h_teacher:
            teacher_logits = self.teacher.to(x.device)(x)
        self._answer(y, x, teacher_logits)
        loss, logits = self.task.of_output(output, target)
        T = recipe.temperature
        kl = nnf.kl_div(
            nnf.log_softmax(logits / T, dim=-1),
            nnf.log_softmax(teacher_logits / T, dim=-1),
            reduction="batchmean",
            log_target=True,
        )
        loss = self.task.penalised((1 - recipe.weight) * loss + recipe.weight * T**2 * kl, model)
        for mine, theirs in recipe.features.items():
            loss = loss + recipe.feature_weight * _distance(h_student[mine], h_teacher[theirs], mine, theirs)
        return loss, logits

    @torch.no_grad()
    def _answer(self, y: Tensor, x: Tensor, logits: Tensor | None = None) -> None:
        """Puts the teacher's answers where a label is not known (-1), in place: they count as the truth there."""
        if bool((y < 0).any()):
            logits = self.teacher.to(x.device)(x) if logits is None else logits
            y.copy_(torch.where(y < 0, logits.argmax(dim=1), y))


def _distance(h: Tensor, h_teacher: Tensor, mine: str, theirs: str) -> Tensor:
    if h.shape != h_teacher.shape:
        raise ValueError(
            f"Distillation: the student's {mine!r} has shape {tuple(h.shape)} but the teacher's {theirs!r} has "
            f"{tuple(h_teacher.shape)}; features are compared where shapes agree."
        )
    return nnf.mse_loss(h, h_teacher) / h_teacher.square().mean().clamp_min(1e-12)


def _check_modules(model: nn.Module, names: Any, role: str) -> None:
    known = dict(model.named_modules())
    for name in names:
        if name not in known:
            raise ValueError(f"Distillation: the {role} {type(model).__name__} has no module named {name!r}.")


@contextmanager
def captured(model: nn.Module, names: Any, role: str = "model") -> Iterator[dict[str, Any]]:
    """Collects the outputs of the named modules during the forward passes of the block."""
    outputs: dict[str, Any] = {}
    _check_modules(model, names, role)
    chosen = {model.get_submodule(name): name for name in names}

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        outputs[chosen[module]] = output

    with listen(chosen, after=after):
        yield outputs
