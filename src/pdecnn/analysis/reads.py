"""Who uses a tensor last: found by watching every operator of one run."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from pdecnn.analysis.formulas import BATCH_NORMS, CONVOLUTIONS
from pdecnn.shared.modules import listen, tensors_in

# Operators whose result is new memory whatever the layout, dtype and size of their inputs. Others, such as the copy in
# `x.contiguous()`, are made for one input and left out for another, so that the same line gives `x` itself.
MAKERS = CONVOLUTIONS | BATCH_NORMS | {torch.ops.aten.addmm, torch.ops.aten.add}


def last_readers(model: nn.Module, x: Tensor, candidates: set[nn.Module]) -> set[nn.Module]:
    """Those of `candidates` that may overwrite their input: in a run on `x` nobody uses it after them.

    Such an input is the whole result of a convolution, a norm, a sum or a linear layer, there is no view of it, and
    nothing holds it after the run. This must be so in every call of the candidate. Uses that no operator of torch
    shows (numpy on the same memory, other threads) are not seen, nor is what the model does for other inputs if it
    decides that in Python.

    Example:
        >>> model = nn.Sequential(nn.ReLU(), nn.Conv2d(1, 1, 1), nn.ReLU())
        >>> readers = last_readers(model, torch.ones(1, 1, 2, 2), {model[0], model[2]})
        >>> readers == {model[2]}  # the first one reads the model's own input
        True
    """
    watch = _Watch()
    seen: list[tuple[nn.Module, StorageWeakRef, int]] = []
    refused: set[nn.Module] = set()

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        if len(args) == 1 and _may_become(args[0], output):
            seen.append((module, _memory(args[0]), watch.time))
        else:
            refused.add(module)

    with listen(candidates, after=after, first=True), watch:  # the hooks of others are users like any other
        output = model(x)
    for module, memory, time in seen:
        if memory not in watch.made or watch.last_use[memory] > time or not memory.expired():
            refused.add(module)
    del output  # held until here: what is in it has not expired
    return {module for module, _, _ in seen} - refused


class _Watch(TorchDispatchMode):
    """Notes which memory the makers made, without what has views, and which operator was the last to use it.

    Weak references are kept, not tensors: nothing lives longer than it would, and no address is given twice.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.time = 0
        self.made: set[StorageWeakRef] = set()
        self.last_use: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.time += 1
        used = set(_memories((args, kwargs)))
        output = func(*args, **(kwargs or {}))
        found = set(_memories(output))
        if func._overloadpacket in MAKERS:
            self.made |= found - used
        self.made -= found & used  # a view, or changed in place
        self.last_use |= dict.fromkeys(used | found, self.time)
        return output


def _memory(q: Tensor) -> StorageWeakRef:
    return StorageWeakRef(q.untyped_storage())


def _memories(tree: Any) -> Iterator[StorageWeakRef]:
    return (_memory(q) for q in tensors_in(tree) if q.layout is torch.strided)


def _may_become(x: Any, output: Any) -> bool:
    return isinstance(x, Tensor) and isinstance(output, Tensor) and (x.shape, x.dtype) == (output.shape, output.dtype)
