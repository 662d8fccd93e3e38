"""The model that a user names: one grammar for all commands, `pdecnn.models.build` and folders of checkpoints."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from pdecnn.models.build import (
    CustomModelError,
    build_model,
    build_named,
    import_factory,
    name_to_description,
    with_factory,
)
from pdecnn.models.described import described, with_classes
from pdecnn.models.weights import load_weights
from pdecnn.training.checkpoint import find_checkpoint, load_checkpoint, read_config

FILES = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".safetensors")


@dataclass(frozen=True)
class NamedModel:
    """A model and what is known of it: how to build it again, the config of its checkpoint, where its weights are from.

    `weights` is empty if they are random.
    """

    model: nn.Module
    description: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    weights: str = ""


def open_model(
    name: str,
    *,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    pretrained: bool = False,
    factory: str | None = None,
) -> NamedModel:
    """The model that `name` means, in eval mode.

    Args:
        name: A registered model, `timm:`, `torchvision:`, `hf-hub:`, `module:function`, or a checkpoint, run or
            condense folder.
        weights: A file to load into it.
        num_classes: Number of classes; the model's own by default.
        pretrained: Load timm's own weights; a name with a tag does so by itself.
        factory: `module:function` that makes the model of a folder, if it is one of the user's own.
    """
    if folder := find_folder(name):
        found = _from_folder(folder, num_classes, factory)
    elif Path(name).suffix in FILES and Path(name).is_file():
        raise ValueError(f"model: {name} holds weights; name the model that they are for: MODEL --weights {name}.")
    else:
        found = _from_name(name, num_classes, pretrained, weights is not None)
    if weights is not None:
        note = load_weights(found.model, weights)
        found = NamedModel(found.model, found.description, found.config, note)
    found.model.eval()
    return found


def find_folder(name: str | Path) -> Path | None:
    """The checkpoint folder that `name` means: itself, the last one of a run, or the student of a condense job."""
    homes = (Path(name), Path(name) / "last", Path(name) / "student")
    return next((home for home in homes if (home / "config.json").is_file()), None)


def _from_folder(folder: Path, num_classes: int | None, factory: str | None) -> NamedModel:
    config = read_config(find_checkpoint(folder))
    make = None if factory is None else import_factory(factory)
    try:
        model = build_model(with_factory(config["model"], make))
    except CustomModelError as error:
        raise CustomModelError(error.name, folder) from None
    load_checkpoint(folder, model=model)
    own = config["model"].get("base") or config["model"]
    has = (own.get("kwargs") or {}).get("num_classes", getattr(model, "num_classes", None))
    if num_classes is not None and has is not None and has != num_classes:
        raise ValueError(f"model: {folder} holds a model of {has} classes, not of {num_classes}.")
    return NamedModel(model, config["model"], config, str(folder))


def _from_name(name: str, num_classes: int | None, pretrained: bool, overwritten: bool) -> NamedModel:
    description = name_to_description(name, num_classes)
    registered = description["builder"] == "timm" and not name.startswith("hf-hub:")
    pretrained = pretrained or (registered and "." in description["name"] and not overwritten)
    try:
        model = build_named(name, num_classes=num_classes, pretrained=pretrained)
    except ValueError as error:
        if "no model named" not in str(error) or ":" in name:
            raise
        raise ValueError(f"{error} If it is a path, expected a checkpoint or a run folder there.") from error
    if name.startswith("hf-hub:"):
        cfg: Any = getattr(model, "pretrained_cfg", None) or {}
        own: dict[str, Any] = {"num_classes": model.num_classes}  # that of its config, if none was asked for
        if known := described(cfg):
            return NamedModel(model, with_classes(known, own["num_classes"]), {}, name)
        description = {**description, "name": cfg.get("architecture") or name, "kwargs": own}
        return NamedModel(model, description, {}, name)
    return NamedModel(model, description, {}, f"{name}, as timm has them" if pretrained else "")
