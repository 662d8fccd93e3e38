"""Who reads a tensor last: found by watching every operator of one run."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def last_readers(model: nn.Module, x: Tensor, candidates: set[nn.Module]) -> set[nn.Module]:
    """Those of `candidates` that may overwrite their input: in a run on `x` nobody reads it after them.

    Such an input was made in the run, fills its memory without overlap, is no output of the model, and the candidate
    gives a tensor of its shape and dtype. This holds for every call of the candidate.

    Example:
        >>> model = nn.Sequential(nn.ReLU(), nn.Conv2d(1, 1, 1), nn.ReLU())
        >>> readers = last_readers(model, torch.ones(1, 1, 2, 2), {model[0], model[2]})
        >>> readers == {model[2]}  # the first one reads the model's own input
        True
    """
    watch = _Watch()
    refused: set[nn.Module] = set()
    seen: list[tuple[nn.Module, StorageWeakRef, int]] = []

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if len(args) == 1 and _may_become(args[0], output):
            seen.append((module, _memory(args[0]), watch.time))
        else:
            refused.add(module)

    with ExitStack() as stack:
        for module in candidates:
            stack.enter_context(module.register_forward_hook(after))
        stack.enter_context(watch)
        kept = set(_memories(model(x)))
    for module, memory, time in seen:
        if memory not in watch.made or memory in kept or watch.last_read[memory] > time:
            refused.add(module)
    return {module for module, _, _ in seen} - refused


class _Watch(TorchDispatchMode):
    """Notes for the memory of every tensor whether it was made here and which operator was the last to touch it.

    Weak references are kept, not tensors: nothing lives longer than it would, and no address is given twice.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.time = 0
        self.made: set[StorageWeakRef] = set()
        self.last_read: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.time += 1
        for memory in _memories((args, kwargs)):
            self.last_read[memory] = self.time
        output = func(*args, **(kwargs or {}))
        for memory in _memories(output):
            if memory not in self.last_read:
                self.made.add(memory)
                self.last_read[memory] = self.time
        return output


def _memory(q: Tensor) -> StorageWeakRef:
    return StorageWeakRef(q.untyped_storage())


def _memories(tree: Any) -> Iterator[StorageWeakRef]:
    return (_memory(q) for q in tree_leaves(tree) if isinstance(q, Tensor) and q.layout is torch.strided)


def _may_become(x: Any, output: Any) -> bool:
    return (
        isinstance(x, Tensor)
        and isinstance(output, Tensor)
        and (x.shape, x.dtype) == (output.shape, output.dtype)
        and (x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)))
    )
