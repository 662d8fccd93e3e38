"""Accuracy, loss and confusion matrix of a classifier."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.utils.data import DataLoader, SequentialSampler

from pdecnn.shared.progress import ProgressCallback, counted
from pdecnn.shared.trees import ordered

AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Metrics:
    """The outcome of an evaluation; `confusion[i, j]` counts images of class i that were taken for class j."""

    loss: float
    correct: int
    total: int
    confusion: Tensor

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy in per cent."""
        return 100 * self.correct / self.total


def part_of(loader: Iterable[Any], rank: int, world_size: int) -> Iterable[Any]:
    """Every `world_size`-th batch; of a DataLoader that reads in order, the others are not even read.

    Example:
        >>> list(part_of(["a", "b", "c"], 0, 2))
        ['a', 'c']
    """
    if world_size == 1:
        return loader
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(loader, DataLoader) and batches and isinstance(loader.sampler, SequentialSampler):
        mine = list(batches)[rank::world_size]
        workers, collate = loader.num_workers, loader.collate_fn
        return DataLoader(loader.dataset, batch_sampler=mine, num_workers=workers, collate_fn=collate)
    return islice(loader, rank, None, world_size)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    *,
    num_classes: int | None = None,
    precision: str = "fp32",
    rank: int = 0,
    world_size: int = 1,
    reduce: Callable[[Tensor], Tensor] | None = None,
    progress: ProgressCallback | None = None,
) -> Metrics:
    """Evaluates a classifier on all batches of `loader`, in eval mode; the mode it was in is restored.

    Args:
        model: Any module that gives logits `(N, num_classes)`.
        loader: Batches `(images, labels)`.
        num_classes: Size of the confusion matrix; the width of the logits by default.
        precision: `"fp32"`, or `"bf16"`, `"fp16"` for autocast.
        rank: Number of this process among `world_size`; each takes every `world_size`-th batch, as `part_of` does.
        world_size: Number of processes.
        reduce: Sums a tensor over the processes.
        progress: Called with each batch that is done, as `plan` does.

    Example:
        >>> batches = [(torch.eye(3), torch.tensor([0, 1, 0]))]
        >>> metrics = evaluate(nn.Identity(), batches)
        >>> metrics.correct, metrics.confusion.tolist()
        (2, [[1, 0, 1], [0, 1, 0], [0, 0, 0]])
    """
    was_training = model.training
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    dtype = AUTOCAST[precision]
    loss = torch.zeros((), dtype=torch.float64)
    confusion = torch.zeros(0, 0, dtype=torch.int64)
    model.eval()
    try:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            for x, y in counted(part_of(loader, rank, world_size), progress, "evaluating"):
                logits = model(ordered(x.to(device))).float().cpu()
                if not len(confusion):
                    num_classes = num_classes or logits.shape[1]
                    confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64)
                loss += nnf.cross_entropy(logits, y, reduction="sum").double()
                pairs = y * len(confusion) + logits.argmax(dim=1)
                confusion += torch.bincount(pairs, minlength=len(confusion) ** 2).view_as(confusion)
    finally:
        model.train(was_training)
    if not len(confusion) and num_classes:  # more processes than batches
        confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    if reduce is not None:
        loss, confusion = (reduce(t.to(device)).cpu() for t in (loss, confusion))
    total = int(confusion.sum())
    if not total:
        raise ValueError("evaluate: the loader gave no images.")
    return Metrics(loss.item() / total, int(confusion.trace()), total, confusion)
