"""Optimiser state as plain tensors plus JSON, the two things that can be read without running any code."""

import json
from typing import Any

import torch
from torch import Tensor

NUMBER = (bool, int, float, str, type(None))


def split_state(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Splits `optimizer.state_dict()` into tensors, named `"<parameter>.<entry>"`, and values for JSON.

    Lists and tuples may hold tensors in turn; in the JSON they stand as `{"tensor": name}`, and a tuple as
    `{"tuple": [...]}`. What an optimiser keeps beside its parameters, such as a random state, goes into `"extra"`.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2)); weight.grad = torch.ones(2)
        >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9); optimizer.step()
        >>> tensors, values = split_state(optimizer.state_dict())
        >>> list(tensors), values["param_groups"][0]["momentum"]
        (['0.momentum_buffer'], 0.9)
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for parameter, entries in state["state"].items():
        for name, value in entries.items():
            key = f"{parameter}.{name}"
            taken = _take(key, value, tensors)
            if not isinstance(value, Tensor):
                values.setdefault(str(parameter), {})[name] = taken
    groups = [{k: _plain(k, v) for k, v in group.items()} for group in state["param_groups"]]
    extra = {k: _take(k, v, tensors) for k, v in state.items() if k not in ("state", "param_groups")}
    return tensors, {"state": values, "param_groups": groups, "extra": extra}


def join_state(tensors: dict[str, Tensor], values: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `split_state`."""
    left = dict(tensors)
    state: dict[int, dict[str, Any]] = {}
    for parameter, entries in values["state"].items():
        state.setdefault(int(parameter), {}).update({name: _give(value, left) for name, value in entries.items()})
    extra = {name: _give(value, left) for name, value in values.get("extra", {}).items()}
    for key, tensor in left.items():
        parameter, _, name = key.partition(".")
        state.setdefault(int(parameter), {})[name] = tensor
    return {"state": state, "param_groups": values["param_groups"], **extra}


def _take(key: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """What stands in the JSON for `value`, whose tensors are put into `tensors`."""
    if isinstance(value, Tensor):
        tensors[key] = value.detach().cpu().contiguous().clone()
        return {"tensor": key}
    if isinstance(value, list | tuple):
        items = [_take(f"{key}.{i}", item, tensors) for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, NUMBER):
        return value
    raise TypeError(
        f"save_checkpoint: the optimiser keeps {key} as {type(value).__name__}; only tensors, numbers and lists of "
        "them can be saved. Choose another optimiser."
    )


def _give(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `_take`; takes its tensors out of `tensors`."""
    if isinstance(value, list):
        return [_give(item, tensors) for item in value]
    if isinstance(value, dict):
        return tuple(_give(value["tuple"], tensors)) if "tuple" in value else tensors.pop(value["tensor"])
    return value


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.item()
    try:
        return json.loads(json.dumps(value))
    except TypeError as error:
        raise TypeError(
            f"save_checkpoint: the optimiser option {key} is a {type(value).__name__}, which JSON cannot hold."
        ) from error


def non_finite(tensors: dict[str, Tensor]) -> str | None:
    """Name of the first tensor that holds a NaN or an infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return name
    return None
