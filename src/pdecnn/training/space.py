"""What a sweep varies: settings of a recipe, each with its values or its range, as typed on the command line."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from pdecnn.shared.yaml_files import parse_yaml
from pdecnn.training.recipe import ModelRecipe, Recipe, RecipeError

BRACKETS = {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}
LOGARITHMIC = 10  # ranges that span at least this factor are drawn by their logarithm


@dataclass(frozen=True)
class Axis:
    """One setting that varies: by a list of values, as text, or between two numbers."""

    key: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False

    @property
    def setting(self) -> str:
        """The key in the recipe; a word that is no setting there is a keyword of the model: `K`."""
        return self.key if self.key.split(".")[0] in Recipe.model_fields else f"model.kwargs.{self.key}"

    @property
    def tried(self) -> tuple[str, ...]:
        """The values, or the ends of the range, as text."""
        return self.values or tuple(str(int(end)) if self.whole else repr(end) for end in (self.low, self.high))

    def suggest(self, trial: Any) -> str:
        """A value from an optuna trial, as text."""
        if self.values:
            return str(trial.suggest_categorical(self.key, self.values))
        log = self.low > 0 and self.high / self.low >= LOGARITHMIC
        if self.whole:
            return str(trial.suggest_int(self.key, int(self.low), int(self.high), log=log))
        return repr(trial.suggest_float(self.key, self.low, self.high, log=log))


@dataclass(frozen=True)
class Space:
    """All that a sweep varies, and the overrides that all its runs share."""

    axes: tuple[Axis, ...]
    fixed: tuple[str, ...] = ()

    def grid(self) -> list[dict[str, str]]:
        """Every combination of the values.

        Example:
            >>> parse_space(["K=1,2", "seed=1,2,3", "epochs=1"]).grid()[1]
            {'K': '1', 'seed': '2'}
        """
        for axis in self.axes:
            if not axis.values:
                raise RecipeError(
                    f"sweep: {axis.key} is a range, of which there is no grid; use --sampler random or tpe."
                )
        keys = [axis.key for axis in self.axes]
        return [dict(zip(keys, values, strict=True)) for values in product(*(axis.values for axis in self.axes))]

    def overrides(self, params: dict[str, str]) -> list[str]:
        """The `key=value` assignments of one point."""
        return [*self.fixed, *(f"{axis.setting}={params[axis.key]}" for axis in self.axes)]

    def samples(self) -> list[dict[str, str]]:
        """Points that show whether the settings can be: all of a grid; else the first one, and each axis changed alone.

        Example:
            >>> parse_space(["K=1,2", "optimizer.lr=0.1..0.2"]).samples()[1:]
            [{'K': '2', 'optimizer.lr': '0.1'}, {'K': '1', 'optimizer.lr': '0.2'}]
        """
        if all(axis.values for axis in self.axes):
            return self.grid()
        first = {axis.key: axis.tried[0] for axis in self.axes}
        return [first, *({**first, axis.key: value} for axis in self.axes for value in axis.tried[1:])]

    def check(self, recipe: Recipe, check: Callable[[Recipe], object] | None = None) -> None:
        """A RecipeError that names a setting or a value that no recipe can have, or that `check` refuses.

        `check` is called with the recipe of one point for each model that the points have.
        """
        models: list[ModelRecipe] = []
        for params in self.samples():
            settings = recipe.override(self.overrides(params))
            if check is None or settings.model in models:
                continue
            models.append(settings.model)
            try:
                check(settings)
            except Exception as error:
                point = ", ".join(f"{key}={value}" for key, value in params.items())
                raise RecipeError(f"sweep: no run is possible with {point}: {error}") from error


def parse_space(assignments: Iterable[str]) -> Space:
    """The space of `key=a,b,c` (values), `key=low..high` (a range) and `key=value` (the same in all runs).

    Commas within brackets are part of a value.

    Example:
        >>> [axis.key for axis in parse_space(["optimizer.lr=0.01..0.1", "loss={mixup: 0.1, cutmix: 0.2}"]).axes]
        ['optimizer.lr']
    """
    axes: list[Axis] = []
    fixed: list[str] = []
    for text in assignments:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise RecipeError(f"sweep: expected key=a,b,c or key=low..high, got {text!r}.")
        values = split_values(value)
        axis = Axis(key, tuple(values)) if len(values) > 1 else _range(key, value)
        if axis is None:
            fixed.append(f"{Axis(key).setting}={value}")
        elif axis.key in [a.key for a in axes]:
            raise RecipeError(f"sweep: {key} is given twice.")
        else:
            axes.append(axis)
    if not axes:
        raise RecipeError("sweep: nothing varies; give a setting with several values, such as -o seed=1,2,3.")
    return Space(tuple(axes), tuple(fixed))


def split_values(text: str) -> list[str]:
    """The parts between the commas that stand outside of brackets.

    Example:
        >>> split_values("1, 2"), split_values("[1, 2], [3]")
        (['1', '2'], ['[1, 2]', '[3]'])
    """
    parts, depth = [""], 0
    for letter in text:
        depth += BRACKETS.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    values = [part.strip() for part in parts]
    if "" in values:
        raise RecipeError(f"sweep: a value is missing between the commas of {text!r}.")
    if len(set(values)) < len(values):
        raise RecipeError(f"sweep: a value stands twice in {text!r}.")
    return values


def _range(key: str, text: str) -> Axis | None:
    """The range `low..high`; None if it is none."""
    ends = [_number(part) for part in text.split("..")]
    if len(ends) != 2 or None in ends:
        return None
    low, high = ends
    assert low is not None
    assert high is not None
    if not low < high or not math.isfinite(high - low):
        raise RecipeError(f"sweep: expected {key}=low..high with low below high, got {text!r}.")
    return Axis(key, low=low, high=high, whole=isinstance(low, int) and isinstance(high, int))


def _number(text: str) -> float | None:
    try:
        value = parse_yaml(text, "sweep")
        return value if isinstance(value, int) else float(value)  # YAML takes 1e-3 for a word
    except (ValueError, TypeError):
        return None
