"""Models that no name alone stands for (condensed ones, ones that serve every K) in folders that timm opens.

timm writes `model.pretrained_cfg` into config.json when it saves, and hands it to the model's function when it opens
such a folder. So the description of the model, which `build_model` understands, goes there, under the name of a
function that builds from it. No listing shows that name, as it stands for nothing without a description.
"""

from typing import Any

from timm.models import _registry as registry
from timm.models import load_pretrained
from torch import nn

ARCHITECTURE = "pdecnn_model"
KEY = "pdecnn"  # of pretrained_cfg: the description
_SOURCES = ("url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "tag")


def tell_timm(model: nn.Module, description: dict[str, Any]) -> None:
    """Lets timm's own `save_for_hf` and `push_to_hf_hub` write a folder that timm opens as this model.

    If only code of the user's builds the model, timm does not save it.
    """
    cfg: Any = getattr(model, "pretrained_cfg", None)
    if not isinstance(cfg, dict):
        return
    cfg = {key: value for key, value in cfg.items() if key not in (*_SOURCES, "architecture", KEY)}
    if can_describe(description):
        cfg |= {"architecture": ARCHITECTURE, KEY: description}
    model.pretrained_cfg = model.default_cfg = cfg  # type: ignore[assignment]
    model._model_args = {}  # type: ignore[assignment]


def described(cfg: Any) -> dict[str, Any] | None:
    """The description in a `pretrained_cfg`, if there is one."""
    found = cfg.get(KEY) if isinstance(cfg, dict) else None
    return found if isinstance(found, dict) else None


def can_describe(description: dict[str, Any]) -> bool:
    """Whether a description is enough to build its model, without code of the user's."""
    while isinstance(base := description.get("base"), dict):
        description = base
    return "base" not in description and description.get("builder") != "custom"


def with_classes(description: dict[str, Any], num_classes: int | None) -> dict[str, Any]:
    """The description of the same model with another number of classes."""
    if num_classes is None:
        return description
    if isinstance(base := description.get("base"), dict):
        return {**description, "base": with_classes(base, num_classes)}
    return {**description, "kwargs": {**(description.get("kwargs") or {}), "num_classes": num_classes}}


def pdecnn_model(
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    cache_dir: Any = None,
    num_classes: int | None = None,
    **kwargs: Any,
) -> nn.Module:
    """What timm calls to open a folder or repository of such a model."""
    from pdecnn.models.build import build_model

    cfg = {**pretrained_cfg, **(pretrained_cfg_overlay or {})} if isinstance(pretrained_cfg, dict) else {}
    saved = kwargs.pop(
        "pretrained_model_args", {}
    )  # timm notes what it knows of any model; the description says it too
    asked = sorted(key for key, value in kwargs.items() if value != saved.get(key))
    description = described(cfg)
    if description is None:
        raise ValueError(
            f"{ARCHITECTURE}: stands for models that pdecnn describes in a folder, and there is no description. "
            "Open one as timm.create_model('local-dir:FOLDER', pretrained=True) or 'hf-hub:OWNER/NAME'."
        )
    if asked:
        raise ValueError(f"{ARCHITECTURE}: a saved model takes num_classes only, got {', '.join(asked)}.")
    own = cfg.get("num_classes")
    model = build_model(with_classes(description, own))
    tell_timm(model, with_classes(description, own))
    if pretrained:
        channels = (cfg.get("input_size") or (3,))[0]
        load_pretrained(model, cfg, num_classes=own, in_chans=channels, cache_dir=cache_dir)
    if num_classes is not None and num_classes != own:
        model.reset_classifier(num_classes)  # type: ignore[operator]
    return model


registry._model_entrypoints[ARCHITECTURE] = pdecnn_model
registry._deprecated_models[ARCHITECTURE] = None  # hidden from timm.list_models()
