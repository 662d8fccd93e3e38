"""Operators that move values: views, pads, concatenations, indices."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pdecnn.deploy.c.constants import number
from pdecnn.deploy.c.registry import EMITTERS, Code, Step, emits, literal, shape, size

_ATEN = torch.ops.aten
VIEWS = {
    _ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default, _ATEN.permute.default, _ATEN.t.default,
    _ATEN.transpose.int, _ATEN.slice.Tensor, _ATEN.select.int, _ATEN.expand.default, _ATEN.unsqueeze.default,
    _ATEN.squeeze.default, _ATEN.squeeze.dim, _ATEN.squeeze.dims, _ATEN.alias.default, _ATEN.detach.default,
    _ATEN.as_strided.default, _ATEN.unfold.default, _ATEN.diagonal.default,
}  # fmt: skip
COPIES = {_ATEN.clone.default, _ATEN._to_copy.default, _ATEN.lift_fresh_copy.default}
# that choose elements of the first argument
CHOICES = {
    _ATEN.index.Tensor, _ATEN.index_select.default, _ATEN.roll.default, _ATEN.repeat.default,
    _ATEN.pixel_shuffle.default, _ATEN.pixel_unshuffle.default,
    _ATEN.replication_pad2d.default, _ATEN.reflection_pad2d.default,
    _ATEN.upsample_nearest2d.vec, _ATEN.channel_shuffle.default, _ATEN.gather.default, _ATEN._unsafe_index.Tensor,
    _ATEN.im2col.default, _ATEN.replication_pad1d.default, _ATEN.reflection_pad1d.default,
}  # fmt: skip
PARTS = {_ATEN.split_with_sizes.default, _ATEN.split.Tensor, _ATEN.unbind.int, _ATEN.chunk.default}


def strided(node: fx.Node, part: int | None = None) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and first element of a view of a contiguous array, as torch gives them."""
    source = torch.empty(shape(node.args[0]))  # type: ignore[arg-type]
    seen: Any = node.target(source, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    seen = seen if part is None else seen[part]
    return tuple(seen.shape), tuple(seen.stride()), int(seen.storage_offset())


def is_contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie side by side."""
    expected = 1
    for n, s in zip(reversed(sizes), reversed(strides), strict=True):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def copy_loops(
    to: str,
    out: Sequence[int],
    source: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    *,
    start_out: int,
    start: int,
) -> str:
    """`to[start_out + i . out] = source[start + i . strides]` for all indices i; runs side by side are copied whole."""
    dims = [(n, o, s) for n, o, s in zip(sizes, out, strides, strict=True) if n != 1]
    merged: list[tuple[int, int, int]] = []
    for n, o, s in dims:
        if merged and merged[-1][1] == n * o and merged[-1][2] == n * s:
            merged[-1] = (merged[-1][0] * n, o, s)
        else:
            merged.append((n, o, s))
    run = merged.pop()[0] if merged and merged[-1][1:] == (1, 1) else 0
    lines = [f"{'    ' * d}for (int i{d} = 0; i{d} < {n}; i{d}++)" for d, (n, _, _) in enumerate(merged)]
    at = [" + ".join([str(first), *(f"{q[k]} * i{d}" for d, q in enumerate(merged) if q[k])])
          for k, first in ((1, start_out), (2, start))]  # fmt: skip
    indent = "    " * len(merged)
    if run:
        lines.append(f"{indent}memcpy({to} + {at[0]}, {source} + {at[1]}, {run} * sizeof *y);")
    else:
        lines.append(f"{indent}{to}[{at[0]}] = {source}[{at[1]}];")
    return "\n".join(lines)


def _rows(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]


def view(step: Step) -> Code:
    """A copy of a view whose elements do not lie side by side."""
    sizes, strides, start = strided(step.main)
    x = step.read(step.main.args[0])  # type: ignore[arg-type]
    return Code(copy_loops("y", _rows(sizes), x, sizes, strides, start_out=0, start=start))


EMITTERS.update(dict.fromkeys(VIEWS, view))


def part_of(step: Step) -> Code:
    """One of the parts of a value that was split."""
    args: Any = step.main.args
    whole, part = args
    sizes, strides, start = strided(whole, part)
    x = step.read(whole.args[0])
    return Code(copy_loops("y", _rows(sizes), x, sizes, strides, start_out=0, start=start))


@emits(_ATEN.cat.default, _ATEN.stack.default)
def cat(step: Step) -> Code:
    """One copy for each part."""
    a, out = step.arguments(), shape(step.node)
    parts, axis = [node for node in a["tensors"] if size(node) > 0], a["dim"] % len(out)
    inner, lines, start = math.prod(out[axis + 1 :]), [], 0
    stacked = step.main.target is _ATEN.stack.default
    for node in parts:
        run = inner if stacked else shape(node)[axis] * inner
        outer = size(node) // run
        step_out = out[axis] * inner
        loops = copy_loops("y", (step_out, 1), step.read(node), (outer, run), (run, 1), start_out=start, start=0)
        lines.append(loops)
        start += run
    return Code("\n".join(lines))


@emits(_ATEN.constant_pad_nd.default)
def pad(step: Step) -> Code:
    """The value inside, the number around; negative pads cut."""
    a = step.arguments()
    x, out = a["self"], shape(step.node)
    own = shape(x)
    before = [0] * len(own)
    after = [0] * len(own)
    for i, amount in enumerate(a["pad"]):
        (before if i % 2 == 0 else after)[-1 - i // 2] = amount
    kept = [n + min(0, b) + min(0, e) for n, b, e in zip(own, before, after, strict=True)]
    start_out = sum(max(0, b) * r for b, r in zip(before, _rows(out), strict=True))
    start = sum(max(0, -b) * r for b, r in zip(before, _rows(own), strict=True))
    fill = f"for (int i = 0; i < {size(step.node)}; i++)\n    y[i] = {literal(step.node, float(a['value']))};"
    loops = copy_loops("y", _rows(out), step.read(x), kept, _rows(own), start_out=start_out, start=start)
    return Code(f"{fill}\n{loops}")


@emits(_ATEN.flip.default)
def flip(step: Step) -> Code:
    """A copy that walks backwards along the given axes."""
    a = step.arguments()
    sizes = shape(a["self"])
    turned = {axis % len(sizes) for axis in a["dims"]}
    rows = _rows(sizes)
    strides = [-r if d in turned else r for d, r in enumerate(rows)]
    start = sum((sizes[d] - 1) * rows[d] for d in turned)
    return Code(copy_loops("y", rows, step.read(a["self"]), sizes, strides, start_out=0, start=start))


@emits(_ATEN.full.default, _ATEN.full_like.default, _ATEN.zeros_like.default, _ATEN.ones_like.default)
def fill(step: Step) -> Code:
    """One number everywhere."""
    value = step.arguments().get("fill_value", 1.0 if step.main.target is _ATEN.ones_like.default else 0.0)
    return Code(f"for (int i = 0; i < {size(step.node)}; i++)\n    y[i] = {number(float(value))};")


def _gather(step: Step, x: fx.Node, places: Tensor) -> Code:
    """`y[i] = x[places[i]]`, with the places in the file."""
    table = step.constants.ints(places.reshape(-1).tolist())
    name = step.read(x)
    return Code(f"for (int i = 0; i < {places.numel()}; i++)\n    y[i] = {name}[{table}[i]];")


@emits(*CHOICES)
def index(step: Step) -> Code:
    """Any operator that only chooses elements: it is asked where each one comes from."""
    x = step.main.args[0]
    assert isinstance(x, fx.Node)
    others = fx.map_arg((step.main.args[1:], step.main.kwargs), lambda node: _known(step, node))
    numbers = torch.arange(size(x), dtype=torch.float64).reshape(shape(x))
    args, kwargs = others
    places = step.main.target(numbers, *args, **kwargs)  # type: ignore[operator]
    return _gather(step, x, places.to(torch.int64))


def _known(step: Step, node: fx.Node) -> Tensor:
    value = step.constant(node)
    if value is None:
        raise NotImplementedError(f"{step.main.target} with computed indices")
    return value


@emits(_ATEN.slice_scatter.default)
def slice_scatter(step: Step) -> Code:
    """A copy in which one slice is replaced."""
    a = step.arguments()
    base, source, sizes = a["self"], a["src"], shape(a["self"])
    seen = _ATEN.slice.Tensor(torch.empty(sizes), a["dim"], a["start"], a["end"], a["step"])
    whole = f"memcpy(y, {step.read(base)}, {size(base)} * sizeof *y);"
    rows = _rows(shape(source))
    loops = copy_loops(
        "y", seen.stride(), step.read(source), shape(source), rows, start_out=seen.storage_offset(), start=0
    )
    return Code(f"{whole}\n{loops}")


@emits(_ATEN.copy.default)
def copy(step: Step) -> Code:
    """The second value, with the shape of the first."""
    source: Any = step.main.args[1]
    out = shape(step.node)
    seen = torch.empty(shape(source)).expand(out)
    return Code(copy_loops("y", _rows(out), step.read(source), out, seen.stride(), start_out=0, start=0))


@emits(*COPIES)
def clone(step: Step) -> Code:
    """A copy of a weight."""
    source: Any = step.main.args[0]
    return Code(f"memcpy(y, {step.read(source)}, {size(source)} * sizeof *y);")
