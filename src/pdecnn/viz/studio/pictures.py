"""Images that visitors bring: limited in bytes and pixels, read by Pillow alone, never unpickled."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from pdecnn.training.inputs import Input

MAX_BYTES = 8 * 2**20
MAX_PIXELS = 16_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")


class TooLargeError(ValueError):
    """A picture of more pixels than are read."""


def read_upload(path: str | Path) -> Image.Image:
    """The picture in a file, upright; a ValueError in one sentence if it is not a picture or too large."""
    file = Path(path)
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{file.name} has {size / 2**20:.1f} MB; an image may have {MAX_BYTES // 2**20} MB.")
    kinds = ", ".join(FORMATS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(file, formats=FORMATS)
            pixels = picture.width * picture.height
            if pixels > MAX_PIXELS:
                most = MAX_PIXELS // 10**6
                raise TooLargeError(
                    f"{file.name} has {pixels / 1e6:.0f} million pixels; an image may have {most} million."
                )
            picture.load()
    except TooLargeError:
        raise
    except Exception as error:  # Pillow raises all sorts for damaged files
        raise ValueError(f"{file.name} is not an image that can be read; expected one of {kinds}.") from error
    return ImageOps.exif_transpose(picture)


def read_drawing(drawn: dict[str, Any] | None, *, bright: bool) -> Image.Image:
    """What was drawn on the pad; for nets of white on black (`bright`), centred in a margin as digits are."""
    layers = [] if drawn is None else [np.asarray(layer) for layer in drawn.get("layers") or () if layer is not None]
    alphas = [layer[..., 3] for layer in layers if layer.ndim == 3 and layer.shape[-1] == 4]
    if not alphas or not np.any(np.max(alphas, axis=0)):
        raise ValueError("The pad is empty: draw something on it first.")
    ink = np.max(alphas, axis=0)
    if not bright:
        composite = Image.fromarray(np.asarray(drawn["composite"])).convert("RGBA")  # type: ignore[index]
        return Image.alpha_composite(Image.new("RGBA", composite.size, "white"), composite).convert("RGB")
    (top, bottom), (left, right) = ((q.min(), q.max() + 1) for q in np.nonzero(ink))
    box = Image.fromarray(ink[top:bottom, left:right])
    side = round(1.4 * max(box.size))  # digits of MNIST fill 20 of 28 pixels
    square = Image.new("L", (side, side))
    square.paste(box, ((side - box.width) // 2, (side - box.height) // 2))
    return square


def to_input(picture: Image.Image, wanted: Input) -> Tensor:
    """The picture as an input `(1, C, H, W)`: its middle square, resized, with the model's mean and std."""
    C, H, W = wanted.shape
    if C not in (1, 3):
        raise ValueError(f"This net takes {C} channels; pictures have 1 or 3.")
    if picture.mode in ("RGBA", "LA", "P"):
        clear = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    fitted = ImageOps.fit(picture.convert("L" if C == 1 else "RGB"), (W, H), Image.Resampling.BICUBIC)
    x = torch.from_numpy(np.array(fitted, dtype=np.float32)).reshape(H, W, C).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(q).view(-1, 1, 1) for q in (wanted.mean, wanted.std))
    return ((x - mean) / std).unsqueeze(0)


def to_picture(x: Tensor, wanted: Input) -> np.ndarray:
    """An input `(1, C, H, W)` or `(C, H, W)` as bytes `(H, W, 3)`."""
    x = x.reshape(x.shape[-3:]).float().cpu()
    mean, std = (torch.tensor(q).view(-1, 1, 1) for q in (wanted.mean, wanted.std))
    shown = ((x * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    return shown.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
