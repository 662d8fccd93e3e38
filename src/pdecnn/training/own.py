"""Images of the user's own as `Loaders`: a folder, a dataset by name, or what timm reads."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from pdecnn.shared.environment import cores
from pdecnn.shared.names import close_to
from pdecnn.training.augment import Augment
from pdecnn.training.data import Dataset, EvalLoader, TrainLoader
from pdecnn.training.datasets import DATASETS, load_dataset
from pdecnn.training.folders import ImageDataset, read_folder
from pdecnn.training.inputs import Input
from pdecnn.training.loaders import Loaders, describe_input
from pdecnn.training.processes import process
from pdecnn.training.seeding import generator
from pdecnn.training.stream import StreamLoader

PLAIN = 512  # training images without augmentation, for statistics
CROP = (0.35, 1.0)  # the part of an image that a training crop shows
READERS = ("hfds", "torch", "tfds", "wds", "hfids")  # of timm


def open_data(
    source: str | Path,
    wanted: Input,
    *,
    batch_size: int = 64,
    seed: int = 0,
    workers: int | None = None,
    data_dir: str | Path | None = None,
    download: bool = False,
) -> Loaders:
    """The batches of `--data`.

    Args:
        source: A folder of images (`pdecnn.training.folders`), a dataset by name, or what timm's `create_dataset` reads
            with random access, such as `hfds/...` or `torch/cifar10`.
        wanted: How the model wants its images.
        batch_size: Images per training step; fewer if there are not so many.
        seed: Seed of split, order and augmentation.
        workers: Processes that read images; by default none for a few hundred images, else two, or one on one core.
        data_dir: Folder of the files of named datasets.
        download: Fetch them if they are missing.
    """
    name = str(source)
    if name in DATASETS and not Path(name).is_dir():
        return in_memory(load_dataset(name, data_dir, download=download), batch_size, seed)
    note, classes, labelled = "", (), True
    if Path(name).is_dir():
        found = read_folder(name, seed=seed)
        note, classes, labelled = found.note, found.classes, bool(found.classes)
        parts = (found.train, True), (found.train, False), (found.evaluation, False)
        sets = [ImageDataset(files, _transform(wanted, training), wanted.shape[0]) for files, training in parts]
    elif "/" in name and name.partition("/")[0] in READERS:
        sets = _from_timm(name, wanted, data_dir, download)
    else:
        hint = close_to(name, DATASETS, n=2)
        raise ValueError(
            f"data: no folder {name!r} and no dataset of that name.{hint} Expected a folder of images (train/CLASS/*, "
            f"val/CLASS/*), one of {', '.join(DATASETS)}, or a name that timm reads, such as hfds/NAME."
        )
    loaders = of_datasets(
        *sets, batch_size=batch_size, seed=seed, workers=workers, classes=classes, described=wanted.to_dict(),
        labelled=labelled, note=note,
    )  # fmt: skip
    return replace(loaders, name=Path(name).resolve().name if Path(name).is_dir() else name)


def _transform(wanted: Input, training: bool) -> Any:
    from timm.data import create_transform

    common = {"input_size": wanted.shape, "interpolation": wanted.interpolation, "mean": wanted.mean, "std": wanted.std}
    if training:
        return create_transform(**common, is_training=True, hflip=0.5, scale=CROP, color_jitter=None)
    return create_transform(**common, crop_pct=wanted.crop_pct)


def _from_timm(name: str, wanted: Input, data_dir: str | Path | None, download: bool) -> list[Any]:
    from timm.data import create_dataset

    sets = []
    for split, training in (("train", True), ("train", False), ("validation", False)):
        found = create_dataset(name, str(data_dir or "data"), split=split, is_training=training, download=download)
        found.transform = _transform(wanted, training)
        if not hasattr(found, "__getitem__"):
            raise ValueError(f"data: {name!r} has no random access, which exact resumption needs.")
        sets.append(found)
    return sets


def of_datasets(
    train: Any,
    plain: Any,
    evaluation: Any,
    *,
    batch_size: int,
    seed: int = 0,
    workers: int | None = None,
    classes: tuple[str, ...] = (),
    described: Mapping[str, Any] | None = None,
    labelled: bool = True,
    note: str = "",
) -> Loaders:
    """Loaders of map-style datasets: augmented, the same without, and the one to evaluate on, if any."""
    count = (min(2, cores()) if len(train) > 2 * PLAIN else 0) if workers is None else workers
    rank, world_size = process()
    size = min(batch_size, len(train) - len(train) % world_size or batch_size)
    loader = StreamLoader(train, size, count, seed, rank, world_size)
    some = torch.randperm(len(plain), generator=generator(seed, "plain"))[:PLAIN].tolist()
    few: Any = DataLoader(Subset(plain, some), batch_size=min(128, len(some)))
    tests: Any = None if evaluation is None else DataLoader(evaluation, batch_size=128, num_workers=count)
    return Loaders(loader, tests, classes, dict(described or {}), few, labelled, note)


def in_memory(data: Dataset, batch_size: int, seed: int, augment: Augment | None = None) -> Loaders:
    """Loaders of a dataset in memory: shifted by two pixels and mirrored in training."""
    augment = Augment(pad=2, flip=0.5) if augment is None else augment
    train = TrainLoader(data.train, batch_size, data.mean, data.std, augment, seed, *process())
    tests, plain = (EvalLoader(images, 250, data.mean, data.std) for images in (data.test, data.train))
    return Loaders(train, tests, data.classes, describe_input(data), plain, name=data.name)
