"""Nets that visitors name: opened for one visitor alone, with their inputs, class names and images to try."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import nn

from pdecnn.models.build import name_to_description
from pdecnn.training.build import NamedModel, find_folder, open_model
from pdecnn.training.datasets import CIFAR10_CLASSES, DIGITS, FASHION_CLASSES, load_sample
from pdecnn.training.inputs import Input, input_of

CLASSES = {"cifar10": CIFAR10_CLASSES, "mnist": DIGITS, "fashion-mini": FASHION_CLASSES}
SAMPLES = 24


@dataclass(frozen=True, eq=False)
class Net:
    """An opened net: the model is this visitor's own."""

    name: str
    found: NamedModel
    wanted: Input
    classes: tuple[str, ...]
    samples: str  # which embedded images suit it

    @property
    def model(self) -> nn.Module:
        """The model, in eval mode."""
        return self.found.model

    def label(self, number: int) -> str:
        """The name of a class."""
        return self.classes[number] if number < len(self.classes) else f"class {number}"


def open_net(name: str, size: str = "", *, local: bool = True) -> Net:
    """The net of a name of the grammar of all commands, or of a checkpoint folder.

    Args:
        name: As `pdecnn condense MODEL`.
        size: `C,H,W` of an input; the model's own if empty.
        local: Whether only people at this machine use the page. If not, nobody's code is imported and no folder read
            on their word but those below the current one.
    """
    name = name.strip()
    if not name:
        raise ValueError("Name a model: a registered name, timm:NAME, torchvision:NAME, or a checkpoint folder.")
    if not local:
        refuse_beyond(name)
    found = open_model(name)
    shape = _parse(size) if size.strip() else None
    wanted = input_of(found.model, found.config.get("input"), shape=shape)
    channels = getattr(found.model, "in_chans", None)
    if shape is None and isinstance(channels, int) and channels != wanted.shape[0]:
        wanted = input_of(found.model, found.config.get("input"), shape=(channels, *wanted.shape[1:]))
    samples = _samples(name, wanted)
    classes = tuple(found.config.get("classes") or ()) or _known(name, found.model, samples)
    return Net(name, found, wanted, classes, samples)


def refuse_beyond(name: str) -> None:
    """A ValueError for names that a page which others can reach must not follow."""
    path = Path(name)
    if find_folder(name) or path.exists():
        if not path.resolve().is_relative_to(Path.cwd().resolve()):
            raise ValueError("This page can be reached by others: it opens folders below its own only.")
    elif name.startswith("hf-hub:") or name_to_description(name)["builder"] == "custom":
        raise ValueError("This page can be reached by others: it opens names of timm and torchvision only.")


def pick(net: Net, number: int) -> Image.Image:
    """An embedded image that suits the net, by its number."""
    images = load_sample(net.samples).x
    if not 0 <= number < len(images):
        raise ValueError(f"There are images 0 to {len(images) - 1}, got {number}.")
    return _as_image(images[number].numpy())


def gallery(net: Net) -> list[tuple[Image.Image, str]]:
    """The first embedded images and their true classes."""
    sample, names = load_sample(net.samples), CLASSES[net.samples]
    some = zip(sample.x[:SAMPLES].numpy(), sample.y[:SAMPLES].tolist(), strict=True)
    return [(_as_image(x).resize((96, 96), Image.Resampling.NEAREST), names[y]) for x, y in some]


def _as_image(x: np.ndarray) -> Image.Image:
    shown = x.astype(np.uint8)
    return Image.fromarray(shown[0] if len(shown) == 1 else np.ascontiguousarray(shown.transpose(1, 2, 0)))


def _samples(name: str, wanted: Input) -> str:
    if re.search(r"fashion", name):
        return "fashion-mini"
    if re.search(r"mnist", name):
        return "mnist"
    return "fashion-mini" if wanted.shape[0] == 1 else "cifar10"


def _known(name: str, model: nn.Module, samples: str) -> tuple[str, ...]:
    """Names of classes where the weights say by their tag what they were trained on."""
    trained: Any = re.search(r"\.(cifar10|mnist|fashion_mini)$", name)
    return CLASSES[samples] if trained and getattr(model, "num_classes", 0) == len(CLASSES[samples]) else ()


def _parse(text: str) -> tuple[int, ...]:
    try:
        size = tuple(int(part) for part in text.split(","))
    except ValueError:
        size = ()
    if len(size) != 3 or min(size) < 1 or max(size) > 1024:
        raise ValueError(f"The input size is three numbers C,H,W of at most 1024, such as 3,32,32; got {text!r:.40}.")
    return size
