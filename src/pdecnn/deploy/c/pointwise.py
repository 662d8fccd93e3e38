"""Operators that work element by element: each is an expression, and chains of them become one loop."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from pdecnn.deploy.c.constants import number
from pdecnn.deploy.c.registry import EMITTERS, Code, Step, arguments, shape, size

_ATEN = torch.ops.aten
Expression = Callable[..., str]


def _power(x: str, exponent: str) -> str:
    value = float(exponent.rstrip("f")) if exponent[:4] != "from" else math.nan
    if value == int(value) and abs(value) <= 16:
        return f"power({x}, {int(value)})"
    if value in (0.5, -0.5):
        return f"{'root' if value > 0 else 'reciprocal_root'}({x})"
    return f"exponential({exponent} * logarithm({x}))"


def _clamp(x: str, low: str | None = None, high: str | None = None) -> str:
    x = x if low is None else f"at_least({x}, {low})"
    return x if high is None else f"at_most({x}, {high})"


def _sum(sign: str) -> Expression:
    return lambda a, b, alpha="1.0f": f"({a} {sign} {b})" if alpha == "1.0f" else f"({a} {sign} {alpha} * {b})"


def _between(sign: str) -> Expression:
    return lambda a, b: f"({a} {sign} {b})"


def _test(sign: str) -> Expression:
    return lambda a, b: f"({a} {sign} {b} ? 1.0f : 0.0f)"


def _call(name: str) -> Expression:
    return lambda *x: f"{name}({', '.join(x)})"


def _elu(x: str, alpha: str = "1.0f", scale: str = "1.0f", input_scale: str = "1.0f") -> str:
    return f"({scale} * elu({x}, {alpha}, {input_scale}))"


EXPRESSIONS: dict[Any, Expression] = {
    _ATEN.add.Tensor: _sum("+"), _ATEN.add.Scalar: _sum("+"), _ATEN.sub.Tensor: _sum("-"), _ATEN.sub.Scalar: _sum("-"),
    _ATEN.rsub.Scalar: lambda a, b, alpha="1.0f": f"({b} - {alpha} * {a})",
    _ATEN.mul.Tensor: _between("*"), _ATEN.mul.Scalar: _between("*"),
    _ATEN.div.Tensor: _between("/"), _ATEN.div.Scalar: _between("/"),
    _ATEN.neg.default: lambda x: f"(-{x})",
    _ATEN.reciprocal.default: lambda x: f"(1.0f / {x})",
    _ATEN.relu.default: _call("relu"),
    _ATEN.hardtanh.default: lambda x, low="-1.0f", high="1.0f": _clamp(x, low, high),
    _ATEN.clamp.default: _clamp, _ATEN.clamp.Tensor: _clamp,
    _ATEN.clamp_min.default: _clamp, _ATEN.clamp_max.default: lambda x, high: _clamp(x, None, high),
    _ATEN.sigmoid.default: _call("sigmoid"), _ATEN.tanh.default: _call("tangent_h"),
    _ATEN.exp.default: _call("exponential"), _ATEN.expm1.default: lambda x: f"(exponential({x}) - 1.0f)",
    _ATEN.log.default: _call("logarithm"), _ATEN.log1p.default: lambda x: f"logarithm(1.0f + {x})",
    _ATEN.erf.default: _call("error_function"),
    _ATEN.gelu.default: lambda x, approximate="none": f"{'gelu' if approximate == 'none' else 'gelu_by_tanh'}({x})",
    _ATEN.sqrt.default: _call("root"), _ATEN.rsqrt.default: _call("reciprocal_root"),
    _ATEN.abs.default: _call("magnitude"), _ATEN.sign.default: _call("sign_of"),
    _ATEN.pow.Tensor_Scalar: _power, _ATEN.square.default: lambda x: f"power({x}, 2)",
    _ATEN.leaky_relu.default: lambda x, slope="0.01f": f"leaky({x}, {slope})",
    _ATEN.elu.default: _elu,
    _ATEN.prelu.default: _call("leaky"), _ATEN._prelu_kernel.default: _call("leaky"),
    _ATEN.maximum.default: _call("larger"), _ATEN.minimum.default: _call("smaller"),
    _ATEN.where.self: _call("pick"),
    _ATEN.gt.Tensor: _test(">"), _ATEN.gt.Scalar: _test(">"), _ATEN.lt.Tensor: _test("<"), _ATEN.lt.Scalar: _test("<"),
    _ATEN.ge.Tensor: _test(">="), _ATEN.ge.Scalar: _test(">="), _ATEN.le.Tensor: _test("<="),
    _ATEN.le.Scalar: _test("<="), _ATEN.eq.Tensor: _test("=="), _ATEN.eq.Scalar: _test("=="),
    _ATEN.ne.Tensor: _test("!="), _ATEN.ne.Scalar: _test("!="),
    _ATEN.logical_and.default: _call("both"), _ATEN.bitwise_and.Tensor: _call("both"),
    _ATEN.logical_or.default: _call("either"), _ATEN.bitwise_or.Tensor: _call("either"),
    _ATEN.logical_not.default: lambda x: f"pick({x}, 0.0f, 1.0f)",
}  # fmt: skip


def pointwise(step: Step) -> Code:
    """One loop over the output, or as many as broadcasting asks for."""
    leaves: dict[str, fx.Node] = {}
    text = _clamp(_expression(step, step.main, leaves), *(number(q) if math.isfinite(q) else None for q in step.bounds))
    loops, reads, y = layout_of(shape(step.node), {name: shape(node) for name, node in leaves.items()})
    for name, read in zip(leaves, reads, strict=True):
        text = text.replace(f"<{name}>", read)
    over = tuple(
        step.number_of(node) for node in leaves.values() if step.number_of(node) >= 0 and size(node) == size(step.node)
    )
    return Code(f"{loops}{y} = {text};", over=over)


EMITTERS.update(dict.fromkeys(EXPRESSIONS, pointwise))


def _expression(step: Step, node: fx.Node, leaves: dict[str, fx.Node]) -> str:
    """The C expression of a node, with `<x0>` for the elements that it reads."""
    whole = arguments(node)
    parts: list[Any] = []
    for argument in node.target._schema.arguments:  # type: ignore[union-attr]
        value = whole[argument.name]
        if isinstance(value, fx.Node):
            parts.append(_operand(step, value, leaves))
        elif value is None or isinstance(value, str):
            parts.append(value)
        else:
            parts.append(number(float(value)))
    while parts and parts[-1] is None:
        parts.pop()
    return EXPRESSIONS[node.target](*parts)


def _operand(step: Step, node: fx.Node, leaves: dict[str, fx.Node]) -> str:
    if node in step.inside:
        return _expression(step, node, leaves)
    value = step.constant(node)
    if value is not None and value.numel() == 1:
        return number(float(value))
    name = step.read(node)
    leaves[name] = node
    return f"<{name}>"


def layout_of(out: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, list[str], str]:
    """Loops over an output of shape `out`, the element of each array that is read there, and that of y."""
    strides = {name: _broadcast(own, out) for name, own in shapes.items()}
    sizes, steps = _collapsed(out, strides)
    lines = [f"{'    ' * d}for (int i{d} = 0; i{d} < {n}; i{d}++)" for d, n in enumerate(sizes)]
    place = _place([math.prod(sizes[d + 1 :]) for d in range(len(sizes))])
    loops = "\n".join([*lines, "    " * len(sizes)])
    return loops, [f"{name}[{_place(steps[name])}]" for name in shapes], f"y[{place}]"


def _broadcast(own: tuple[int, ...], out: tuple[int, ...]) -> list[int]:
    """The strides of a contiguous array of shape `own`, seen with the shape `out`."""
    full = (1,) * (len(out) - len(own)) + own
    return [0 if n == 1 else math.prod(full[d + 1 :]) for d, n in enumerate(full)]


def _collapsed(out: tuple[int, ...], strides: dict[str, list[int]]) -> tuple[list[int], dict[str, list[int]]]:
    """The sizes and strides with neighbouring dimensions merged where all arrays allow it."""
    sizes: list[int] = []
    steps: dict[str, list[int]] = {name: [] for name in strides}
    for d, n in enumerate(out):
        if n == 1:
            continue
        if sizes and all(steps[name][-1] == strides[name][d] * n for name in strides):
            sizes[-1] *= n
            for name in strides:
                steps[name][-1] = strides[name][d]
        else:
            sizes.append(n)
            for name in strides:
                steps[name].append(strides[name][d])
    return sizes or [1], steps if sizes else {name: [0] for name in strides}


def _place(steps: list[int]) -> str:
    terms = [f"{s} * i{d}" if s > 1 else f"i{d}" for d, s in enumerate(steps) if s]
    return " + ".join(terms) or "0"
