"""The operators that can be written in C: one small function each, found by the operator."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

from pdecnn.deploy.c.constants import Constants, number
from pdecnn.deploy.c.fixed import Quant


@dataclass(frozen=True)
class Code:
    """What one step does.

    Attributes:
        text: C statements. `y` is the output, `x0`, `x1`, ... are the inputs in the order in which they were asked for,
            `t` is scratch memory.
        scratch: Floats of scratch memory.
        macs: Multiply-adds.
        over: Inputs in whose memory the output may be written, by number.
    """

    text: str
    scratch: int = 0
    macs: int = 0
    over: tuple[int, ...] = ()


@dataclass
class Step:
    """One operator in its place, with what was merged into it.

    Attributes:
        node: The node whose value the step computes.
        main: The node whose operator decides how; another one if an activation was merged into a convolution.
        module: Holds the weights.
        constants: Of the file.
        residual: What a convolution adds to its sums, if anything.
        bounds: The least and the largest value that it gives.
        inside: The nodes whose expressions are part of this step's.
        reads: The nodes that `x0`, `x1`, ... stand for.
    """

    node: fx.Node
    main: fx.Node
    module: fx.GraphModule
    constants: Constants
    residual: fx.Node | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)
    inside: frozenset[fx.Node] = frozenset()
    reads: list[fx.Node] = field(default_factory=list)

    def read(self, node: fx.Node) -> str:
        """The C name of an input."""
        value = self.constant(node)
        if value is not None:
            return self.constants.floats(value.float().numpy())
        if node not in self.reads:
            self.reads.append(node)
        return f"x{self.reads.index(node)}"

    def number_of(self, node: fx.Node) -> int:
        """The place of a node among the inputs, or -1."""
        return self.reads.index(node) if node in self.reads else -1

    def constant(self, node: Any) -> Tensor | None:
        """The value of a weight; None if the node is none."""
        return constant_of(self.module, node)

    def steps(self, own: int) -> str:
        """C for the number of time steps: that of the call, or the node's own."""
        return f"K > 0 ? K : {own}" if len(self.module.meta["steps"]) else str(own)

    def arguments(self) -> dict[str, Any]:
        """The arguments of the main operator by their names in its schema, with defaults."""
        return arguments(self.main)


def constant_of(module: nn.Module, node: Any) -> Tensor | None:
    """The value of a weight of a graph; None if the node is none."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value: Any = module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value.detach().cpu() if isinstance(value, Tensor) else None


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a node's operator by their names in its schema, with defaults."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False))
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return {**defaults, **given, **node.kwargs}


def shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's value."""
    return tuple(node.meta["val"].shape)


def size(node: fx.Node) -> int:
    """The number of elements of a node's value."""
    return math.prod(shape(node))


def quant(node: fx.Node) -> Quant | None:
    """How a node's value is kept in 8 bits; None if it is in float."""
    found = node.meta.get("quant")
    return found if isinstance(found, Quant) else None


def kind(node: fx.Node) -> str:
    """The C type of a node's elements."""
    return "float" if quant(node) is None else "int8_t"


def literal(node: fx.Node, value: float) -> str:
    """A number as an element of a node's value."""
    small = quant(node)
    return number(value) if small is None else str(int(small.of(value)))


Emitter = Callable[[Step], Code]
EMITTERS: dict[Any, Emitter] = {}


def emits(*ops: torch._ops.OpOverload) -> Callable[[Emitter], Emitter]:
    """Registers a function for operators."""

    def add(emitter: Emitter) -> Emitter:
        EMITTERS.update(dict.fromkeys(ops, emitter))
        return emitter

    return add


class Integer(Protocol):
    """An operator in integers: its C, and what that computes, in Python."""

    @property
    def arithmetic(self) -> str:
        """What the report says of it."""

    def code(self, step: Step) -> Code:
        """C that reads int8 and writes int8."""

    def values(self, *inputs: Any) -> Any:
        """The same on arrays of int64, bit by bit; they come in the order in which `code` reads them."""


Builder = Callable[[Step], Integer]
INTEGERS: dict[Any, Builder] = {}


def in_integers(*ops: Any) -> Callable[[Builder], Builder]:
    """Registers a function that makes the integer form of a step; it raises NotImplementedError where there is none."""

    def add(builder: Builder) -> Builder:
        INTEGERS.update(dict.fromkeys(ops, builder))
        return builder

    return add
