"""Whether the model of a recipe can be built, said in one line if not."""

import inspect
import re
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from pdecnn.models.build import build_model
from pdecnn.training.recipe import ModelRecipe, Recipe

MISTAKES = (TypeError, AttributeError, LookupError, ArithmeticError, AssertionError)  # of constructors at odd values


def check_model(recipe: Recipe) -> None:
    """A ValueError if the model of a recipe cannot be built; it is tried without weights, and nothing is fetched."""
    if recipe.model.builder in ("folder", "custom") or recipe.model.name.startswith("hf-hub:"):
        return
    description = recipe.model.model_dump(exclude={"pretrained"})
    fresh = recipe.model_copy(update={"model": recipe.model.model_copy(update={"pretrained": False})})
    try:
        with torch.device("meta"):
            build_plain(fresh, description)
    except Exception:  # some initialisers need values, which tensors on meta have not
        build_plain(fresh, description)


def build_plain(recipe: Recipe, description: dict[str, Any]) -> nn.Module:
    """The registered model of a recipe; a ValueError names the keyword that it does not take."""
    try:
        return build_model(description, pretrained=recipe.model.pretrained)
    except MISTAKES as error:
        wrong = wrong_keywords(recipe.model, error)
        if not wrong:
            raise
        raise ValueError(explain(recipe, wrong, error)) from error


def wrong_keywords(model: ModelRecipe, error: Exception) -> list[str]:
    """The keywords that a model does not take: the one that the error names, or those without which it can be built."""
    named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if named and named[1] in model.kwargs:
        return [named[1]]
    others = ({k: v for k, v in model.kwargs.items() if k != key} for key in model.kwargs)
    return [key for key, kwargs in zip(model.kwargs, others, strict=True) if try_out(model, kwargs) is not None]


def try_out(model: ModelRecipe, kwargs: dict[str, Any]) -> nn.Module | None:
    """The model with these keywords and without values; None if there is no such model."""
    try:
        with torch.device("meta"):
            return build_model({"builder": model.builder, "name": model.name, "kwargs": kwargs})
    except (*MISTAKES, ValueError, RuntimeError):
        return None


def explain(recipe: Recipe, wrong: list[str], error: Exception) -> str:
    """What is said of keywords that a model does not take: close names of its own and of the settings of recipes."""
    model, known = recipe.model, keywords(try_out(recipe.model, {}))
    settings = ", ".join(f"model.kwargs.{key}={model.kwargs[key]!r:.80}" for key in wrong)
    if wrong[0] in known or not known:
        return (
            f"model: {model.name} cannot be built with {settings}: {type(error).__name__}: {error}. Change that value."
        )
    names = {key: f"model.kwargs.{key}" for key in known} | leaves(recipe.model_dump(exclude={"model"}))
    close = [names[key] for key in get_close_matches(wrong[0], names)]
    hint = f" Close: {', '.join(close)}." if close else ""
    return (
        f"model: {model.name} takes no {wrong[0]!r}, got {settings}.{hint} Leave it out; it takes {', '.join(known)}."
    )


def keywords(net: nn.Module | None) -> list[str]:
    """The keywords of a model's constructor, and of those that it hands the rest to."""
    found: list[str] = []
    for kind in type(net).__mro__ if net is not None else ():
        if "__init__" not in vars(kind):
            continue
        parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
        found += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return [name for name in dict.fromkeys(found) if name not in ("self", "cfg", "device", "dtype")]


def leaves(values: dict[str, Any], path: str = "") -> dict[str, str]:
    """The paths of all settings by their last word.

    Example:
        >>> leaves({"epochs": 2, "optimizer": {"lr": 0.1}})
        {'epochs': 'epochs', 'lr': 'optimizer.lr'}
    """
    found: dict[str, str] = {}
    for key, value in values.items():
        inner = leaves(value, f"{path}{key}.") if isinstance(value, dict) and value else {key: f"{path}{key}"}
        found |= {word: where for word, where in inner.items() if word not in found}
    return found
