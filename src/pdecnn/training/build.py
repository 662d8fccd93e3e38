"""Models from their description: the `model` part of a recipe and of a checkpoint's config.json."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from pdecnn.reference.advection_diffusion import MAX_STEPS
from pdecnn.shared.names import close_to

Builder = Callable[[dict[str, Any]], nn.Module]

_BUILDERS: dict[str, Builder] = {}
_HOMES = {"condensed": "pdecnn.condensation"}  # importing the module registers its builder
_UNSAFE = ("pretrained", "checkpoint", "cache_dir", "scriptable")


def register_builder(name: str, builder: Builder) -> None:
    """Makes `build_model` understand descriptions with `"builder": name`."""
    _BUILDERS[name] = builder


def build_model(description: dict[str, Any], *, pretrained: bool = False) -> nn.Module:
    """Builds the model that a description names, with fresh weights, or with timm's own if `pretrained`.

    A description has `builder` ("timm" unless another part of the package registered its own) and, for timm, `name`
    and `kwargs`. It comes from files that may be anyone's, so it can name registered models only: nothing is imported,
    downloaded or unpickled on its behalf.

    Example:
        >>> model = build_model({"name": "test_resnet", "kwargs": {"num_classes": 10}})
        >>> model.num_classes
        10
    """
    kind = description.get("builder", "timm")
    if kind not in _BUILDERS and kind in _HOMES:
        import_module(_HOMES[kind])
    if kind not in _BUILDERS:
        raise ValueError(
            f"build_model: the checkpoint or recipe asks for a {kind!r} model, which cannot be built from its "
            f"description; there are {', '.join(sorted({*_BUILDERS, *_HOMES}))}. Build the model and pass it as model=."
        )
    if pretrained and kind != "timm":
        raise ValueError(f"build_model: only timm models come pretrained, not {kind!r} ones.")
    return _build_timm(description, pretrained=True) if pretrained else _BUILDERS[kind](description)


def _build_timm(description: dict[str, Any], pretrained: bool = False) -> nn.Module:
    import timm

    import pdecnn.models  # noqa: F401  (registers our models)

    name, kwargs = description.get("name"), description.get("kwargs") or {}
    if not isinstance(kwargs, dict):
        raise ValueError(f"build_model: kwargs must be keywords and values, got {kwargs!r:.80}; the model is {name!r}.")
    check_model_name(name)
    for key in kwargs:
        if key.startswith(_UNSAFE):
            raise ValueError(f"build_model: kwargs may not contain {key!r}, as it reads files; the model is {name!r}.")
    check_steps(kwargs)
    model: nn.Module = timm.create_model(name, pretrained=pretrained, **kwargs)
    return model


def check_steps(kwargs: dict[str, Any]) -> None:
    """Raises a ValueError if the keywords of a model ask for more time steps than a solver makes."""
    options = kwargs.get("global_options")
    for K in (kwargs.get("K"), options.get("K") if isinstance(options, dict) else None):
        if isinstance(K, int) and K > MAX_STEPS:
            raise ValueError(f"build_model: K (number of time steps) must be at most {MAX_STEPS:,}, got K={K}.")


def check_model_name(name: object) -> None:
    """Raises a ValueError unless `name` is that of a registered model, with close names as a hint."""
    import timm
    from timm.models import is_model

    import pdecnn.models  # noqa: F401

    if not isinstance(name, str) or not is_model(name):
        hint = close_to(name, timm.list_models())
        raise ValueError(f"build_model: no model named {name!r}.{hint} timm.list_models() shows all.")


def load_teacher(source: str) -> nn.Module:
    """A teacher for distillation: a checkpoint or run folder, or a registered model that has weights."""
    from pdecnn.training.checkpoint import load_checkpoint

    if Path(source).exists():
        return load_checkpoint(source).model
    return build_model({"name": source}, pretrained=True).eval()


def import_factory(text: str) -> Callable[..., nn.Module]:
    """The callable that the user named on the command line as `module:function`; also from the current folder."""
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"model: expected a registered model or module:function, got {text!r}.")
    if os.getcwd() not in sys.path:  # the installed command does not look there
        sys.path.insert(0, os.getcwd())
    home = import_module(module)
    factory = getattr(home, name, None)
    if not callable(factory):
        raise ValueError(f"model: {module} has no function named {name!r}.{close_to(name, dir(home))}")
    return factory  # type: ignore[no-any-return]


register_builder("timm", _build_timm)
