"""`pdecnn.save` and `pdecnn.load`: any model in a folder of config.json and model.safetensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from pdecnn.condensation.checkpoint import CONFIG, describe, own_code, save_condensed
from pdecnn.models.build import CustomModelError, Factory, build_model, timm_entries, with_factory
from pdecnn.training.build import find_folder
from pdecnn.training.checkpoint import CheckpointError, find_checkpoint, load_checkpoint, read_config, save_checkpoint


def save(model: nn.Module, folder: str | Path, *, base: Mapping[str, Any] | None = None, **notes: Any) -> Path:
    """Writes a model so that `pdecnn.load`, and all commands, read it; a folder that is there is replaced whole.

    Args:
        model: Condensed, of timm's or torchvision's registry, or of your own making. Folders of timm's models, ours
            among them, also open as `timm.create_model("local-dir:FOLDER", pretrained=True)`.
        folder: Where to.
        base: How to build the model, if it comes from no registry: `{"builder": "custom", "name": "mynets:make"}`.
        notes: Further entries of the config, as plain data: `classes=["cat", "dog"]`.

    Example:
        >>> import tempfile, timm, pdecnn
        >>> with tempfile.TemporaryDirectory() as home:
        ...     folder = pdecnn.save(timm.create_model("test_resnet", num_classes=2), f"{home}/net")
        ...     pdecnn.load(folder).num_classes
        2
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"save: expected a torch.nn.Module, got {type(model).__name__}. save(model, folder).")
    if hasattr(model, CONFIG):
        return save_condensed(folder, model, **notes)
    description = dict(base or describe(model) or own_code(model))
    return save_checkpoint(folder, model, {"model": description, **timm_entries(model, description), **notes})


def load(folder: str | Path, factory: Factory | None = None) -> nn.Module:
    """The model that `save`, training or a condense job left in a folder, in eval mode.

    Args:
        folder: A checkpoint, a run (its last checkpoint is taken) or a condense job (its student).
        factory: For a model of your own code: the function, or class, that makes it, called with the arguments that
            were saved as far as it declares them. For a condensed one it makes the model before. No file is ever
            trusted to name code that is then run.
    """
    home = find_folder(folder)
    if home is None:
        raise CheckpointError(f"load: no config.json in {folder}; expected a checkpoint, a run or a condense folder.")
    description = read_config(find_checkpoint(home))["model"]
    try:
        model = build_model(with_factory(description, factory))
    except CustomModelError as error:
        raise CustomModelError(error.name, home) from None
    return load_checkpoint(home, model=model).model
