"""What models take and give: tensors, and lists, tuples, dicts and dataclasses of them."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_origin

import torch
from torch import Tensor, nn

LARGE = 64 * 64  # pixels of an image from which on channels_last is faster


def named_tensors(tree: Any, name: str = "") -> dict[str, Tensor]:
    """Every tensor of a model's answer under its name there; a tensor that is the answer itself has none.

    Example:
        >>> list(named_tensors({"out": torch.zeros(1), "levels": [torch.zeros(1), torch.zeros(1)]}))
        ['out', 'levels.0', 'levels.1']
    """
    if isinstance(tree, Tensor):
        return {name: tree}
    found: dict[str, Tensor] = {}
    for key, part in _parts(tree):
        found.update(named_tensors(part, f"{name}.{key}" if name else key))
    return found


def _parts(tree: Any) -> list[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        return [(str(key), part) for key, part in tree.items()]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, (list, tuple)):
        return [(str(i), part) for i, part in enumerate(tree)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    return []


def map_tensors(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same lists, tuples and dicts with `change(tensor)` for every tensor."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(part, change) for key, part in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(part, change) for part in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(part, change) for part in tree)
    return tree


def moved(tree: Any, device: torch.device) -> Any:
    """The tree on another device."""
    return map_tensors(tree, lambda q: q.to(device, non_blocking=True))


def ordered(tree: Any) -> Any:
    """The tree with large images on the CPU in channels_last, whose convolutions take about half of the time there."""

    def change(q: Tensor) -> Tensor:
        large = q.ndim == 4 and q.shape[2] * q.shape[3] >= LARGE and q.device.type == "cpu"
        return q.contiguous(memory_format=torch.channels_last) if large else q

    return map_tensors(tree, change)


def is_images(x: Any) -> bool:
    """Whether it is a list of single images `(C, H, W)`, as detectors take it, and not several batched inputs."""
    return isinstance(x, (list, tuple)) and len(x) > 0 and all(isinstance(q, Tensor) and q.ndim == 3 for q in x)


def count(x: Any, images: bool = False) -> int:
    """How many samples a batch of inputs holds: items of a list of images, else the first size of its first tensor."""
    if images:
        return len(x)
    return next((len(q) for q in named_tensors(x).values() if q.ndim), 1)


def part(x: Any, which: slice | list[int], images: bool = False) -> Any:
    """Some samples of a batch."""
    if images:
        return x[which] if isinstance(which, slice) else [x[i] for i in which]
    return map_tensors(x, lambda q: q[which] if q.ndim else q)


def sized(x: Any, n: int, images: bool = False) -> Any:
    """A batch of `n` samples: those of `x`, again and again."""
    times = -(-n // max(count(x, images), 1))
    if images:
        return (list(x) * times)[:n]
    return map_tensors(x, lambda q: q.repeat(times, *[1] * (q.ndim - 1))[:n].contiguous() if q.ndim else q)


def arguments(model: nn.Module, x: Any) -> tuple[Any, ...]:
    """The arguments with which `model` is called on `x`.

    A tensor is the argument. A dict gives the arguments by name, if `forward` has such; a list or a tuple gives them
    in order if `forward` needs more than one, else it is one argument, a list of images. A tuple is also spread where
    `forward` can take more.

    Example:
        >>> class Sum(nn.Module):
        ...     def forward(self, a, b):
        ...         return a + b
        >>> arguments(Sum(), {"b": torch.tensor(2), "a": torch.tensor(1)})
        (tensor(1), tensor(2))
    """
    if isinstance(x, Mapping):
        return _by_name(model, x)
    if not isinstance(x, (list, tuple)):
        return (x,)
    return tuple(x) if _spreads(model, x) else (list(x),)


def takes_images(model: nn.Module, x: Any) -> bool:
    """Whether `x` is a list of single images, which the model takes as one argument."""
    return is_images(x) and not _spreads(model, x)


def takes_targets(model: nn.Module) -> bool:
    """Whether it is a detector as torchvision writes them: `forward` takes `targets`, and in training gives losses."""
    return any(p.name == "targets" for p in _parameters(model))


def _parameters(model: nn.Module) -> list[inspect.Parameter]:
    return list(inspect.signature(model.forward).parameters.values())


def _spreads(model: nn.Module, x: Any) -> bool:
    positional = [p for p in _parameters(model) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in _parameters(model)):
        return True
    if sum(p.default is p.empty for p in positional) > 1:
        return True
    takes_list = bool(positional) and get_origin(positional[0].annotation) is list
    return isinstance(x, tuple) and (len(x) == 1 or (len(positional) > 1 and not takes_list))


def _by_name(model: nn.Module, x: Mapping[str, Any]) -> tuple[Any, ...]:
    names = [p.name for p in _parameters(model)]
    if not all(key in names for key in x):
        return (x,)
    bound = inspect.signature(model.forward).bind(**x)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(f"{type(model).__name__}.forward takes {', '.join(bound.kwargs)} by keyword alone.")
    return bound.args
