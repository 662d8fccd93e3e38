"""Watches one forward pass: which operator ran in which module, on what, and what it made."""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from timm.layers.adaptive_avgmax_pool import FastAdaptiveAvgPool
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pdecnn.analysis.formulas import BATCH_NORMS, CONVOLUTIONS, has_formula, kind_of, macs_of, reason_uncounted
from pdecnn.shared.modules import listen, tensors_in
from pdecnn.shared.names import is_within

_LAYER_KINDS = ("convolution", "linear", "pde")
_AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_GLOBAL_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, FastAdaptiveAvgPool)


@dataclass
class Tally:
    """The raw counts of one pass; keys are module names, or `(module, kind)`, or `(operator, reason)`."""

    calls: Counter[str] = field(default_factory=Counter)
    macs: Counter[tuple[str, str]] = field(default_factory=Counter)
    thop: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    uncounted_calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    uncounted_elements: Counter[tuple[str, str]] = field(default_factory=Counter)
    used_storages: set[int] = field(default_factory=set)
    peak_bytes: int = 0
    depth: int = 0
    pde_solves: int = 0

    def uses(self, parameter: nn.Parameter) -> bool:
        """Whether any operator read this parameter."""
        return parameter.untyped_storage()._cdata in self.used_storages


def track(model: nn.Module, inputs: Sequence[Any]) -> Tally:
    """Runs `model(*inputs)` and returns what was counted."""
    tally = Tally()
    running: list[str] = []
    with _calls(model, tally, running), _Watcher(tally, running, model, inputs):
        model(*inputs)
    return tally


def all_names(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Every module with all of its names: one that is held in two places has two."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return names


def _calls(model: nn.Module, tally: Tally, running: list[str]) -> AbstractContextManager[None]:
    """Keeps `running` equal to the stack of modules being called, and counts the pools that thop counts."""
    names = all_names(model)

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        # a module that is held in two places is named by the place nearest to its caller
        caller = running[-1] if running else ""
        name = max(names[module], key=lambda n: (is_within(n, caller), -len(n)))
        running.append(name)
        tally.calls[name] += 1

    def leave(module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Any) -> None:
        name = running.pop()
        if isinstance(out, Tensor) and isinstance(module, (*_AVERAGE_POOLS, *_GLOBAL_POOLS)):
            tally.thop[name] += _thop_pool(module, args[0], out)

    return listen(names, before=enter, after=leave, always=True)


def _thop_pool(module: nn.Module, x: Tensor, out: Tensor) -> int:
    if isinstance(module, _AVERAGE_POOLS):
        return out.numel()
    spatial = x.ndim - 2
    window = (
        x.shape[-spatial:].numel()
        if out.ndim < x.ndim
        else math.prod(a // b for a, b in zip(x.shape[-spatial:], out.shape[-spatial:], strict=True))
    )
    return (window + 1) * out.numel()


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator below autograd; composite ones are taken apart first."""

    def __init__(self, tally: Tally, running: list[str], model: nn.Module, inputs: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tally, self.running = tally, running
        self.alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.alive_bytes = 0
        self.depths: dict[int, int] = {}
        self.constants = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        for x in tensors_in(inputs):
            self._allocate(x)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if not has_formula(packet):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        ins, outs = tensors_in((args, kwargs)), tensors_in(out)
        macs = self._count(func, packet, args, kwargs, out, outs)
        self._follow(ins, outs, grows=macs > 0 and kind_of(packet) in _LAYER_KINDS)
        return out

    def _count(
        self, func: Any, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, outs: list[Tensor]
    ) -> int:
        tally, module = self.tally, self.running[-1]
        macs = 0
        if has_formula(packet):
            kind = kind_of(packet)
            macs = macs_of(packet, out, args, kwargs)
            tally.macs[module, kind] += macs
            tally.pde_solves += kind == "pde"
            if kind in ("convolution", "linear"):
                biased = packet in CONVOLUTIONS and args[2] is not None
                tally.thop[module] += macs + (outs[0].numel() if biased else 0)
        elif (reason := reason_uncounted(func)) is not None and outs:
            key = (func._schema.name, reason)
            tally.uncounted_calls[key] += 1
            tally.uncounted_elements[key] += outs[0].numel()
            if packet in BATCH_NORMS:
                tally.thop[module] += 2 * outs[0].numel()
        return macs

    def _follow(self, ins: list[Tensor], outs: list[Tensor], *, grows: bool) -> None:
        """Carries the depth from inputs to outputs, and registers the memory that is new."""
        self.tally.used_storages.update(t.untyped_storage()._cdata for t in ins)
        depth = max((self.depths.get(t.untyped_storage()._cdata, 0) for t in ins), default=0) + grows
        for t in outs:
            self.tally.bytes[self.running[-1]] += self._allocate(t)
            key = t.untyped_storage()._cdata
            self.depths[key] = max(depth, self.depths.get(key, 0))
            self.tally.depth = max(self.tally.depth, depth)

    def _allocate(self, t: Tensor) -> int:
        """Registers the storage of `t` as alive until it dies; returns its bytes if it is new, else 0."""
        storage = t.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.constants or key in self.alive:
            return 0
        self.alive[key] = (weakref.ref(storage, self._forget(key)), size)
        self.alive_bytes += size
        self.tally.peak_bytes = max(self.tally.peak_bytes, self.alive_bytes)
        return size

    def _forget(self, key: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self.alive_bytes -= self.alive.pop(key)[1]
            self.depths.pop(key, None)

        return forget
