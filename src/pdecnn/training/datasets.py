"""The datasets that fit in memory, read from their standard files. No file here is ever unpickled."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pdecnn.shared.environment import data_folder
from pdecnn.shared.names import close_to
from pdecnn.training.data import Dataset, Images

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
FASHION_CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
DIGITS = tuple("0123456789")
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # as published with the Global layer


def load_dataset(name: str, data_dir: str | Path | None = None, *, download: bool = False) -> Dataset:
    """Reads a dataset by name; `DATASETS` lists them. `fashion-mini` ships in the package and needs no `data_dir`.

    Args:
        name: Such as `"fashion-mini"` or `"cifar10"`.
        data_dir: Folder of the standard files; the environment variable `PDECNN_DATA` or `./data` by default.
        download: Fetch missing files from the internet.

    Example:
        >>> data = load_dataset("fashion-mini")
        >>> len(data.train), len(data.test), data.image_shape
        (5000, 1000, (1, 28, 28))
    """
    if name not in DATASETS:
        hint = close_to(name, DATASETS, n=2)
        raise ValueError(f"load_dataset: no dataset named {name!r}.{hint} There are {', '.join(DATASETS)}.")
    root = data_folder(data_dir)
    return DATASETS[name](root, download)


def _fashion_mini(root: Path, download: bool) -> Dataset:
    with np.load(Path(__file__).parent.parent / "data/fashion-mini.npz", allow_pickle=False) as arrays:
        train, test = (_grey(arrays[f"{split}_x"], arrays[f"{split}_y"]) for split in ("train", "test"))
    note = "The first 500 training and 100 test images of each class of Fashion-MNIST."
    return Dataset("fashion-mini", train, test, FASHION_CLASSES, mean=(0.2860,), std=(0.3530,), note=note)


def load_sample(name: str) -> Images:
    """A few real test images that ship in the package, of `"mnist"`, `"cifar10"` or `"fashion-mini"`.

    They are the first 200 of MNIST and the first 100 of CIFAR-10, for figures and checks; too few to measure accuracy.

    Example:
        >>> len(load_sample("cifar10"))
        100
    """
    if name == "fashion-mini":
        return load_dataset(name).test
    with np.load(Path(__file__).parent.parent / "data/sample.npz", allow_pickle=False) as arrays:
        x, y = arrays[f"{name}_x"], arrays[f"{name}_y"]
    return Images(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))


def _mnist_like(name: str, classes: tuple[str, ...], mean: float, std: float) -> Callable[[Path, bool], Dataset]:
    def read(root: Path, download: bool) -> Dataset:
        from torchvision import datasets

        folder = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name]
        reader = getattr(datasets, folder)
        try:
            splits = [reader(str(root), train=train, download=download) for train in (True, False)]
        except RuntimeError as error:
            raise _missing(name, root / folder / "raw", "train-images-idx3-ubyte and its three siblings") from error
        train, test = (_grey(split.data.numpy(), split.targets.numpy()) for split in splits)
        return Dataset(name, train, test, classes, mean=(mean,), std=(std,))

    return read


def _grey(x: np.ndarray, y: np.ndarray) -> Images:
    return Images(torch.from_numpy(x[:, None].copy()), torch.from_numpy(y.astype(np.int64)))


@dataclass(frozen=True)
class Binary:
    """A dataset of fixed-size records: some label bytes, then the pixels, channel by channel."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int
    url: str
    md5: str

    def read(self, name: str, root: Path, download: bool) -> tuple[Images, Images]:
        """Both splits; the label is the last of the label bytes."""
        folder = root / self.folder
        if download and not folder.is_dir():
            from torchvision.datasets.utils import download_and_extract_archive

            download_and_extract_archive(self.url, str(root), md5=self.md5)
        return self._split(name, folder, self.train), self._split(name, folder, self.test)

    def _split(self, name: str, folder: Path, files: tuple[str, ...]) -> Images:
        size = self.label_bytes + 3072
        records = []
        for file in files:
            if not (folder / file).is_file():
                raise _missing(name, folder, file)
            raw = np.fromfile(folder / file, np.uint8)
            if len(raw) % size:
                raise ValueError(
                    f"load_dataset: {folder / file} has {len(raw)} bytes, not a multiple of the record size {size}. "
                    "The file is truncated or of another format; fetch it again."
                )
            records.append(raw.reshape(-1, size))
        rows = np.concatenate(records)
        x = torch.from_numpy(rows[:, self.label_bytes :].reshape(-1, 3, 32, 32).copy())
        return Images(x, torch.from_numpy(rows[:, self.label_bytes - 1].astype(np.int64)))


CIFAR10 = Binary(
    "cifar-10-batches-bin",
    tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    ("test_batch.bin",),
    label_bytes=1,
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
)
CIFAR100 = Binary(
    "cifar-100-binary",
    ("train.bin",),
    ("test.bin",),
    label_bytes=2,
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
)


def _cifar10(root: Path, download: bool) -> Dataset:
    return Dataset("cifar10", *CIFAR10.read("cifar10", root, download), CIFAR10_CLASSES, CIFAR_MEAN, CIFAR_STD)


def _cifar100(root: Path, download: bool) -> Dataset:
    train, test = CIFAR100.read("cifar100", root, download)
    names = root / CIFAR100.folder / "fine_label_names.txt"
    classes = tuple(names.read_text().split()) if names.is_file() else tuple(str(i) for i in range(100))
    return Dataset("cifar100", train, test, classes, CIFAR_MEAN, CIFAR_STD)


def _stl10(root: Path, download: bool) -> Dataset:
    from torchvision import datasets

    try:
        splits = [datasets.STL10(str(root), split=split, download=download) for split in ("train", "test")]
    except RuntimeError as error:
        raise _missing("stl10", root / "stl10_binary", "train_X.bin and its siblings") from error
    train, test = (Images(torch.from_numpy(s.data), torch.from_numpy(s.labels.astype(np.int64))) for s in splits)
    return Dataset("stl10", train, test, STL10_CLASSES, mean=(0.4467, 0.4398, 0.4066), std=(0.2603, 0.2566, 0.2713))


def _missing(name: str, folder: Path, files: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"load_dataset: {name} needs {files} in {folder}, which is not there. Give the right --data-dir, or let it be "
        "fetched with --download."
    )


DATASETS: dict[str, Callable[[Path, bool], Dataset]] = {
    "fashion-mini": _fashion_mini,
    "mnist": _mnist_like("mnist", DIGITS, 0.1307, 0.3081),
    "fashion-mnist": _mnist_like("fashion-mnist", FASHION_CLASSES, 0.2860, 0.3530),
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "stl10": _stl10,
}
