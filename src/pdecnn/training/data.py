"""Small image datasets, kept in memory as tensors, and the batches drawn from them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pdecnn.training.augment import Augment, normalise
from pdecnn.training.seeding import generator

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Images:
    """Images of type uint8, `(N, C, H, W)`, and their labels, `(N,)` of type int64."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dtype != torch.uint8 or self.x.ndim != 4:
            raise ValueError(
                f"Images: expected x of shape (N, C, H, W), uint8; got {tuple(self.x.shape)}, {self.x.dtype}."
            )
        if self.y.shape != self.x.shape[:1] or self.y.dtype != torch.int64:
            raise ValueError(
                f"Images: expected y of shape ({len(self.x)},), int64; got {tuple(self.y.shape)}, {self.y.dtype}."
            )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: slice | Tensor) -> "Images":
        return Images(self.x[index], self.y[index])


@dataclass(frozen=True)
class Dataset:
    """A training and a test split with the statistics they are normalised by.

    Example:
        >>> data = pdecnn.training.load_dataset("fashion-mini")
        >>> data.image_shape, data.num_classes
        ((1, 28, 28), 10)
    """

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    note: str = ""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """`(C, H, W)` of one image."""
        C, H, W = self.train.x.shape[1:]
        return C, H, W

    def hold_out(self, n: int) -> "Dataset":
        """The same with the last `n` training images in the place of the test split, which stays unseen."""
        if not 0 < n < len(self.train):
            raise ValueError(f"hold_out: expected n from 1 to {len(self.train) - 1}, got {n}.")
        note = f"{self.note} The last {n} training images are the evaluation split.".strip()
        return replace(self, train=self.train[:-n], test=self.train[-n:], note=note)

    def limit(self, train: int | None = None, test: int | None = None) -> "Dataset":
        """The first images only, as many as asked for."""
        return replace(self, train=self.train[:train], test=self.test[:test])


@dataclass(frozen=True)
class TrainLoader:
    """Shuffled, augmented batches; the batch of a given epoch and position never depends on what was read before.

    With several processes every one draws the choices of the whole batch and takes its own rows, so that the images
    are those of a single process.

    Args:
        images: The training split.
        batch_size: Size of the batch over all processes. The last, incomplete batch of an epoch is used as well.
        mean: Per-channel mean of the pixel values in [0, 1].
        std: Per-channel standard deviation.
        augment: What is done to the images.
        seed: Seed of order and augmentation.
        rank: Number of this process.
        world_size: Number of processes; divides `batch_size`, and then incomplete batches are dropped.
    """

    images: Images
    batch_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment = field(default_factory=Augment)
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.world_size:
            raise ValueError(
                f"TrainLoader: batch_size={self.batch_size} does not divide among {self.world_size} processes."
            )
        if not len(self):
            raise ValueError(f"TrainLoader: {len(self.images)} images do not fill one batch of {self.batch_size}.")

    def __len__(self) -> int:
        n = len(self.images)
        return n // self.batch_size if self.world_size > 1 else -(-n // self.batch_size)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from position `start` on."""
        order = torch.randperm(len(self.images), generator=generator(self.seed, "order", epoch))
        for position in range(start, len(self)):
            index = order[position * self.batch_size : (position + 1) * self.batch_size]
            g = generator(self.seed, "augment", epoch, position)
            choices = self.augment.draw(len(index), self.images.x.shape[-2:], g)
            mine = slice(self.rank, None, self.world_size)
            batch = self.images[index[mine]]
            choices = {name: value[mine] for name, value in choices.items()}
            yield self.augment.apply(batch.x, choices, mean=self.mean, std=self.std), batch.y


@dataclass(frozen=True)
class EvalLoader:
    """Normalised batches in order, without augmentation."""

    images: Images
    batch_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, len(self.images), self.batch_size):
            batch = self.images[first : first + self.batch_size]
            yield normalise(batch.x, self.mean, self.std), batch.y
