"""Datasets too large for memory: image folders and all that timm reads (HF datasets, WebDataset shards, TFDS)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from pdecnn.shared.environment import data_folder
from pdecnn.training.data import Batch
from pdecnn.training.datasets import DATASETS, load_dataset
from pdecnn.training.folders import EVALUATION, TRAIN, Placed
from pdecnn.training.inputs import Input
from pdecnn.training.loaders import Loaders, make_loaders
from pdecnn.training.processes import process
from pdecnn.training.recipe import Recipe
from pdecnn.training.seeding import generator


def load_data(recipe: Recipe, data_dir: str | Path | None = None, *, download: bool = False) -> Loaders:
    """The batches of a recipe, whether its data fits in memory or is streamed."""
    rank, world = process()
    if recipe.data.stream is None and recipe.data.name in DATASETS:
        return make_loaders(load_dataset(recipe.data.name, data_dir, download=download), recipe, rank, world)
    return stream_loaders(recipe, data_folder(data_dir), download, rank, world)


@dataclass(frozen=True)
class StreamLoader:
    """Shuffled training batches of a map-style dataset.

    The order depends on seed and epoch, the augmentation of an image on these and its index, so that an epoch can be
    entered anywhere, by any number of workers.
    """

    dataset: Any
    batch_size: int
    workers: int
    seed: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.world_size:
            raise ValueError(
                f"data: a batch of {self.batch_size} does not divide among {self.world_size} processes; "
                "--batch-size (in a recipe data.batch_size) counts over all of them."
            )
        if not len(self):
            raise ValueError(f"data: {len(self.dataset)} images do not fill one batch of {self.batch_size}.")

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from position `start` on."""
        order = torch.randperm(len(self.dataset), generator=generator(self.seed, "order", epoch))
        mine = order[start * self.batch_size + self.rank : len(self) * self.batch_size : self.world_size]
        placed: Any = Placed(self.dataset, self.seed, epoch)
        yield from DataLoader(
            Subset(placed, mine.tolist()),
            batch_size=self.batch_size // self.world_size,
            num_workers=self.workers,
            generator=generator(self.seed, "stream", epoch, self.rank),
        )


def stream_loaders(recipe: Recipe, root: Path, download: bool = False, rank: int = 0, world_size: int = 1) -> Loaders:
    """Loaders over what `timm.data.create_dataset` finds under `recipe.data.name`, such as `folder` or `hfds/...`."""
    from timm.data import create_dataset, create_transform

    d, s = recipe.data, recipe.data.stream
    if s is None:
        known = ", ".join(DATASETS)
        raise ValueError(f"recipe: data.name={d.name!r} is none of {known}; other datasets need the part data.stream.")
    if d.hold_out or d.train_limit or d.test_limit:
        raise ValueError("recipe: data.hold_out and limits are for datasets in memory, not with data.stream.")
    name = "" if d.name == "folder" else d.name
    common = {"input_size": s.image_size, "interpolation": s.interpolation, "mean": s.mean, "std": s.std}
    erase = {"re_prob": s.random_erase, "re_mode": s.random_erase_mode, "re_count": s.random_erase_count}
    transforms = {
        True: create_transform(
            **common, is_training=True, scale=s.crop_scale, hflip=d.augment.flip, auto_augment=s.rand_augment,
            color_jitter=s.color_jitter, **erase,
        ),
        False: create_transform(**common, crop_pct=s.crop_fraction),
    }  # fmt: skip
    sets = {}
    for training, split in ((True, s.train_split), (False, s.test_split)):
        split = split if name else _existing(root, split)
        sets[training] = create_dataset(name, str(root), split=split, is_training=training, download=download)
        sets[training].transform = transforms[training]
    if not hasattr(sets[True], "__getitem__"):
        raise ValueError(f"recipe: data.name={d.name!r} has no random access, which exact resumption needs.")
    evaluation: Any = DataLoader(sets[False], batch_size=d.eval_batch_size, num_workers=s.workers)
    train = StreamLoader(sets[True], d.batch_size, s.workers, recipe.seed, rank, world_size)
    shape = (len(s.mean), s.image_size, s.image_size)
    classes = tuple(str(i) for i in range(s.num_classes))
    images = Input(shape, tuple(s.mean), tuple(s.std), s.interpolation, s.crop_fraction)
    return Loaders(train, evaluation, classes, images.to_dict())


def _existing(root: Path, split: str) -> str:
    """The name that the folder of a split has; timm takes all of `root`, training images too, for a missing one."""
    same: tuple[str, ...] = next((names for names in (TRAIN, EVALUATION) if split in names), ())
    found: str | None = next((name for name in (split, *same) if (root / name).is_dir()), None)
    if found is None:
        raise FileNotFoundError(
            f"recipe: no folder {root / split}, which data.name='folder' needs. Give the right --data-dir; an "
            "evaluation on the training images would tell nothing."
        )
    return found
