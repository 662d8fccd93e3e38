"""Folders of images: which files are for training, which for evaluation, and of which class each is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pdecnn.training.seeding import generator, seed_everything

TRAIN, EVALUATION = ("train", "training"), ("val", "validation", "valid", "test", "eval")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
UNKNOWN = -1  # the label of an image without one
HELD_OUT = 0.2


@dataclass(frozen=True)
class Files:
    """Image files and their labels, `UNKNOWN` where there is none."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, index: list[int]) -> "Files":
        """Those at the given places."""
        return Files(tuple(self.paths[i] for i in index), tuple(self.labels[i] for i in index))


@dataclass(frozen=True)
class ImageFolder:
    """The two splits of a folder; no classes if its images have no labels. `note` says how it was split, if it was."""

    train: Files
    evaluation: Files
    classes: tuple[str, ...]
    note: str = ""


def read_folder(root: str | Path, *, seed: int = 0) -> ImageFolder:
    """Finds the images under `root`: `train/CLASS/*` and `val/CLASS/*` (or validation, test), or `CLASS/*` alone.

    Without an evaluation folder, a fifth of each class is held out, drawn with `seed`, and the note says so. Images
    that lie in no class folder have no labels.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"data: no folder {root}.")
    train = _first(root, TRAIN)
    evaluation = _first(root, EVALUATION)
    if evaluation and not train:
        raise ValueError(f"data: {root} has {evaluation.name}/ but no train/; expected train/CLASS/* beside it.")
    files, classes = read_files(train or root)
    if evaluation is None:
        kept, held = split(files, seed)
        note = (
            f"{root} has no evaluation folder ({', '.join(EVALUATION[:2])}, test): {len(held)} of its {len(files)} "
            f"images, drawn with seed {seed}, are held out for evaluation."
        )
        return ImageFolder(kept, held, classes, note)
    others, _ = read_files(evaluation, classes or None)
    return ImageFolder(files, others, classes)


def _first(root: Path, names: tuple[str, ...]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def read_files(folder: Path, classes: tuple[str, ...] | None = None) -> tuple[Files, tuple[str, ...]]:
    """The images of a folder, in order, and its classes; with `classes` given there may be no others."""
    homes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    inside = {home.name: _images(home, "**/*") for home in homes}
    loose = _images(folder, "*")
    found = {name: files for name, files in inside.items() if files}
    if not found and not loose:
        raise ValueError(f"data: no images in {folder}; expected CLASS/* with files such as {', '.join(SUFFIXES[:3])}.")
    if found and loose:
        raise ValueError(f"data: {folder} has class folders and also images beside them, such as {loose[0].name}.")
    if classes is not None:
        unknown = sorted(set(found) - set(classes))
        if unknown or not found:
            what = f"the classes {', '.join(unknown[:5])}, which" if unknown else "no class folders, which"
            raise ValueError(f"data: {folder} has {what} the training images do not have; both need the same ones.")
    names = tuple(found) if classes is None else classes
    paths = [(path, names.index(name)) for name, files in found.items() for path in files]
    paths = paths or [(path, UNKNOWN) for path in loose]
    return Files(tuple(p for p, _ in paths), tuple(label for _, label in paths)), names


def _images(folder: Path, pattern: str) -> list[Path]:
    return sorted(p for p in folder.glob(pattern) if p.suffix.lower() in SUFFIXES and p.is_file())


def split(files: Files, seed: int, fraction: float = HELD_OUT) -> tuple[Files, Files]:
    """The files without, and those with, the given fraction of each class, at least one image."""
    kept: list[int] = []
    held: list[int] = []
    for label in sorted(set(files.labels)):
        own = [i for i, y in enumerate(files.labels) if y == label]
        order = torch.randperm(len(own), generator=generator(seed, "split", label)).tolist()
        n = max(1, round(fraction * len(own)))
        if n >= len(own):
            raise ValueError(f"data: {files.paths[own[0]].parent} has one image only, too few to hold any out.")
        held += [own[i] for i in order[:n]]
        kept += [own[i] for i in order[n:]]
    return files.take(sorted(kept)), files.take(sorted(held))


@dataclass(frozen=True)
class ImageDataset:
    """Reads, converts and transforms image files: a map-style dataset of pairs `(image, label)`."""

    files: Files
    transform: Callable[[Any], Any]
    channels: int = 3

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        from PIL import Image

        path = self.files.paths[i]
        try:
            with Image.open(path) as image:
                pixels = image.convert("L" if self.channels == 1 else "RGB")
        except OSError as error:
            raise ValueError(f"data: {path} is not a readable image: {error}.") from error
        return self.transform(pixels), self.files.labels[i]


@dataclass(frozen=True)
class Placed:
    """A dataset whose random transforms depend on seed, epoch and index alone, wherever and whenever they run."""

    dataset: Any
    seed: int
    epoch: int

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        seed_everything(self.seed, "augment", self.epoch, i)
        return self.dataset[i]
