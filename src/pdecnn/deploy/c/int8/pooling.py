"""Pooling, means and concatenations in 8 bits."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from pdecnn.deploy.c.fixed import HIGH, LOW, Quant, fixed, rescaled
from pdecnn.deploy.c.pooling import maps, windows
from pdecnn.deploy.c.registry import EMITTERS, Code, Step, in_integers, quant, shape, size

_ATEN = torch.ops.aten
_BITS = 24  # of a multiplier: sums of a million values fit


@dataclass(frozen=True)
class Largest:
    """Max pooling, which keeps the scale."""

    step: Step
    arithmetic: str = "int8"

    def code(self, step: Step) -> Code:
        """That of the float form, with the name of the integer one."""
        made = EMITTERS[step.main.target](step)
        return Code(made.text.replace("max_pool(", "max_pool8("), made.scratch, made.macs)

    def values(self, x: Any) -> Any:
        """The same, by torch."""
        found: Any = self.step.main.target(torch.from_numpy(x).double(), *self.step.main.args[1:])  # type: ignore[operator]
        return (found[0] if isinstance(found, tuple) else found).long().numpy()


@in_integers(_ATEN.max_pool2d_with_indices.default, _ATEN.max_pool2d.default, _ATEN.adaptive_max_pool2d.default)
def largest(step: Step) -> Largest:
    """Needs nothing but windows that the C knows."""
    EMITTERS[step.main.target](Step(step.node, step.main, step.module, step.constants))
    return Largest(step)


@dataclass(frozen=True)
class Mean:
    """Means of windows: `avg_pool8`, `share_pool8`; sums and their numbers are exact."""

    call: str  # {x} and {scales} are still open
    factor: int
    shift: int
    own: Quant
    to: Quant
    counts: Any  # of each window, or one number
    sums: Any  # from an array to the sums of its windows
    arithmetic: str = "int8"

    def code(self, step: Step) -> Code:
        """One call."""
        x: Any = step.main.args[0]
        scales = f"{self.own.zero}, {self.factor}, {self.shift}, {self.to.zero}"
        return Code(self.call.format(x=step.read(x), scales=scales))

    def values(self, x: Any) -> Any:
        """The same, by a division that rounds down."""
        sums = self.sums(torch.from_numpy(x - self.own.zero).double()).round().long().numpy()
        all_ = 2 * np.asarray(self.counts, np.int64) << self.shift
        return np.clip((2 * sums * self.factor + all_ // 2) // all_ + self.to.zero, LOW, HIGH)


def _mean(step: Step, call: str, counts: Any, sums: Any) -> Mean:
    source: Any = step.main.args[0]
    own, to = quant(source), quant(step.node)
    if own is None or to is None:
        raise NotImplementedError("means of values in float")
    (factor,), shift = fixed(own.scale / to.scale, bits=_BITS)
    if shift + math.log2(np.max(counts)) > 60:
        raise NotImplementedError("means of so many values in 8 bits")
    return Mean(call, factor, shift, own, to, counts, sums)


@in_integers(_ATEN.avg_pool2d.default)
def avg_pool(step: Step) -> Mean:
    """With or without the padding in the count."""
    a = step.arguments()
    sizes, options = windows(step, a["self"]), (int(a["count_include_pad"]), a["divisor_override"] or 0)
    call = f"avg_pool8(y, {{x}}, {', '.join(map(str, (*sizes, *options)))}, {{scales}});"
    same = (a["kernel_size"], a["stride"], a["padding"], a["ceil_mode"])

    def sums(x: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool2d(x, *same, divisor_override=1)

    ones = torch.ones(shape(a["self"]), dtype=torch.float64)
    counts = sums(ones) / functional.avg_pool2d(ones, *same, a["count_include_pad"], a["divisor_override"])
    return _mean(step, call, counts.round().long().numpy(), sums)


@in_integers(_ATEN._adaptive_avg_pool2d.default, _ATEN.adaptive_avg_pool2d.default)
def adaptive_avg_pool(step: Step) -> Mean:
    """Windows that share the map among them."""
    x: Any = step.main.args[0]
    C, H, W = maps(x)
    Ho, Wo = shape(step.node)[-2:]
    spans = [[(i * n // m, ((i + 1) * n + m - 1) // m) for i in range(m)] for n, m in ((H, Ho), (W, Wo))]
    lengths = [np.array([b - a for a, b in span]) for span in spans]

    def sums(v: torch.Tensor) -> torch.Tensor:
        rows = torch.stack([v[..., a:b, :].sum(-2) for a, b in spans[0]], -2)
        return torch.stack([rows[..., a:b].sum(-1) for a, b in spans[1]], -1)

    call = f"share_pool8(y, {{x}}, {C}, {H}, {W}, {Ho}, {Wo}, {{scales}});"
    return _mean(step, call, lengths[0][:, None] * lengths[1], sums)


@in_integers(_ATEN.mean.dim, _ATEN.mean.default)
def mean(step: Step) -> Mean:
    """Along the last axes."""
    x: Any = step.main.args[0]
    sizes = shape(x)
    given = step.arguments().get("dim") or list(range(len(sizes)))
    axes = sorted(axis % len(sizes) for axis in given)
    if axes != list(range(len(sizes) - len(axes), len(sizes))):
        raise NotImplementedError("means along axes that are not the last")
    count, out = size(x) // size(step.node), shape(step.node)
    call = f"share_pool8(y, {{x}}, {size(step.node)}, 1, {count}, 1, 1, {{scales}});"
    return _mean(step, call, count, lambda v: v.sum(axes).reshape(out))


@dataclass(frozen=True)
class Joined:
    """A concatenation: each part is brought to the scale of the whole."""

    step: Step
    parts: tuple[tuple[Quant, int, int], ...]
    to: Quant
    arithmetic: str = "int8"

    def code(self, step: Step) -> Code:
        """One call for each run of each part."""
        a, out = step.arguments(), shape(step.node)
        axis = a["dim"] % len(out)
        inner, start, lines = math.prod(out[axis + 1 :]), 0, []
        stacked = step.main.target is _ATEN.stack.default
        for node, (own, factor, shift) in zip(a["tensors"], self.parts, strict=True):
            run = inner if stacked else shape(node)[axis] * inner
            outer, x = size(node) // run, step.read(node)
            at = (f"y + {start} + {out[axis] * inner} * i", f"{x} + {run} * i")
            call = f"rescale({at[0]}, {at[1]}, {run}, {own.zero}, {factor}, {shift}, {self.to.zero});"
            if own == self.to:
                call = f"memcpy({at[0]}, {at[1]}, {run});"
            lines.append(f"for (int i = 0; i < {outer}; i++)\n    {call}")
            start += run
        return Code("\n".join(lines))

    def values(self, *inputs: Any) -> Any:
        """The same; a part that stands twice is given once."""
        nodes, found = self.step.arguments()["tensors"], []
        given = dict(zip(dict.fromkeys(nodes), inputs, strict=True))
        for node, (own, factor, shift) in zip(nodes, self.parts, strict=True):
            q = given[node]
            moved = np.clip(rescaled((q - own.zero) * factor, shift) + self.to.zero, LOW, HIGH)
            found.append(torch.from_numpy(q if own == self.to else moved))
        return self.step.main.target(found, *self.step.main.args[1:]).numpy()  # type: ignore[operator]


@in_integers(_ATEN.cat.default, _ATEN.stack.default)
def joined(step: Step) -> Joined:
    """Needs the scales of all parts."""
    nodes, to = step.arguments()["tensors"], quant(step.node)
    quants = [quant(node) for node in nodes if node.op != "get_attr" and size(node)]
    if to is None or len(quants) < len(nodes):
        raise NotImplementedError("a concatenation with weights or with nothing")
    parts = []
    for own in quants:
        if own is None:
            raise NotImplementedError("a concatenation of values in float")
        (factor,), shift = fixed(own.scale / to.scale)
        parts.append((own, factor, shift))
    return Joined(step, tuple(parts), to)
