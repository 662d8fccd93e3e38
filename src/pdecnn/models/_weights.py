"""Weights that ship in the package: safetensors files named `<model>.<tag>.safetensors`."""

from pathlib import Path
from typing import Any

WEIGHTS = Path(__file__).parent.parent / "weights"


def shipped(name: str, cfg: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The default_cfgs entry of `name` (`"<model>.<tag>"`) with its weights file, or none if the file is not there.

    timm reads the file itself, so that `timm.create_model(name, pretrained=True)` works without a network.
    """
    file = WEIGHTS / f"{name}.safetensors"
    return {name: {**cfg, "file": str(file)}} if file.is_file() else {}
