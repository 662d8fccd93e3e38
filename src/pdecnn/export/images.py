"""Real images to compare and calibrate on: the embedded Fashion-MNIST excerpt, in the size that a model takes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.training.augment import normalise
from pdecnn.training.datasets import load_dataset


def real_images(size: Sequence[int], count: int, *, split: str = "test") -> Tensor:
    """`count` normalised images `(count, C, H, W)` of the embedded dataset, resized to `size = (C, H, W)`.

    Example:
        >>> real_images((3, 32, 32), 4).shape
        torch.Size([4, 3, 32, 32])
    """
    data = load_dataset("fashion-mini")
    images = data.train if split == "train" else data.test
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count]
    x = normalise(images.x[order], data.mean, data.std)
    C, H, W = size
    if tuple(x.shape[2:]) != (H, W):
        x = functional.interpolate(x, size=(H, W), mode="bilinear", align_corners=False)
    return x.expand(-1, C, -1, -1).contiguous()
