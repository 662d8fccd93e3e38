"""What a user wants condensed: `ignore` and `only`, by path, regular expression, module or class."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from pdecnn.condensation.dense import find_all
from pdecnn.condensation.inner import Inner
from pdecnn.condensation.record import record
from pdecnn.condensation.site import Run
from pdecnn.shared.names import close_to, is_within

Filter = str | type[nn.Module]
Given = Filter | nn.Module


def as_filters(given: Given | Sequence[Given], found: Sequence[Run], modules: Mapping[str, nn.Module]) -> list[Filter]:
    """One filter or many as a list; a ValueError if one of them names nothing that is in the model."""
    many = [given] if isinstance(given, (str, type, nn.Module)) else list(given)
    filters: list[Filter] = [_path_of(f, modules) if isinstance(f, nn.Module) else f for f in many]
    for f in filters if found else ():
        if isinstance(f, str) and not (f in modules or any(_matches(f, run, modules) for run in found)):
            if any(re.fullmatch(f, path) for path in modules):
                continue
            hint = close_to(f, [*(run.path for run in found), *modules])
            raise ValueError(f"plan: ignore or only names {f!r}, but no module of the model has such a path.{hint}")
    return filters


def refusal(
    run: Run, keep: int, modules: Mapping[str, nn.Module], ignore: Sequence[Filter], only: Sequence[Filter]
) -> str:
    """Why a run is left alone; nothing if it is not."""
    if any(_matches(f, run, modules) for f in ignore):
        return "ignored, as asked"
    if only and not any(_matches(f, run, modules) for f in only):
        return "not among only, as asked"
    if not run.condenses:
        more = " and init='block' keeps one more" if run.init == "block" else ""
        return f"it has {len(run.units)} blocks, keep={keep}{more}"
    return ""


def inner_asked_for(
    inner: tuple[Inner, ...],
    model: nn.Module,
    inputs: tuple[Any, ...],
    ignore: Given | Sequence[Given],
    only: Given | Sequence[Given],
) -> tuple[Inner, ...]:
    """The inner channels without those of runs, blocks and layers that are to be left alone."""
    if not inner or not (ignore or only):
        return inner
    found, _ = find_all(model, record(model, inputs))
    modules = dict(model.named_modules())
    ignore, only = (as_filters(given, found, modules) for given in (ignore, only))

    def named(path: str, filters: Sequence[Filter]) -> bool:
        holders = [m for m in modules if m and is_within(path, m)]
        runs = [run.path for run in found if run.holds(path)]
        return any(_fits(f, [*runs, *holders], holders, modules) for f in filters)

    ends = [(one, (one.first, one.last)) for one in inner]
    return tuple(
        one
        for one, paths in ends
        if not any(named(path, ignore) for path in paths) and (not only or all(named(path, only) for path in paths))
    )


def _matches(which: Filter, run: Run, modules: Mapping[str, nn.Module]) -> bool:
    return _fits(which, (run.path, run.parent, *run.members()), run.members(), modules)


def _fits(which: Filter, paths: Sequence[str], members: Sequence[str], modules: Mapping[str, nn.Module]) -> bool:
    """Whether a filter names one of the paths, or is the class of one of the members."""
    if isinstance(which, type):
        return any(isinstance(modules[m], which) for m in members)
    if any(p == which or p.startswith(which + ".") for p in paths):
        return True
    try:
        return any(re.fullmatch(which, p) for p in paths)
    except re.error as error:
        raise ValueError(f"plan: {which!r} is neither a path nor a regular expression: {error}.") from error


def _path_of(module: nn.Module, modules: Mapping[str, nn.Module]) -> str:
    path = next((path for path, m in modules.items() if m is module), None)
    if path is None:
        raise ValueError(f"plan: ignore or only holds a {type(module).__name__} that is not a module of the model.")
    return path
