"""Writes the excerpt of Fashion-MNIST that ships in the package: the first images of every class, as a plain npz file.

python tools/make_fashion_mini.py --data-dir DIR   # DIR holds FashionMNIST/raw as torchvision stores it
"""

import argparse
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets import FashionMNIST

TARGET = Path(__file__).parent.parent / "src/pdecnn/data/fashion-mini.npz"
TRAIN_PER_CLASS, TEST_PER_CLASS = 500, 100


def first_of_each_class(labels: torch.Tensor, n: int) -> torch.Tensor:
    """Indices of the first `n` images of every class, in their original order."""
    per_class = [(labels == c).nonzero().flatten()[:n] for c in range(10)]
    return torch.cat(per_class).sort().values


def main() -> None:
    """Reads the full set, takes the excerpt and writes it; the same bytes on every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", required=True, type=Path)
    arguments = parser.parse_args()

    arrays: dict[str, np.ndarray] = {}
    for split, n in (("train", TRAIN_PER_CLASS), ("test", TEST_PER_CLASS)):
        full = FashionMNIST(str(arguments.data_dir), train=split == "train")
        index = first_of_each_class(full.targets, n)
        arrays[f"{split}_x"] = full.data[index].numpy()
        arrays[f"{split}_y"] = full.targets[index].to(torch.uint8).numpy()

    TARGET.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(TARGET, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            buffer = BytesIO()
            np.save(buffer, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(2017, 8, 25, 0, 0, 0))  # fixed, for equal bytes
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, buffer.getvalue())
    print(f"{TARGET}: {TARGET.stat().st_size / 1e6:.2f} MB, {arrays['train_x'].shape}, {arrays['test_x'].shape}")


if __name__ == "__main__":
    main()
