"""Sums, means and largest values along axes, softmax, and norms that are computed from the input."""

import math
from typing import Any

import torch
from torch import fx

from pdecnn.deploy.c.constants import number
from pdecnn.deploy.c.registry import Code, Step, emits, shape, size

_ATEN = torch.ops.aten


def _loops(step: Step, start: str, update: str, end: str, kind: str = "float") -> Code:
    """One accumulator `s` for each output; `v` is an element."""
    x: Any = step.main.args[0]
    sizes = shape(x)
    given = step.arguments().get("dim")
    axes = range(len(sizes)) if given in (None, []) else [given] if isinstance(given, int) else given
    reduced = sorted({axis % len(sizes) for axis in axes})
    kept = [d for d in range(len(sizes)) if d not in reduced]
    rows = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    name, lines = step.read(x), []
    for depth, d in enumerate(kept):
        lines.append(f"{'    ' * depth}for (int i{d} = 0; i{d} < {sizes[d]}; i{d}++)" + " {")
    pad = "    " * len(kept)
    lines.append(f"{pad}{kind} s = {start};")
    for depth, d in enumerate(reduced):
        lines.append(f"{pad}{'    ' * depth}for (int i{d} = 0; i{d} < {sizes[d]}; i{d}++)" + " {")
    at = " + ".join(f"{rows[d]} * i{d}" for d in range(len(sizes))) or "0"
    lines.append(f"{pad}{'    ' * len(reduced)}const float v = {name}[{at}];")
    lines.append(f"{pad}{'    ' * len(reduced)}{update}")
    lines += [f"{pad}{'    ' * depth}" + "}" for depth in reversed(range(len(reduced)))]
    place = " + ".join(f"{math.prod(sizes[e] for e in kept if e > d)} * i{d}" for d in kept) or "0"
    lines.append(f"{pad}y[{place}] = {end};")
    lines += ["    " * depth + "}" for depth in reversed(range(len(kept)))]
    return Code("\n".join(lines))


def _count(step: Step) -> int:
    return size(step.main.args[0]) // max(1, size(step.node))  # type: ignore[arg-type]


@emits(_ATEN.mean.dim, _ATEN.mean.default)
def mean(step: Step) -> Code:
    """The mean; that of a whole plane for each channel is one call."""
    x: Any = step.main.args[0]
    count = _count(step)
    sizes, axes = shape(x), step.arguments().get("dim") or []
    if sorted(axis % len(sizes) for axis in axes) == list(range(len(sizes) - len(axes), len(sizes))) and axes:
        return Code(f"means(y, {step.read(x)}, {size(step.node)}, {count});")
    return _loops(step, "0.0", "s += v;", f"(float)(s / {count}.0)", "double")


@emits(_ATEN.sum.dim_IntList, _ATEN.sum.default)
def total(step: Step) -> Code:
    """The sum."""
    return _loops(step, "0.0", "s += v;", "(float)s", "double")


@emits(_ATEN.amax.default, _ATEN.max.default, _ATEN.max.dim)
def largest(step: Step) -> Code:
    """The largest value."""
    return _loops(step, "-from_bits(0x7f800000u)", "s = larger(v, s);", "s")


@emits(_ATEN.amin.default, _ATEN.min.default, _ATEN.min.dim)
def least(step: Step) -> Code:
    """The least value."""
    return _loops(step, "from_bits(0x7f800000u)", "s = smaller(v, s);", "s")


@emits(_ATEN.var.correction)
def variance(step: Step) -> Code:
    """The variance along the last axes, by two passes."""
    a = step.arguments()
    x, sizes = a["self"], shape(a["self"])
    axes = sorted(axis % len(sizes) for axis in (a["dim"] or range(len(sizes))))
    if axes != list(range(len(sizes) - len(axes), len(sizes))):
        raise NotImplementedError("the variance along axes that are not the last")
    correction = 1 if a["correction"] is None else a["correction"]
    return Code(f"variances(y, {step.read(x)}, {size(step.node)}, {_count(step)}, {number(correction)});")


@emits(_ATEN._softmax.default, _ATEN._log_softmax.default)
def softmax(step: Step) -> Code:
    """Along one axis."""
    a = step.arguments()
    sizes = shape(a["self"])
    axis = a["dim"] % len(sizes)
    outer, inner = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
    name = "softmax" if step.main.target is _ATEN._softmax.default else "log_softmax"
    return Code(f"{name}(y, {step.read(a['self'])}, {outer}, {sizes[axis]}, {inner});")


def _norm(step: Step, x: fx.Node, rows: int, weight: Any, bias: Any, per: tuple[int, int], eps: float) -> Code:
    """Rows of equal length less their mean over their deviation; then `weight[i / per[0] % per[1]]` times it."""
    w, b = ("0" if q is None else step.read(q) for q in (weight, bias))
    length = size(x) // rows
    text = f"normalise(y, {step.read(x)}, {w}, {b}, {rows}, {length}, {per[0]}, {per[1]}, {number(eps)});"
    return Code(text, over=(step.number_of(x),) if step.number_of(x) >= 0 else ())


@emits(_ATEN.native_layer_norm.default)
def layer_norm(step: Step) -> Code:
    """Each row by itself."""
    a = step.arguments()
    last = math.prod(a["normalized_shape"])
    return _norm(step, a["input"], size(a["input"]) // last, a["weight"], a["bias"], (1, last), a["eps"])


@emits(_ATEN.native_group_norm.default)
def group_norm(step: Step) -> Code:
    """Each group of channels by itself."""
    a = step.arguments()
    return _norm(step, a["input"], a["N"] * a["group"], a["weight"], a["bias"], (a["HxW"], a["C"]), a["eps"])


@emits(_ATEN._native_batch_norm_legit.no_stats)
def instance_norm(step: Step) -> Code:
    """Each channel by itself."""
    a = step.arguments()
    N, C, *pixels = shape(a["input"])
    if N != 1:
        raise NotImplementedError("a batch norm without statistics of several samples")
    return _norm(step, a["input"], C, a["weight"], a["bias"], (math.prod(pixels), C), a["eps"])
