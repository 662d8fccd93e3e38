"""What every module of a model was given and what it gave, in one forward pass."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pdecnn.shared.modules import eval_mode, listen, tensors_in

MAPS = (3, 4, 5)  # dimensions of the feature maps of signals, images and volumes
_NON_NEGATIVE = ("relu", "relu_", "hardtanh", "hardtanh_", "sigmoid", "sigmoid_", "hardsigmoid", "hardsigmoid_")


@dataclass(eq=False)
class Call:
    """One call of one module.

    Attributes:
        name: Path of the module.
        start: Running number of the call; the calls made inside it have larger ones, up to `end`.
        end: The last running number inside the call.
        inputs: The tensors among its arguments, in order, also those in lists.
        others: Whether it had further arguments that were not tensors or None.
        output: The tensor it returned, or None if that was anything else.
        shape: The shape of `output` at the time.
    """

    name: str
    start: int
    inputs: list[Tensor]
    input_shapes: list[tuple[int, ...]]
    others: bool
    end: int = 0
    output: Tensor | None = None
    shape: tuple[int, ...] = ()

    @property
    def keeps_shape(self) -> bool:
        """Whether one feature map went in and one of the same shape came out."""
        return len(self.inputs) == 1 and len(self.shape) in MAPS and self.input_shapes[0] == self.shape


@dataclass(frozen=True)
class Convolution:
    """One convolution: the module it ran in, the size of its kernel, and the shape it was given."""

    where: str
    kernel: tuple[int, ...]
    depthwise: bool
    input_shape: tuple[int, ...]


@dataclass
class Record:
    """All calls of one forward pass.

    Attributes:
        calls: By path of the module.
        readers: For every tensor that a module returned, by `id`, the innermost modules whose operators read it.
        writers: For every tensor, by `id`, the last operator that wrote it.
        concatenated: For every tensor that left `torch.cat` along channels, by `id`, the ids of its parts.
        convolutions: Every convolution that ran.
        returned: The `id` of every tensor that the model returned.
        output_shapes: The shapes of these.
        finite: Whether all their values are finite, as far as there are values.
    """

    calls: dict[str, list[Call]] = field(default_factory=dict)
    readers: dict[int, set[str]] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)
    concatenated: dict[int, tuple[int, ...]] = field(default_factory=dict)
    convolutions: list[Convolution] = field(default_factory=list)
    returned: set[int] = field(default_factory=set)
    output_shapes: list[tuple[int, ...]] = field(default_factory=list)
    finite: bool = True
    keep: list[Any] = field(default_factory=list)  # tensors stay alive, so that an id means one tensor

    def non_negative(self, h: Tensor) -> bool:
        """Whether `h` left an operator that gives no negative values, such as ReLU."""
        return self.writers.get(id(h), "") in _NON_NEGATIVE

    def in_order(self) -> list[Call]:
        """All calls by start."""
        return sorted((c for calls in self.calls.values() for c in calls), key=lambda c: c.start)


def record(model: nn.Module, inputs: tuple[Any, ...]) -> Record:
    """Runs `model(*inputs)` once, in eval mode and without gradients, and notes every call.

    Example:
        >>> found = record(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (torch.zeros(1, 3, 6, 6),))
        >>> found.calls["0"][0].shape, found.calls["1"][0].keeps_shape
        ((1, 8, 4, 4), True)
    """
    result = Record()
    running: list[Call] = []
    with eval_mode(model), torch.no_grad(), _calls(model, result, running), _Watcher(result, running):
        out = model(*inputs)
    leaves = tensors_in(out)
    result.returned = {id(t) for t in leaves}
    result.output_shapes = [tuple(t.shape) for t in leaves]
    result.finite = all(t.is_meta or bool(t.isfinite().all()) for t in leaves)
    result.keep.append(out)
    return result


def _calls(model: nn.Module, result: Record, running: list[Call]) -> AbstractContextManager[None]:
    """Keeps `running` equal to the stack of calls, and notes each of them in `result`."""
    count = 0
    names = {module: name for name, module in model.named_modules()}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal count
        count += 1
        leaves = tree_leaves((args, kwargs))
        tensors = [t for t in leaves if isinstance(t, Tensor)]
        others = any(not isinstance(t, Tensor) and t is not None for t in leaves) or len(leaves) > max(1, len(tensors))
        call = Call(names[module], count, tensors, [tuple(t.shape) for t in tensors], others)
        result.calls.setdefault(call.name, []).append(call)
        result.keep.append(tensors)
        running.append(call)

    def leave(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        call = running.pop()
        call.end = count
        result.keep.append(out)
        if isinstance(out, Tensor):
            call.output, call.shape = out, tuple(out.shape)

    return listen(names, before=enter, after=leave)


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which operator wrote a tensor, and in which module each tensor is read."""

    def __init__(self, result: Record, running: list[Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.result, self.running = result, running

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        where = self.running[-1].name if self.running else ""
        ins = tensors_in((args, kwargs))
        for t in ins:
            self.result.readers.setdefault(id(t), set()).add(where)
        out = func(*args, **kwargs)
        packet, old = func._overloadpacket, {id(t) for t in ins}
        for t in tensors_in(out):
            if id(t) not in old:
                self.result.readers.pop(id(t), None)  # the id of a tensor that is gone
            self.result.writers[id(t)] = packet.__name__
        if packet is torch.ops.aten.cat and isinstance(out, Tensor) and args[1:] in ((1,), (1 - out.ndim,)):
            self.result.concatenated[id(out)] = tuple(id(t) for t in args[0])
        if packet is torch.ops.aten.convolution:
            x, weight, groups = args[0], args[1], args[8]
            depthwise = groups == x.shape[1] and groups > 1
            self.result.convolutions.append(Convolution(where, tuple(weight.shape[2:]), depthwise, tuple(x.shape)))
        return out
