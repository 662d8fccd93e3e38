"""Distil whatever tensors a model gives: by its answers, by feature maps, and by a loss of the user's own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from pdecnn.shared.modules import eval_mode
from pdecnn.shared.progress import ProgressCallback, counted
from pdecnn.shared.trees import arguments, count, moved, named_tensors, takes_images, takes_targets
from pdecnn.training.batches import has_labels
from pdecnn.training.evaluation import part_of
from pdecnn.training.objective import captured
from pdecnn.training.recipe import DistillRecipe

OwnLoss = Callable[[Any, Any], Tensor]
"""Called as `loss(answer, y)` or `distance(answer, teacher's answer)`; gives a number to minimise."""

DISTANCE = "distance to the teacher"


@dataclass(frozen=True)
class Score:
    """The value of a metric on `total` samples; it stands where `Metrics` do for classifiers."""

    accuracy: float
    total: int
    higher_is_better: bool = True
    loss: None = None
    correct: None = None
    confusion: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))


class Imitation:
    r"""A student learns to give the tensors that a frozen teacher gives.

    .. math:: w\, d(\text{answer}, \text{teacher's answer}) + (1 - w)\, \ell(\text{answer}, y)
        + w_f \sum \mathrm{mean}\,(h_{student} - h_{teacher})^2 / \mathrm{mean}\,h_{teacher}^2

    An answer is a tensor, or a list, tuple, dict or dataclass of them. Without a loss, or labels, w is 1. A detector,
    whose `forward` takes `targets` and gives losses in training, has their sum for its loss and no distance: what it
    answers depends on the proposals; it learns from the feature maps.

    Args:
        teacher: Its answers are learnt; it is put in eval mode and its parameters are not touched.
        recipe: Weight `w`, temperature, and pairs of modules `{student: teacher}` whose outputs are compared with
            weight `w_f`; an output may be a list or a dict of tensors, too.
        loss: `loss(answer, y)`; cross entropy by default where the answer is logits `(N, classes)` and y class indices,
            else none.
        distance: `distance(answer, teacher's answer)`; `difference` by default.
        metric: `metric(answer, y)`, the mean over images of which is shown; or an object with `update`, `compute` and
            `reset`, as torchmetrics has them. Without labels, y is the teacher's answer. By default the distance.
    """

    def __init__(
        self,
        teacher: nn.Module,
        recipe: DistillRecipe,
        *,
        loss: OwnLoss | None = None,
        distance: OwnLoss | None = None,
        metric: Any = None,
    ) -> None:
        self.teacher, self.recipe = teacher.eval(), recipe
        self.loss, self.distance, self.metric = loss, distance, metric
        self.detects = takes_targets(teacher)

    @property
    def metric_name(self) -> str:
        """What the metric is called in tables."""
        name = getattr(self.metric, "__name__", type(self.metric).__name__)
        return DISTANCE if self.metric is None else name.replace("_", " ").strip("<>")

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of the metric is better: yes, unless it has an attribute that says no."""
        return self.metric is not None and getattr(self.metric, "higher_is_better", True) is not False

    def __call__(self, model: nn.Module, x: Any, y: Any) -> tuple[Tensor, None]:
        """The loss of one batch."""
        recipe, student, known = self.recipe, getattr(model, "module", model), has_labels(y)
        given = arguments(student, x)
        if self.detects and not known:
            student.eval()  # in training it asks for targets
        with captured(student, recipe.features.keys(), "student") as h_student:
            answer = model(*given, y) if self.detects and known else model(*given)
        with torch.no_grad(), captured(self.teacher, recipe.features.values(), "teacher") as h_teacher:
            wanted = self.teacher.to(_device(x))(*arguments(self.teacher, x))
        total = self._of_answers(answer, wanted, y if known else None)
        for mine, theirs in recipe.features.items():
            total = total + recipe.feature_weight * difference(h_student[mine], h_teacher[theirs], what=mine)
        return total, None

    def _of_answers(self, answer: Any, wanted: Any, y: Any) -> Tensor:
        w = self.recipe.weight
        if self.detects:
            losses = [q for q in named_tensors(answer).values() if y is not None]
            return (1 - w) * torch.stack(losses).sum() if losses else torch.zeros(())
        distance = self.distance or (lambda a, b: difference(a, b, self.recipe.temperature))
        loss = self.loss
        if loss is None and is_logits(wanted) and isinstance(y, Tensor) and not y.is_floating_point() and y.ndim == 1:
            loss = nnf.cross_entropy
        if loss is None or y is None:
            return distance(answer, wanted)
        return w * distance(answer, wanted) + (1 - w) * loss(answer, y)

    def check(self, x: Any, y: Any) -> None:
        """Raises a ValueError if there is nothing to learn from a batch like this, before anything is trained."""
        if self.loss is not None and not has_labels(y):
            raise ValueError("distill: loss= is given the labels y, but the batches have none; give batches (x, y).")
        if self.detects and not has_labels(y) and not (self.recipe.feature_weight and self.recipe.features):
            raise ValueError(
                f"distill: {type(self.teacher).__name__} can only learn from targets or from feature maps; give "
                'batches (images, targets) or features=["backbone"].'
            )

    @torch.no_grad()
    def evaluate(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        *,
        rank: int = 0,
        world_size: int = 1,
        reduce: Callable[[Tensor], Tensor] | None = None,
        progress: ProgressCallback | None = None,
    ) -> Score:
        """The metric of a model over all batches; each process takes its part, but a metric that sums up takes all."""
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        whole = all(hasattr(self.metric, name) for name in ("update", "compute", "reset"))
        total = torch.zeros(2, dtype=torch.float64)
        if whole:
            self.metric.reset()
        with eval_mode(model), eval_mode(self.teacher):
            mine = batches if whole else part_of(batches, rank, world_size)
            for x, y in counted(mine, progress, "evaluating"):
                n, x = count(x, takes_images(model, x)), moved(x, device)
                value = self._measure(model, x, moved(y, device), whole)
                total += torch.tensor([n * value, n], dtype=torch.float64)
        if reduce is not None and not whole:
            total = reduce(total.to(device)).cpu()
        if not total[1]:
            raise ValueError("evaluate: the loader gave no images.")
        value = float(self.metric.compute()) if whole else float(total[0] / total[1])
        return Score(value, int(total[1]), self.higher_is_better)

    def _measure(self, model: nn.Module, x: Any, y: Any, whole: bool) -> float:
        if self.metric is None:
            return self._apart(model, x)
        answer = model(*arguments(model, x))
        if not has_labels(y):
            y = self.teacher(*arguments(self.teacher, x))
        if whole:
            self.metric.update(answer, y)
            return 0.0
        return float(self.metric(answer, y))

    def _apart(self, model: nn.Module, x: Any) -> float:
        """How far the model's answer is from the teacher's; of a detector, its feature maps."""
        pairs = self.recipe.features if self.detects else {}
        theirs = list(pairs.values())
        mine = theirs if model is self.teacher else list(pairs)
        with captured(model, mine) as h, captured(self.teacher, theirs) as h_teacher:
            answer, wanted = (m(*arguments(m, x)) for m in (model, self.teacher))
        if not self.detects:
            return float(relative(answer, wanted))
        if not pairs:
            raise ValueError('distill: how far a detector is from its teacher needs metric= or features=["backbone"].')
        found = [float(relative(h[a], h_teacher[b], what=a)) for a, b in zip(mine, theirs, strict=True)]
        return sum(found) / len(found)


def is_logits(answer: Any) -> bool:
    """Whether an answer is one tensor `(N, classes)`."""
    return isinstance(answer, Tensor) and answer.ndim == 2 and answer.is_floating_point()


def difference(answer: Any, wanted: Any, temperature: float = 4.0, *, what: str = "") -> Tensor:
    """How far two answers are apart: `T^2 KL` of logits `(N, classes)`, else `relative`."""
    if not what and is_logits(wanted) and is_logits(answer):
        T = temperature
        p, q = (nnf.log_softmax(logits / T, dim=1) for logits in (wanted, answer))
        return T**2 * nnf.kl_div(q, p, reduction="batchmean", log_target=True)
    return relative(answer, wanted, what=what)


def relative(answer: Any, wanted: Any, *, what: str = "") -> Tensor:
    """The mean square of the difference, relative to that of what is wanted; the mean over all tensors of floats.

    Example:
        >>> relative({"out": torch.tensor([1.0, 3.0])}, {"out": torch.tensor([1.0, 2.0])})
        tensor(0.2000)
    """
    mine = named_tensors(answer)
    theirs = {name: q for name, q in named_tensors(wanted).items() if q.is_floating_point()}
    where = f"output of {what!r}" if what else "answer"
    if not theirs:
        raise ValueError(f"distill: the teacher's {where} holds no tensor of floating-point numbers to learn.")
    distances = []
    for name, q in theirs.items():
        part = f"{where} {name!r}" if name else where
        if name not in mine or mine[name].shape != q.shape:
            got = tuple(mine[name].shape) if name in mine else f"only {', '.join(map(repr, mine)) or 'no tensor'}"
            raise ValueError(
                f"distill: the teacher's {part} has shape {tuple(q.shape)}, the student has {got}. Give "
                "distance=, a function of both answers, or distil the part of the model whose outputs agree."
            )
        distances.append(nnf.mse_loss(mine[name], q) / q.square().mean().clamp_min(1e-12))
    return torch.stack(distances).mean()


def _device(x: Any) -> torch.device:
    return next((q.device for q in named_tensors(x).values()), torch.device("cpu"))
