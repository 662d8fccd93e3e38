"""Augmentation of whole batches as tensor code: pad and crop, flip, rescale, normalise, cutout."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as nnf


@dataclass(frozen=True)
class Augment:
    """What happens to a training batch, in this order: crop, flip, rescale, normalise, cutout.

    Args:
        pad: Zero padding before a random crop; 0 means none.
        shrink: Pixels by which that crop is smaller than the images, for epochs that are shorter; 0 keeps their size.
        flip: Probability of a horizontal flip.
        scale: Range of random magnification about the centre, such as `(0.8, 1.2)`; none by default.
        cutout: Side of one square hole, zero after normalisation and possibly over the border; 0 means none.

    Example:
        >>> images = torch.full((4, 3, 8, 8), 255, dtype=torch.uint8)
        >>> out = Augment(pad=2, flip=0.5)(images, torch.Generator().manual_seed(0), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> out.shape, round(out.max().item(), 5), round(out.min().item(), 5)
        (torch.Size([4, 3, 8, 8]), 1.0, -1.0)
    """

    pad: int = 0
    shrink: int = 0
    flip: float = 0.0
    scale: tuple[float, float] | None = None
    cutout: int = 0

    def __call__(
        self, images: Tensor, g: torch.Generator, *, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> Tensor:
        """Augments and normalises `(N, C, H, W)` images of type uint8."""
        choices = self.draw(len(images), images.shape[-2:], g)
        return self.apply(images, choices, mean=mean, std=std)

    def draw(self, n: int, size: tuple[int, ...], g: torch.Generator) -> dict[str, Tensor]:
        """The random choices for `n` images of `size` (H, W), one row per image, so that processes can share them."""
        if min(size) <= self.shrink:
            raise ValueError(f"augment: shrink={self.shrink} leaves nothing of images of {size[0]}x{size[1]} pixels.")
        choices: dict[str, Tensor] = {}
        if room := 2 * self.pad + self.shrink:
            choices["shift"] = torch.randint(0, room + 1, (n, 2), generator=g)
        if self.flip:
            choices["flip"] = torch.rand(n, generator=g) < self.flip
        if self.scale:
            low, high = self.scale
            choices["scale"] = low + (high - low) * torch.rand(n, generator=g)
        if self.cutout:
            inside = [torch.randint(0, m - self.shrink, (n,), generator=g) for m in size]
            choices["hole"] = torch.stack(inside, dim=1)
        return choices

    def apply(
        self, images: Tensor, choices: dict[str, Tensor], *, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> Tensor:
        """Carries out the drawn choices on `images` and normalises."""
        if "shift" in choices:
            images = shifted_crop(images, choices["shift"], self.pad, self.shrink)
        if "flip" in choices:
            images = torch.where(choices["flip"].view(-1, 1, 1, 1), images.flip(-1), images)
        x = normalise(images, mean, std)
        if "scale" in choices:
            x = magnify(x, choices["scale"])
        if "hole" in choices:
            x = x * outside_hole(choices["hole"], x.shape[-2:], self.cutout)
        return x


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """`(images / 255 - mean) / std` per channel, as float32."""
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).view(1, -1, 1, 1)
    scale = torch.tensor([1 / (255 * s) for s in std]).view(1, -1, 1, 1)
    return torch.addcmul(shift, images.float(), scale)


def shifted_crop(images: Tensor, shift: Tensor, pad: int, shrink: int = 0) -> Tensor:
    """Pads with zeros and reads the window at offset `shift` (row, column), so that `pad, pad` is no shift at all.

    The window is smaller than the images by `shrink` pixels a side.
    """
    H, W = (m - shrink for m in images.shape[-2:])
    windows = nnf.pad(images, (pad,) * 4).unfold(2, H, 1).unfold(3, W, 1)  # (N, C, rows, columns, H, W), a view
    return windows[torch.arange(len(images)), :, shift[:, 0], shift[:, 1]]


def magnify(x: Tensor, scale: Tensor) -> Tensor:
    """Magnifies each image about its centre by bilinear interpolation; what lies outside is zero."""
    theta = torch.zeros(len(x), 2, 3, dtype=x.dtype)
    theta[:, 0, 0] = theta[:, 1, 1] = 1 / scale
    return nnf.grid_sample(x, nnf.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


def outside_hole(centre: Tensor, size: tuple[int, ...], side: int) -> Tensor:
    """`(N, 1, H, W)`: zero within the square of `side` around `centre` (row, column), one elsewhere."""
    inside = []
    for axis, m in enumerate(size):
        first = centre[:, axis, None] - side // 2
        index = torch.arange(m)
        inside.append((index >= first) & (index < first + side))
    return (~(inside[0][:, None, :, None] & inside[1][:, None, None, :])).float()
