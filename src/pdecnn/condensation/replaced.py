"""Networks whose convolutions were swapped, as checkpoints: the net before, the kind, and the names of the swapped."""

from pathlib import Path
from typing import Any

from torch import nn

from pdecnn.condensation.convs import KINDS, ReplaceReport, replace_convs
from pdecnn.models.build import build_model, register_builder, timm_entries
from pdecnn.training.checkpoint import save_checkpoint


def build_replaced(description: dict[str, Any]) -> nn.Module:
    """The network of a description `{"base": ..., "kind": ..., "swapped": [names]}`, with fresh weights."""
    base, kind, names = (description.get(key) for key in ("base", "kind", "swapped"))
    if not isinstance(base, dict) or kind not in KINDS or not isinstance(names, list):
        raise ValueError(
            f"build_model: a 'replaced' model needs 'base' (a description), 'kind' ({' or '.join(KINDS)}) and "
            "'swapped' (names of convolutions)."
        )
    if base.get("builder") == "replaced":
        raise ValueError("build_model: the base of a 'replaced' model cannot be one.")
    model, report = replace_convs(build_model(base), kind, fit=False, only=lambda name, _: name in names)
    if sorted(row.name for row in report.swapped) != sorted(map(str, names)):
        raise ValueError("build_model: the convolutions of a 'replaced' model are not those of its base.")
    return model


def save_replaced(
    folder: str | Path, model: nn.Module, report: ReplaceReport, base: dict[str, Any], config: dict[str, Any]
) -> Path:
    """Writes what `replace_convs` made of the model that `base` describes, as a checkpoint that all commands open."""
    names = [row.name for row in report.swapped]
    description = {"builder": "replaced", "base": base, "kind": report.kind, "swapped": names}
    kept = {key: value for key, value in config.items() if key in ("classes", "input", "recipe")}
    known = timm_entries(model, description, kept.get("input"))
    return save_checkpoint(folder, model, {**known, **kept, "model": description})


register_builder("replaced", build_replaced)
