"""Which steps of a graph are computed in integers, and with which scales."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pdecnn.deploy.c.constants import Constants
from pdecnn.deploy.c.fixed import Quant
from pdecnn.deploy.c.groups import Group, group
from pdecnn.deploy.c.int8 import convolution, movement, pointwise, pooling, steps
from pdecnn.deploy.c.int8.calibrate import Ranges
from pdecnn.deploy.c.int8.ends import ToFloat, ToInt8, to_float, to_int8
from pdecnn.deploy.c.int8.movement import KEEPS, Part
from pdecnn.deploy.c.movement import COPIES, PARTS
from pdecnn.deploy.c.registry import INTEGERS, Integer, Step, quant
from pdecnn.shared.progress import ProgressCallback, begin

_ATEN = torch.ops.aten
_GLOBAL = torch.ops.pdecnn.global_layer.default
_ROOMS = (convolution, movement, pointwise, pooling, steps)  # fill the registry
_SAME = {*KEEPS, *COPIES, _ATEN.max_pool2d_with_indices.default, _ATEN.max_pool2d.default,
         _ATEN.adaptive_max_pool2d.default}  # fmt: skip
COMPARED = 32  # samples on which the inside of a Global layer is looked at, and its integers compared with float


@dataclass
class Quantised:
    """What `quantise` decided.

    Attributes:
        groups: What is computed together, by its last node.
        forms: The integer form of each step that has one, by the node of its value.
        reasons: Why the others have none, by the name of the step.
        distances: Of each Global layer: how far its integers are from float, in steps of its output.
    """

    groups: dict[fx.Node, Group]
    forms: dict[fx.Node, Integer] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    distances: dict[str, float] = field(default_factory=dict)


def steps_of(module: fx.GraphModule, groups: dict[fx.Node, Group], constants: Constants) -> Iterator[Step]:
    """One step for each group and for each node in none, in their order, views and tuples included."""
    merged = {n for g in groups.values() for n in g.members()} - set(groups)
    for node in module.graph.nodes:
        if node.op != "call_function" or node in merged:
            continue
        g = groups.get(node)
        if g is None:
            yield Step(node, node, module, constants)
        else:
            yield Step(node, g.main, module, constants, g.residual, g.bounds, frozenset(g.inside))


def quantise(
    module: fx.GraphModule, samples: Sequence[Sequence[Tensor]], progress: ProgressCallback | None = None
) -> Quantised:
    """Changes a graph from `program` to one that computes in 8 bits where it can; samples are inputs of one image each.

    Values in 8 bits have their scale in `meta["quant"]`.
    """
    found = Quantised(group(module.graph, of_one=True))
    inside: dict[fx.Node, list[tuple[Any, Any, Tensor]]] = {}
    known = {step.main: step for step in steps_of(module, found.groups, Constants()) if step.main.target is _GLOBAL}
    ranges = Ranges(module, lambda node, args, value: _look(node, args, value, known, inside))
    ranges.fill(samples, begin(progress, "calibrating", 2 * len(samples)))
    outputs = {n for node in module.graph.nodes if node.op == "output" for n in node.all_input_nodes}
    for step in list(steps_of(module, found.groups, Constants())):
        whole: Any = step.node.args[0] if step.node.args else None
        if step.node.target is operator.getitem and whole.target not in PARTS:
            step.main = whole
        _decide(step, found, ranges, outputs, inside)
    for node in outputs:
        if quant(node) is not None:
            _replace(node, _end(node, found, None), [n for n in module.graph.nodes if n.op == "output"])
    module.recompile()
    return found


def _look(node: fx.Node, args: tuple[Any, ...], value: Any, known: dict[fx.Node, Step], inside: Any) -> None:
    if node not in known or len(inside.setdefault(node, [])) >= COMPARED:
        return
    h, x = (q[0].double().numpy() for q in args[:2])
    try:
        new = steps.layer_of(known[node]).ranges(h, x)
    except NotImplementedError:
        return
    node.meta["ranges"] = tuple(map(max, new, node.meta.get("ranges", new)))
    inside[node].append((h, x, value))


def _decide(
    step: Step, found: Quantised, ranges: Ranges, outputs: set[fx.Node], inside: dict[fx.Node, list[Any]]
) -> None:
    """Finds the integer form of a step, or leaves it in float; either way it reads what it needs."""
    node, main = step.node, step.main
    if main.target in PARTS or isinstance(node.meta["val"], tuple):
        return  # its parts are steps
    part = main.target is operator.getitem
    source: Any = main.args[0].args[0] if part else main.args[0] if main.args else None  # type: ignore[union-attr]
    members = [node, main, *found.groups[node].members()] if node in found.groups else [node, main]
    inputs = _inputs(members) if not part else [source]
    same = part or main.target in _SAME
    given = {n: n.meta.get("quant") for n in inputs}
    if same and isinstance(source, fx.Node) and quant(source) is None:
        return  # a view of floats
    for n in inputs:  # as if all were in 8 bits
        if quant(n) is None and n in ranges.ends:
            n.meta["quant"] = ranges.quant(n)
    last = node in outputs and set(node.users) == {u for u in node.users if u.op == "output"}
    node.meta["quant"] = quant(source) if same else None if last and main.target is _ATEN.linear.default else (
        ranges.quant(node) if node in ranges.ends else None
    )  # fmt: skip
    form, why = _form(step, part, inside, found)
    for n, before in given.items():
        if before is None:
            n.meta.pop("quant", None)
    readers: list[Any] = members if not part else [main.args[0]]
    if form is not None:
        found.forms[node] = form
        for n in (n for n in inputs if given[n] is None):
            _replace(n, _end(n, found, ranges.quant(n)), readers)
    else:
        node.meta.pop("quant", None)
        found.reasons[node.name] = why
        for n in (n for n in inputs if given[n] is not None):
            _replace(n, _end(n, found, None), readers)
    g = found.groups.get(node)
    if g is not None and g.residual is not None:
        g.residual = next(n for n in _inputs(members) if n is g.residual or n.args[:1] == (g.residual,))


def _inputs(members: Sequence[fx.Node]) -> list[fx.Node]:
    own = set(members)
    every = dict.fromkeys(n for member in members for n in member.all_input_nodes)
    return [n for n in every if n.op != "get_attr" and n not in own]


def _form(step: Step, part: bool, inside: dict[fx.Node, list[Any]], found: Quantised) -> tuple[Integer | None, str]:
    name = str(step.main.target)
    if part:
        return Part(step), ""
    if step.main.target in COPIES:
        return _Alias(), ""
    if step.main.target not in INTEGERS:
        return None, f"{name} has no form in integers"
    try:
        form = INTEGERS[step.main.target](step)
    except NotImplementedError as error:
        return None, str(error)
    if isinstance(form, steps.Fixed):
        far = [steps.distance(form, *seen) for seen in inside[step.main]]
        found.distances[step.node.name] = mean = sum(far) / len(far)
        if mean > steps.WORST:
            return None, f"in 16 bits it is {mean:.2f} steps of its output from float"
    return form, ""


class _Alias:
    """A copy that is not made."""

    arithmetic = "int8"

    def code(self, step: Step) -> Any:
        """Nothing calls it: a copy of a computed value is that value."""
        raise NotImplementedError(str(step.main.target))

    def values(self, x: Any) -> Any:
        """The same."""
        return x


def _end(node: fx.Node, found: Quantised, to: Quant | None) -> fx.Node:
    """The node that turns the value of `node` into 8 bits, or into float; made once."""
    target = to_float if to is None else to_int8
    for user in node.users:
        if user.target is target:
            return user
    with node.graph.inserting_after(node):
        made = node.graph.call_function(target, (node,))
    made.meta["val"] = node.meta["val"]
    own = quant(node)
    if to is not None:
        made.meta["quant"], found.forms[made] = to, ToInt8(to)
    else:
        assert own is not None
        found.forms[made] = ToFloat(own)
    return made


def _replace(old: fx.Node, new: fx.Node, readers: Sequence[fx.Node]) -> None:
    for reader in readers:
        if reader is not new:
            reader.replace_input_with(old, new)
