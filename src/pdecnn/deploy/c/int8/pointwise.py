"""Element-wise operators in 8 bits: tables of 256 entries, factors per channel, sums and products of two values."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from pdecnn.deploy.c.fixed import HIGH, LOW, Quant, fixed, rescaled
from pdecnn.deploy.c.pointwise import EXPRESSIONS, layout_of
from pdecnn.deploy.c.registry import Code, Step, in_integers, quant, shape, size

_ATEN = torch.ops.aten
_SUMS = {_ATEN.add.Tensor: 1, _ATEN.sub.Tensor: -1}
_AFFINE = {*_SUMS, _ATEN.mul.Tensor, _ATEN.div.Tensor, _ATEN.add.Scalar, _ATEN.mul.Scalar, _ATEN.neg.default}


@dataclass(frozen=True)
class Table:
    """A function of one value: all its 256 results."""

    entries: Any
    arithmetic: str = "int8, a table"

    def code(self, step: Step) -> Code:
        """One look-up for each element."""
        x, table = step.read(leaves(step)[0]), step.constants.int8s(self.entries)
        text = f"for (int i = 0; i < {size(step.node)}; i++)\n    y[i] = {table}[{x}[i] + 128];"
        return Code(text, over=(0,))

    def values(self, x: Any) -> Any:
        """The same."""
        return self.entries[x + 128]


@dataclass(frozen=True)
class Affine:
    """`(q - zero) * factor + offset`, with a factor and an offset for each place of the weights."""

    factor: Any  # of the shape that is broadcast
    offset: Any
    shift: int
    own: Quant
    to: Quant
    bounds: tuple[int, int]
    arithmetic: str = "int8"

    def code(self, step: Step) -> Code:
        """One loop, or as many as broadcasting asks for."""
        x, c = step.read(leaves(step)[0]), step.constants
        names = {
            x: shape(step.node),
            c.int32s(self.factor): self.factor.shape,
            c.int32s(self.offset): self.offset.shape,
        }
        loops, (v, *others), y = layout_of(shape(step.node), names)
        factor, offset = others if len(others) == 2 else others * 2
        result = f"rescaled((int64_t)({v} - {self.own.zero}) * {factor} + {offset}, {self.shift}) + {self.to.zero}"
        return Code(f"{loops}{y} = limit8({result}, {self.bounds[0]}, {self.bounds[1]});", over=(0,))

    def values(self, x: Any) -> Any:
        """The same."""
        t = (x - self.own.zero) * self.factor + self.offset
        return np.clip(rescaled(t, self.shift) + self.to.zero, *self.bounds)


@dataclass(frozen=True)
class Pair:
    """A sum of two values, each with its factor, or their product."""

    is_product: bool
    quants: tuple[Quant, Quant]
    factors: tuple[int, int]
    shift: int
    to: Quant
    bounds: tuple[int, int]
    arithmetic: str = "int8"

    def code(self, step: Step) -> Code:
        """One loop, or as many as broadcasting asks for."""
        nodes = leaves(step)
        names = {step.read(node): shape(node) for node in nodes}
        loops, found, y = layout_of(shape(step.node), names)
        a, b = (f"({v} - {q.zero})" for v, q in zip(found if len(found) == 2 else found * 2, self.quants, strict=True))
        if self.is_product:
            t = f"(int64_t)({a} * {b}) * {self.factors[0]}"
        else:
            t = f"(int64_t){a} * {self.factors[0]} + (int64_t){b} * {self.factors[1]}"
        over = tuple(i for i, node in enumerate(step.reads) if size(node) == size(step.node))
        text = f"{y} = limit8(rescaled({t}, {self.shift}) + {self.to.zero}, {self.bounds[0]}, {self.bounds[1]});"
        return Code(loops + text, over=over)

    def values(self, a: Any, b: Any = None) -> Any:
        """The same; one value stands for both."""
        p, q = a - self.quants[0].zero, (a if b is None else b) - self.quants[1].zero
        t = p * q * self.factors[0] if self.is_product else p * self.factors[0] + q * self.factors[1]
        return np.clip(rescaled(t, self.shift) + self.to.zero, *self.bounds)


def leaves(step: Step) -> list[fx.Node]:
    """The computed values that a step reads, in the order of its arguments; twice if it reads one twice by itself."""
    found: list[fx.Node] = []

    def visit(node: fx.Node) -> None:
        for n in node.all_input_nodes:
            if n in step.inside:
                visit(n)
            elif n.op != "get_attr" and n not in found:
                found.append(n)

    visit(step.main)
    return found


def evaluate(step: Step, x: Tensor) -> Tensor:
    """A step of one value, at x."""
    known: dict[fx.Node, Any] = {}

    def value(node: fx.Node) -> Any:
        if node not in known:
            constant = step.constant(node)
            if constant is not None:
                known[node] = constant.double() if constant.is_floating_point() else constant
            elif node is step.main or node in step.inside:
                args, kwargs = fx.map_arg((node.args, node.kwargs), value)
                known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            else:
                known[node] = x
        return known[node]

    return value(step.main)  # type: ignore[no-any-return]


def _constants(step: Step) -> list[Tensor]:
    nodes = {n for node in (step.main, *step.inside) for n in node.all_input_nodes}
    return [value for n in nodes if (value := step.constant(n)) is not None]


def _of_one(step: Step, leaf: fx.Node, own: Quant, to: Quant) -> Table | Affine:
    if shape(leaf) != shape(step.node):
        raise NotImplementedError("broadcasting of one value in 8 bits")
    if all(q.numel() == 1 for q in _constants(step)):
        y = evaluate(step, torch.from_numpy(own.real(np.arange(LOW, HIGH + 1)))).double().reshape(-1)
        low, high = (min(max(q, -1e30), 1e30) for q in step.bounds)
        return Table(to.of(y.clamp(low, high).nan_to_num(0.0, 1e30, -1e30).numpy()))
    chain = [step.main, *step.inside]
    cut = [node for node in chain if node.target is _ATEN.relu.default]
    if any(node.target not in _AFFINE and node is not step.main for node in chain) or len(cut) > 1:
        raise NotImplementedError("factors per channel inside a function")
    if step.main.target not in _AFFINE and not cut:
        raise NotImplementedError("factors per channel inside a function")
    bounds = (0.0, math.inf) if cut else step.bounds
    inner = (
        Step(step.node, step.main.all_input_nodes[0], step.module, step.constants, inside=step.inside) if cut else step
    )
    at = [evaluate(inner, torch.full((), v, dtype=torch.float64)).numpy() for v in (0.0, 1.0)]
    slope, start = at[1] - at[0], at[0]
    dims = len(shape(step.node))
    slope, start = (np.reshape(q, (1,) * (dims - q.ndim) + q.shape) for q in np.broadcast_arrays(slope, start))
    (factor, offset), shift = fixed(slope * own.scale / to.scale, start / to.scale, bits=30)
    return Affine(factor, offset, shift, own, to, to.bounds(*bounds))


@in_integers(*EXPRESSIONS)
def pointwise(step: Step) -> Table | Affine | Pair:
    """A function of one value, or a sum or product of two."""
    nodes, to = leaves(step), quant(step.node)
    if not nodes or len(nodes) > 2 or to is None:
        raise NotImplementedError("a function of more than two values in 8 bits")
    quants = [q for q in map(quant, nodes) if q is not None]
    if len(quants) < len(nodes):
        raise NotImplementedError("a function of values in float")
    if len(nodes) == 1:
        return _of_one(step, nodes[0], quants[0], to)
    a = step.arguments()
    target, (p, q) = step.main.target, quants
    if step.inside or (target not in _SUMS and target is not _ATEN.mul.Tensor) or a.get("alpha", 1) != 1:
        raise NotImplementedError("this function of two values in 8 bits")
    bounds = to.bounds(*step.bounds)
    if target is _ATEN.mul.Tensor:
        (factor,), shift = fixed(p.scale * q.scale / to.scale)
        return Pair(True, (p, q), (factor, 0), shift, to, bounds)
    (first, second), shift = fixed(p.scale / to.scale, _SUMS[target] * q.scale / to.scale)
    return Pair(False, (p, q), (first, second), shift, to, bounds)
