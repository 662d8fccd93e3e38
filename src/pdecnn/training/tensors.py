"""Optimiser state as plain tensors plus JSON, the two things that can be read without running any code."""

import json
from typing import Any

import torch
from torch import Tensor

NUMBER = (bool, int, float, str, type(None))


def split_state(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Splits `optimizer.state_dict()` into tensors, named `"<parameter>.<entry>"`, and values for JSON.

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
            if isinstance(value, Tensor):
                tensors[key] = value.detach().cpu().contiguous().clone()
            elif isinstance(value, NUMBER):
                values.setdefault(str(parameter), {})[name] = value
            else:
                raise TypeError(
                    f"save_checkpoint: the optimiser keeps {key} as {type(value).__name__}; only tensors and numbers "
                    "can be saved. Choose another optimiser."
                )
    groups = [{k: _plain(k, v) for k, v in group.items()} for group in state["param_groups"]]
    return tensors, {"state": values, "param_groups": groups}


def join_state(tensors: dict[str, Tensor], values: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `split_state`."""
    state: dict[int, dict[str, Any]] = {}
    for parameter, entries in values["state"].items():
        state.setdefault(int(parameter), {}).update(entries)
    for key, tensor in tensors.items():
        parameter, _, name = key.partition(".")
        state.setdefault(int(parameter), {})[name] = tensor
    return {"state": state, "param_groups": values["param_groups"]}


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
