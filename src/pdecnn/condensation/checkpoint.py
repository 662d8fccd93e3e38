"""Condensed models on disk: the config holds the base architecture and the plan, so that no user code is needed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pdecnn.layers.steps import served_steps, with_steps
from pdecnn.models.build import build_model, described_steps, register_builder, timm_entries
from pdecnn.models.described import described, with_classes
from pdecnn.shared.reading import FileError
from pdecnn.training.checkpoint import save_checkpoint

CONFIG = "condensed_config"  # the attribute of a condensed model
MAX_NESTED = 4  # a condensed model may be condensed again
_UNSEEN = ("Dropout", "Dropout2d", "DropPath", "StochasticDepth", "Identity")


def save_condensed(path: str | Path, model: nn.Module, **notes: Any) -> Path:
    """Writes a condensed model as config.json and model.safetensors; `pdecnn.training.load_checkpoint` reads it.

    Args:
        path: The folder.
        model: What `Plan.apply` or `condense` returned.
        notes: Further entries of the config, as plain data.
    """
    config = condensed_config(model)
    return save_checkpoint(path, model, {"model": config, **timm_entries(model, config, notes.get("input")), **notes})


def condensed_config(model: nn.Module) -> dict[str, Any]:
    """The description of a condensed model; a ValueError if no description builds it any more."""
    if not hasattr(model, CONFIG):
        raise ValueError(
            f"save_condensed: {type(model).__name__} is not a condensed model; use Plan.apply or condense."
        )
    config = current_config(model)
    if config is None:
        raise ValueError(
            f"save_condensed: {type(model).__name__} is not what its plan makes of its base any more, so the file "
            "could not be loaded. Change the classes with reset_classifier or before condensing; else keep "
            "plan.save(...) and the state_dict, and replay the plan on a fresh model of your own."
        )
    return config


def current_config(model: nn.Module) -> dict[str, Any] | None:
    """The config of a condensed model with the classes that it has now; None if no config builds such a model."""
    config = getattr(model, CONFIG, None)
    if config is None:
        return None
    config = {**config, **described_steps(model)}
    base = config["base"] or own_code(model)
    if base.get("builder") == "custom":
        return {**config, "base": base}  # only the user's own code can tell
    kwargs = [base.get("kwargs") or {}]
    kwargs += [{**kwargs[0], "num_classes": n} for n in _classes(model)]  # reset_classifier may have been called
    for candidate in ({**config, "base": {**base, "kwargs": k}} for k in kwargs):
        if _shapes(_build_on_meta(candidate)) == _shapes(model):
            return candidate
    return None


def own_code(model: nn.Module) -> dict[str, Any]:
    """The description of a model that no registry builds; its class is named so that people know whom to ask."""
    return {"builder": "custom", "name": f"{type(model).__module__}:{type(model).__qualname__}", "kwargs": {}}


def _classes(model: nn.Module) -> list[int]:
    """How many classes a model may have: by its own word, and by its last linear layer."""
    linear = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)]
    return [n for n in (getattr(model, "num_classes", None), *linear[-1:]) if isinstance(n, int)]


def _shapes(model: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(t.shape)) for name, t in model.state_dict().items()]


def build_condensed(description: dict[str, Any]) -> nn.Module:
    """The model of a config that `save_condensed` wrote, with fresh weights."""
    from pdecnn.condensation.plan import Plan

    base, depth = description.get("base"), 1
    if not isinstance(base, dict) or not isinstance(description.get("plan"), dict):
        raise FileError('build_model: a condensed model needs the entries "base" and "plan".')
    inner: Any = base
    while isinstance(inner, dict) and inner.get("builder") == "condensed":
        inner, depth = inner.get("base"), depth + 1
    if depth > MAX_NESTED:
        raise FileError(f"build_model: {depth} condensed models in each other; at most {MAX_NESTED} are built.")
    return Plan.from_dict(description["plan"]).apply(build_model(base))


def describe(model: nn.Module) -> dict[str, Any] | None:
    """How to build a fresh model of the same architecture, or None if it comes from no registry we know.

    Every guess is built and compared, module by module.
    """
    for guess in _guesses(model):
        description = {**guess, **described_steps(model)}
        try:
            twin = _build_on_meta(description)
        except Exception:  # a guess that does not build is a wrong guess
            continue
        with _same_steps(model, twin):
            if _signature(twin) == _signature(model):
                return description
    return None


@contextmanager
def _same_steps(model: nn.Module, twin: nn.Module) -> Iterator[None]:
    """Gives both the same K if the model serves several: which one is set is no part of what it is."""
    served = served_steps(model)
    with ExitStack() as stack:
        if served is not None:
            stack.enter_context(with_steps(model, served[0]))
            stack.enter_context(with_steps(twin, served[0]))
        yield


def _guesses(model: nn.Module) -> list[dict[str, Any]]:
    home = type(model).__module__
    if home.startswith("torchvision.models."):
        return _torchvision_guesses(model)
    cfg = getattr(model, "pretrained_cfg", None)
    if known := described(cfg):
        return [known, with_classes(known, getattr(model, "num_classes", None))]
    name = (cfg.get("architecture") if isinstance(cfg, dict) else getattr(cfg, "architecture", None)) or ""
    if not name:
        return []
    classes = getattr(model, "num_classes", None)
    in_chans = getattr(model, "in_chans", None) or _in_channels(model)
    own = {"num_classes": classes} if isinstance(classes, int) else {}
    plain = {"builder": "timm", "name": name, "kwargs": own}
    return [plain, {**plain, "kwargs": {**own, "in_chans": in_chans}}]


def _torchvision_guesses(model: nn.Module) -> list[dict[str, Any]]:
    from torchvision import models

    home = type(model).__module__
    names = [n for n in models.list_models(module=models) if models.get_model_builder(n).__module__ == home]
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    kwargs: dict[str, Any] = {"num_classes": linear[-1].out_features} if linear else {}
    if getattr(model, "transform_input", False):  # pretrained Inception; no module shows it
        kwargs["transform_input"] = True
    return [{"builder": "torchvision", "name": name, "kwargs": kwargs} for name in names]


def _in_channels(model: nn.Module) -> int:
    conv = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return 3 if conv is None else conv.in_channels


def _build_on_meta(description: dict[str, Any]) -> nn.Module:
    try:
        with torch.device("meta"):
            return build_model(description)
    except (NotImplementedError, RuntimeError):  # something reads values while it is built
        return build_model(description)


def _signature(model: nn.Module) -> tuple[Any, Any]:
    modules = [(n, type(m).__name__, m.extra_repr()) for n, m in model.named_modules()]
    return [m for m in modules if m[1] not in _UNSEEN], _shapes(model)


register_builder("condensed", build_condensed)
