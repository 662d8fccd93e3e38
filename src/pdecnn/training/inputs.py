"""How images become inputs of a model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Input:
    """How images become inputs of a model: their shape and normalisation, and how they are cropped."""

    shape: tuple[int, int, int] = (3, 224, 224)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    crop_pct: float = 0.875

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Input":
        """What `to_dict` returned; what is missing has its default."""
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in saved.items()}
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """As checkpoints keep it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def input_of(
    model: nn.Module,
    saved: Mapping[str, Any] | None = None,
    *,
    shape: tuple[int, ...] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Input:
    """What a model wants to be given: what the user says, what its checkpoint says, what timm's data config says."""
    from timm.data import resolve_data_config

    cfg = resolve_data_config({}, model=model)
    given = {"shape": shape, "mean": mean, "std": std}
    usual = {"shape": cfg["input_size"], "mean": cfg["mean"], "std": cfg["std"]}
    known = {key: tuple(given[key] or (saved or {}).get(key) or usual[key]) for key in given}
    size = known["shape"]
    if len(size) != 3:
        raise ValueError(f"data: images have three sizes, channels, height and width, got --input {size}.")
    for key in ("mean", "std"):
        values = known[key]
        if len(values) == 1 or (size[0] == 1 and given[key] is None and len(values) != 1):
            known[key] = (sum(values) / len(values),) * size[0]
        elif len(values) != size[0]:
            raise ValueError(f"data: --{key} has {len(values)} values for {size[0]} channels.")
    crop = {key: (saved or {}).get(key) or cfg[key] for key in ("interpolation", "crop_pct")}
    return Input(known["shape"], known["mean"], known["std"], crop["interpolation"], float(crop["crop_pct"]))
