"""What can be known to go wrong before the first step: sizes, classes, labels."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from pdecnn.shared.modules import eval_mode
from pdecnn.training.batches import as_batch
from pdecnn.training.folders import UNKNOWN
from pdecnn.training.loaders import Loaders


def check_teacher(student: nn.Module, teacher: nn.Module, loaders: Loaders) -> None:
    """Raises a ValueError unless both models answer to an image with equally many classes."""
    x = torch.zeros(1, *loaders.input["shape"])
    answers = []
    for name, model in (("student", student), ("teacher", teacher)):
        try:
            with torch.no_grad(), eval_mode(model):
                answers.append(model(x))
        except Exception as error:
            raise ValueError(f"distill: the {name} does not run on images of {tuple(x.shape[1:])}: {error}.") from error
    mine, theirs = (tuple(a.shape[1:]) for a in answers)
    if mine != theirs:
        raise ValueError(
            f"distill: the student answers with {mine[-1]} classes, the teacher with {theirs[-1]}. Name a teacher that "
            f"was trained on the same classes, or its file: --teacher-weights FILE --num-classes {mine[-1]}."
        )


def check_data(model: nn.Module, loaders: Loaders) -> Loaders:
    """Runs the model on one image of each split and compares classes and labels, before anything is trained.

    Classes that have no name get a number.
    """
    n = 0
    splits = {"training": loaders.plain or loaders.train.batches(0), "evaluation": loaders.evaluation}
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    for split, batches in splits.items():
        if batches is None:
            continue
        x, y = as_batch(next(iter(batches), ()))
        try:
            with torch.no_grad(), eval_mode(model):
                out = model(x[:1].to(device))
        except Exception as error:
            raise ValueError(
                f"data: {type(model).__name__} does not run on the {split} images, of shape {tuple(x.shape[1:])}: "
                f"{error}. --input C,H,W sets their size."
            ) from error
        if not isinstance(out, Tensor) or out.ndim != 2:
            kind = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"data: the model must answer with logits (N, classes), got {kind}.")
        n = out.shape[1]
        if loaders.classes and len(loaders.classes) != n:
            raise ValueError(
                f"data: the images have {len(loaders.classes)} classes ({', '.join(loaders.classes[:4])} ...) but the "
                f"model tells {n} apart. Give --num-classes {len(loaders.classes)} and weights that are for them."
            )
        if y.ndim != 1 or len(y) != len(x) or y.is_floating_point():
            raise ValueError(f"data: labels must be class indices of shape (N,), got {tuple(y.shape)}, {y.dtype}.")
        if bool((y >= n).any()) or bool((y < UNKNOWN).any()):
            bad = int(y.max() if bool((y >= n).any()) else y.min())
            raise ValueError(f"data: a label of the {split} images is {bad}; the model tells 0 to {n - 1} apart.")
    return replace(loaders, classes=loaders.classes or tuple(map(str, range(n))))
