"""`pdecnn.save` and `pdecnn.load`: any model in a folder of config.json and model.safetensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from pdecnn.condensation.card import make_card
from pdecnn.condensation.checkpoint import CONFIG, condensed_config, describe, own_code
from pdecnn.models.build import (
    CustomModelError,
    Factory,
    build_model,
    described_steps,
    timm_entries,
    with_factory,
)
from pdecnn.training.build import find_folder
from pdecnn.training.checkpoint import (
    CARD,
    CheckpointError,
    find_checkpoint,
    load_checkpoint,
    read_config,
    save_checkpoint,
)


def save(
    model: nn.Module,
    folder: str | Path,
    *,
    base: Mapping[str, Any] | None = None,
    example: Any = None,
    card: bool = True,
    name: str | None = None,
    **notes: Any,
) -> Path:
    """Writes a model so that `pdecnn.load`, and all commands, read it; a folder that is there is replaced whole.

    The folder is a repository for the Hugging Face Hub: config.json, model.safetensors and a card, README.md, with
    counts, milliseconds of this machine (about a second is spent on them) and the plan of a condensed model.

    Args:
        model: Condensed, of timm's or torchvision's registry, or of your own making. Folders of timm's models, ours
            and condensed ones among them, also open as `timm.create_model("local-dir:FOLDER", pretrained=True)`.
        folder: Where to.
        base: How to build the model, if it comes from no registry: `{"builder": "custom", "name": "mynets:make"}`.
        example: One input, for the counts and milliseconds of the card; by default zeros of the shape that is known.
        card: Whether to write the card.
        name: Of the repository that it will be, `owner/name`; that of the folder by default.
        notes: Further entries of the config, as plain data: `classes=["cat", "dog"]`. The card tells of `accuracy` (per
            cent), `data`, `seeds`, `epochs`, `license` and `note`.

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
        description = condensed_config(model)
    else:
        description = {**(base or describe(model) or own_code(model)), **described_steps(model)}
    config = {"model": description, **timm_entries(model, description, notes.get("input")), **notes}
    text = make_card(model, config, name or Path(folder).absolute().name, example=example) if card else None
    return save_checkpoint(folder, model, config, extra={CARD: text.encode()} if text else None)


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
