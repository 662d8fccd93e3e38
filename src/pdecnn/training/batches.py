"""Whatever gives batches, as `Loaders`: a DataLoader, a Dataset, a list or any other iterable, a Tensor."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from pdecnn.shared.modules import eval_mode
from pdecnn.shared.trees import count, is_images, named_tensors, part
from pdecnn.training.data import Batch, Dataset
from pdecnn.training.folders import UNKNOWN
from pdecnn.training.loaders import Loaders
from pdecnn.training.own import in_memory, of_datasets
from pdecnn.training.processes import process
from pdecnn.training.seeding import seed_everything

KEYS = ("image", "images", "pixel_values", "x", "input"), ("label", "labels", "y", "target")


def as_loaders(train: Any, val: Any = None, *, batch_size: int = 64, seed: int = 0) -> Loaders:
    """Loaders of whatever has images: Loaders, a dataset of ours, a DataLoader, a torch Dataset, batches, or a Tensor.

    Batches are pairs `(x, y)`, tensors x, or dicts with the entries image and label; x and y are what model and loss
    take, such as tensors, or lists of images and of boxes. Without labels, y is -1 throughout.

    Example:
        >>> loaders = as_loaders([(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 2, 1]))])
        >>> len(loaders.train), loaders.evaluation, loaders.labelled
        (1, None, True)
    """
    if isinstance(train, Loaders):
        return train
    if isinstance(train, Dataset):
        return in_memory(train, batch_size, seed)
    if isinstance(train, Tensor):
        train = list(torch.split(train, batch_size))
    if isinstance(train, (str, Path)):
        raise TypeError(f"data: got the path {str(train)!r}; pdecnn.training.open_data reads folders.")
    if _is_map(train):
        first = as_batch(default_collate([_Items(train)[0]]))
        loaders = of_datasets(_Items(train), _Items(train), None, batch_size=batch_size, seed=seed)
    else:
        batches = EpochBatches(train, seed)
        first = next(iter(batches.batches(0)), None)  # type: ignore[assignment]
        if first is None:
            raise ValueError("data: the training batches are empty.")
        loaders = Loaders(batches, None, (), {}, _Again(train))
    labelled = has_labels(first[1])
    described = {"shape": list(first[0].shape[1:])} if isinstance(first[0], Tensor) else {}
    tests = None if val is None else _Again(_loader(val) if _is_map(val) else val)
    return Loaders(loaders.train, tests, (), described, loaders.plain, labelled)


def _loader(data: Any) -> Any:
    items: Any = _Items(data)
    return DataLoader(items, batch_size=128)


def _is_map(data: Any) -> bool:
    """Whether it is a map-style dataset of single items; a list or a loader is of batches."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (list, tuple, Tensor))


def _item(item: Any) -> tuple[Any, ...]:
    """Inputs and labels, if there are any."""
    if isinstance(item, Mapping):
        found = [next((item[key] for key in keys if key in item), None) for keys in KEYS]
        return tuple(part for part in found if part is not None) if found[0] is not None else (item,)
    return tuple(item) if isinstance(item, (tuple, list)) else (item,)


@dataclass(frozen=True)
class _Items:
    """A map-style dataset whose items are pairs of an image and a label."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        parts = _item(self.dataset[i])
        return parts[0], parts[1] if len(parts) > 1 else UNKNOWN


def as_batch(batch: Any) -> Batch:
    """Inputs and labels of a batch; a label that is not there is -1."""
    parts = _item(batch)
    if not parts or not named_tensors(parts[0]):
        kind = type(parts[0]).__name__ if parts else "nothing"
        raise TypeError(
            f"data: a batch must be a Tensor of images, a pair (x, y) or a dict, got one with {kind} first."
        )
    x, y = parts[0], parts[1] if len(parts) > 1 else None
    if y is None:
        y = torch.full((count(x, is_images(x)),), UNKNOWN)
    elif not named_tensors(y):
        y = torch.as_tensor(y)
    return x, y


def has_labels(y: Any) -> bool:
    """Whether the labels of a batch are known: -1 stands for one that is not."""
    return not isinstance(y, Tensor) or y.ndim != 1 or y.is_floating_point() or bool((y >= 0).all())


class EpochBatches:
    """Batches of an iterable that is read once per epoch; what it draws at random depends on seed and epoch."""

    def __init__(self, source: Any, seed: int) -> None:
        if iter(source) is source:
            raise TypeError(
                "data: an iterator can be read once only; give a DataLoader, a list of batches, or another object that "
                "can be iterated over for each epoch."
            )
        self.source, self.seed = source, seed
        self.length = len(source) if hasattr(source, "__len__") else sum(1 for _ in source)

    def __len__(self) -> int:
        return self.length

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from position `start` on; those before are read and dropped."""
        rank, world_size = process()
        seed_everything(self.seed, "epoch", epoch)
        for x, y in map(as_batch, islice(self.source, start, None)):
            images = is_images(x)
            mine = share_of(count(x, images), rank, world_size)
            yield part(x, mine, images), part(y, mine, images and isinstance(y, (list, tuple)))


def share_of(n: int, rank: int, world_size: int) -> slice | list[int]:
    """The rows of a batch that a process takes: every `world_size`-th, equally many in all, so that some rows are
    taken twice if they do not divide.

    Example:
        >>> share_of(5, 1, 2)
        [1, 3, 0]
    """
    if n % world_size == 0:
        return slice(rank, None, world_size)
    return [(rank + i * world_size) % n for i in range(-(-n // world_size))]


@dataclass(frozen=True)
class _Again:
    """Batches `(x, y)` of an iterable, to be read any number of times."""

    source: Any

    def __iter__(self) -> Iterator[Batch]:
        return map(as_batch, self.source)


@dataclass
class Answered:
    """Evaluation batches whose unknown labels are the answers of a teacher: accuracy is then agreement with it."""

    teacher: nn.Module
    source: Iterable[Batch]
    answers: list[Tensor] = field(default_factory=list)

    def __iter__(self) -> Iterator[Batch]:
        for i, (x, y) in enumerate(self.source):
            if i == len(self.answers):
                device = next((p.device for p in self.teacher.parameters()), x.device)
                with torch.no_grad(), eval_mode(self.teacher):
                    self.answers.append(self.teacher(x.to(device)).argmax(dim=1).cpu())
            yield x, torch.where(y < 0, self.answers[i], y)
