"""Models from their description, as recipes and checkpoints hold it, and from their name, as users write it.

resnet18, timm:resnet18   a model of timm's registry, ours among them; with a tag (`resnet18.a1_in1k`) it is trained
torchvision:resnet18      a model of torchvision
hf-hub:timm/resnet18      a model of the Hugging Face Hub, with its weights
mynets:make               what the function `make` of your module `mynets` gives
"""

import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from torch import nn

from pdecnn.layers.steps import serve_steps, served_steps
from pdecnn.models.described import ARCHITECTURE, KEY, can_describe, tell_timm
from pdecnn.reference.advection_diffusion import MAX_STEPS
from pdecnn.shared.names import close_to

Builder = Callable[[dict[str, Any]], nn.Module]
Factory = Callable[..., nn.Module]

_BUILDERS: dict[str, Builder] = {}
_HOMES = {
    "condensed": "pdecnn.condensation",
    "replaced": "pdecnn.condensation.replaced",
}  # importing the module registers its builder
_UNSAFE = ("pretrained", "checkpoint", "cache_dir", "scriptable")


class CustomModelError(ValueError):
    """A model that only a function of the user's makes; a file may name that function but never have it run."""

    def __init__(self, name: str, folder: object = "FOLDER") -> None:
        self.name, self.folder = name, str(folder)
        make = name.partition(":")[2] or "make"
        super().__init__(
            f"load: the model in {folder} is made by your own code, {name}, which is not run unless you name it: "
            f"--model {name} on the command line, or pdecnn.load({str(folder)!r}, factory={make}) in Python."
        )


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
    model = _build_timm(description, pretrained=True) if pretrained else _BUILDERS[kind](description)
    return with_served_steps(model, description)


def with_served_steps(model: nn.Module, description: Mapping[str, Any]) -> nn.Module:
    """The model with statistics for every K that its description names, `{"steps": {"least": 1, "most": 10}}`."""
    given = description.get("steps")
    if given is None:
        return model
    if not isinstance(given, dict) or set(given) != {"least", "most"}:
        raise ValueError(f"build_model: steps must be given as least and most, got {given!r:.80}.")
    tell_timm(serve_steps(model, **given), dict(description))
    return model


def described_steps(model: nn.Module) -> dict[str, Any]:
    """The entry of a model's description for the K that it has statistics for; none if it keeps none apart."""
    served = served_steps(model)
    return {} if served is None else {"steps": dict(zip(("least", "most"), served, strict=True))}


def with_factory(description: Mapping[str, Any], factory: Factory | None) -> dict[str, Any]:
    """The description with the function that makes the model, or the model that was condensed, put in; for memory."""
    if factory is None:
        return dict(description)
    if description.get("builder") == "condensed":
        return {**description, "base": with_factory(description.get("base") or {}, factory)}
    return {"kwargs": description.get("kwargs") or {}, "builder": "custom", "factory": factory}


def name_to_description(name: str, num_classes: int | None = None) -> dict[str, Any]:
    """What a name of the grammar above stands for.

    Example:
        >>> name_to_description("torchvision:resnet18", 10)
        {'builder': 'torchvision', 'name': 'resnet18', 'kwargs': {'num_classes': 10}}
    """
    home, _, rest = name.partition(":")
    kwargs = {} if num_classes is None else {"num_classes": num_classes}
    if home in ("timm", "torchvision") and rest:
        return {"builder": home, "name": rest, "kwargs": kwargs}
    return {"builder": "custom" if rest and home != "hf-hub" else "timm", "name": name, "kwargs": kwargs}


def build_named(name: str, *, num_classes: int | None = None, pretrained: bool = False) -> nn.Module:
    """The model of a name; its code is imported if it is a function of the user's."""
    description = name_to_description(name, num_classes)
    if description["builder"] == "custom":
        if pretrained:
            raise ValueError(f"model: --pretrained is for models of timm; let {name} load its weights itself.")
        return call_factory(_import(name), description["kwargs"], name)
    if name.startswith("hf-hub:"):
        return _from_hub(name, description["kwargs"])
    return build_model(description, pretrained=pretrained)


def _import(name: str) -> Any:
    try:
        return import_factory(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"model: cannot import {name.partition(':')[0]!r}: {error}. Expected timm:NAME, torchvision:NAME, "
            "hf-hub:NAME or module:function."
        ) from error


def import_factory(text: str) -> Factory:
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


def call_factory(factory: Factory, kwargs: Mapping[str, Any], name: str = "the factory") -> nn.Module:
    """What the function gives for those of the arguments that it declares; a module is taken as it is."""
    try:
        if isinstance(factory, nn.Module):
            net: Any = factory
        else:
            parameters = inspect.signature(factory).parameters
            takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            net = factory(**{key: value for key, value in kwargs.items() if takes_all or key in parameters})
    except TypeError as error:
        raise ValueError(f"model: {name} does not work without arguments: {error}.") from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"model: {name} gave a {type(net).__name__}, expected a torch.nn.Module.")
    return net


def _build_custom(description: dict[str, Any]) -> nn.Module:
    factory = description.get("factory")  # never from a file: JSON has no functions
    if not callable(factory):
        raise CustomModelError(str(description.get("name")))
    return call_factory(factory, description.get("kwargs") or {})


def _build_timm(description: dict[str, Any], pretrained: bool = False) -> nn.Module:
    import timm

    import pdecnn.models  # noqa: F401  (registers our models)

    name, kwargs = description.get("name"), description.get("kwargs") or {}
    if not isinstance(kwargs, dict):
        raise ValueError(f"build_model: kwargs must be keywords and values, got {kwargs!r:.80}; the model is {name!r}.")
    check_model_name(name)
    check_steps(kwargs)
    for key in kwargs:
        if key.startswith(_UNSAFE):
            raise ValueError(f"build_model: kwargs may not contain {key!r}, as it reads files; the model is {name!r}.")
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **kwargs)
    except RuntimeError as error:
        if not pretrained:
            raise
        raise ValueError(f"build_model: {name!r} has no weights to load: {error}") from error
    except OSError as error:
        if not pretrained:
            raise
        raise ValueError(
            f"model: cannot fetch the weights of {name} ({_reason(error)}); without a network, fetch the file "
            "elsewhere and give it as --weights FILE, or --teacher-weights for a teacher."
        ) from error
    return model


def _from_hub(name: str, kwargs: dict[str, Any]) -> nn.Module:
    import timm

    log = logging.getLogger("huggingface_hub")  # it tells of every retry
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        model: nn.Module = timm.create_model(name, pretrained=True, **kwargs)
    except Exception as error:  # the hub's errors have no common kind
        raise ValueError(
            f"model: cannot fetch {name} ({_reason(error)}); without a network, fetch its file of weights elsewhere "
            "and name timm:NAME --weights FILE."
        ) from error
    finally:
        log.setLevel(level)
    return model


def _reason(error: Exception) -> str:
    """The first sentence of what a hub says."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def check_steps(kwargs: Mapping[str, Any]) -> None:
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


def timm_entries(
    model: nn.Module, description: dict[str, Any], images: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What timm looks for in config.json; nothing for a model that timm cannot open.

    Args:
        model: The model.
        description: How to build it.
        images: What it was trained on, as `Input.to_dict` says it; by default what the model itself says.
    """
    cfg: Any = getattr(model, "pretrained_cfg", None)
    if not isinstance(cfg, dict):
        return {}
    description = {**description, **described_steps(model)}
    plain = ("input_size", "interpolation", "crop_pct", "mean", "std", "first_conv", "classifier", "pool_size")
    images = {"input_size" if key == "shape" else key: value for key, value in (images or {}).items()}  # as timm has it
    kept = {key: value for key in plain if (value := images.get(key) or cfg.get(key)) is not None}
    if description.get("builder", "timm") == "timm" and "steps" not in description:
        name, kwargs = description["name"].partition(".")[0], dict(description.get("kwargs") or {})
    elif can_describe(description):
        name, kwargs = ARCHITECTURE, {}
        kept[KEY] = description
    else:
        return {}
    return {
        "architecture": name,
        "num_classes": kwargs.pop("num_classes", getattr(model, "num_classes", None)),
        "num_features": getattr(model, "num_features", None),
        "model_args": kwargs,
        "pretrained_cfg": kept,
    }


def _build_torchvision(description: dict[str, Any]) -> nn.Module:
    from torchvision import models

    name, kwargs = description.get("name"), dict(description.get("kwargs") or {})
    if name not in models.list_models():
        hint = close_to(name, models.list_models())
        raise ValueError(f"build_model: torchvision has no model named {name!r}.{hint}")
    if set(kwargs) - {"num_classes", "transform_input"}:
        raise ValueError(f"build_model: a torchvision model takes num_classes only, got {sorted(kwargs)}.")
    options: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        options["weights_backbone"] = None  # the default downloads
    model: nn.Module = models.get_model(name, weights=None, **kwargs, **options)
    return model


register_builder("timm", _build_timm)
register_builder("torchvision", _build_torchvision)
register_builder("custom", _build_custom)
