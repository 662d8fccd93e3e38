"""Real images to compare and calibrate on, in the size that a model takes: the embedded ones, or those of a dataset."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.training.augment import normalise
from pdecnn.training.datasets import load_dataset


def real_images(size: Sequence[int], count: int, *, split: str = "test", data: str = "fashion-mini") -> Tensor:
    """`count` normalised images `(count, C, H, W)` of a dataset, resized to `size = (C, H, W)`.

    Example:
        >>> real_images((3, 32, 32), 4).shape
        torch.Size([4, 3, 32, 32])
    """
    found = load_dataset(data)
    images = found.train if split == "train" else found.test
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count]
    x = normalise(images.x[order], found.mean, found.std)
    C, H, W = size
    if x.shape[1] not in (1, C):
        raise ValueError(f"export: the images of {data!r} have {x.shape[1]} channels, the model takes {C}.")
    if tuple(x.shape[2:]) != (H, W):
        x = functional.interpolate(x, size=(H, W), mode="bilinear", align_corners=False)
    return x.expand(-1, C, -1, -1).contiguous()
