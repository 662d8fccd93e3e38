"""From a graph to steps with C code, and to the memory that they need."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from pdecnn.deploy.c import convolution, movement, pointwise, pooling, products, reductions, steps
from pdecnn.deploy.c.arena import Buffer, lower_bound, plan
from pdecnn.deploy.c.constants import Constants
from pdecnn.deploy.c.footprint import Footprint, Layer
from pdecnn.deploy.c.groups import group
from pdecnn.deploy.c.int8.ends import to_float, to_int8
from pdecnn.deploy.c.int8.quantise import Quantised
from pdecnn.deploy.c.movement import COPIES, PARTS, VIEWS, is_contiguous, part_of, strided
from pdecnn.deploy.c.registry import EMITTERS, Code, Step, kind, quant, shape, size
from pdecnn.deploy.check import CannotExportError

_ATEN = torch.ops.aten
_ROOMS = (convolution, movement, pointwise, pooling, products, reductions, steps)  # fill the registry
_TYPES = (torch.float32, torch.bool)  # a truth value is 1 or 0
# of whose several outputs the first is computed
_FIRST = {
    _ATEN.max_pool2d_with_indices.default, _ATEN.native_layer_norm.default, _ATEN.native_group_norm.default,
    _ATEN._native_batch_norm_legit.no_stats, _ATEN.max.dim, _ATEN.min.dim, _ATEN.adaptive_max_pool2d.default,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a value lies: in the memory of `root`, from its element `start` on."""

    root: fx.Node
    start: int


@dataclass(frozen=True)
class Schedule:
    """All that the text of a file is made of.

    Attributes:
        blocks: C statements of the steps, in their order.
        constants: The arrays of the file.
        arena: Floats of the arena.
        inputs: Shapes of the inputs, which follow one another in `in`.
        outputs: Shapes of the outputs, which follow one another in `out`.
        footprint: What it costs.
        steps: What is computed, in its order.
    """

    blocks: list[str]
    constants: Constants
    arena: int
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    footprint: Footprint
    steps: tuple[Step, ...] = ()


def schedule(module: fx.GraphModule, quantised: Quantised | None = None) -> Schedule:
    """The steps of a graph from `program`; a CannotExportError that names all operators that cannot be written.

    Args:
        module: The graph.
        quantised: What `quantise` decided, if the graph is to be computed in 8 bits.
    """
    nodes = list(module.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    outputs: list[fx.Node] = [n for n in tree_leaves(nodes[-1].args) if isinstance(n, fx.Node)]
    refuse([node for node in nodes if node.op == "call_function"], inputs)
    constants = Constants()
    places: dict[fx.Node, Place] = {}
    made: list[tuple[Step, Code, int]] = []
    groups = group(module.graph) if quantised is None else quantised.groups
    forms = {} if quantised is None else quantised.forms
    merged = {n for g in groups.values() for n in g.members()} - set(groups)
    problems = []
    for node in nodes:
        if node.op != "call_function" or node in merged or _is_tuple(node):
            continue
        place = _alias(node, places)
        if place is not None:
            places[node] = place
            continue
        g = groups.get(node)
        step = Step(node, node, module, constants)
        if g is not None:
            step = Step(node, g.main, module, constants, g.residual, g.bounds, frozenset(g.inside))
        before = constants.bytes
        try:
            emitter = _emitter(step)
            code = forms[node].code(step) if node in forms else emitter(step)
        except NotImplementedError as error:
            problems.append(f"{error} (in {node.name})")
            continue
        made.append((step, code, constants.bytes - before))
    _raise_if(problems)
    copied = _copies_to_outputs(outputs, places, module, constants, made)
    arithmetic = {node: form.arithmetic for node, form in forms.items()}
    return _with_memory(made, places, inputs, copied, list(map(shape, outputs)), constants, arithmetic)


def _is_tuple(node: fx.Node) -> bool:
    return node.target in PARTS or node.target in _FIRST


def _emitter(step: Step) -> Callable[[Step], Code]:
    if step.main.target is operator.getitem:
        whole: Any = step.main.args[0]
        if whole.target in PARTS:
            return part_of
        step.main = whole
    return EMITTERS.get(step.main.target, part_of)


def refuse_all(module: fx.GraphModule) -> None:
    """`refuse` for a whole graph, before anything is computed with it."""
    nodes = list(module.graph.nodes)
    refuse([n for n in nodes if n.op == "call_function"], [n for n in nodes if n.op == "placeholder"])


def refuse(calls: list[fx.Node], inputs: list[fx.Node]) -> None:
    """A CannotExportError that lists every operator and type that cannot be written."""
    known = {*EMITTERS, *VIEWS, *COPIES, *PARTS, operator.getitem, to_float, to_int8}
    missing = sorted({str(node.target) for node in calls if node.target not in known})
    problems = [f"the operators {', '.join(missing)}"] if missing else []
    parts: list[Any] = [node.args for node in calls if node.target is operator.getitem]
    others = sorted({str(whole.target) for whole, number in parts if number != 0 and whole.target in _FIRST})
    problems += [f"the further outputs of {', '.join(others)}"] if others else []
    wrong = [node for node in inputs if node.meta["val"].dtype != torch.float32]
    problems += [f"the input {node.name} of type {node.meta['val'].dtype}" for node in wrong]
    if not problems:
        types = {value.dtype for node in calls if isinstance(value := node.meta["val"], torch.Tensor)}
        others = sorted(str(dtype) for dtype in types - set(_TYPES))
        problems += [f"values of type {', '.join(others)}"] if others else []
    _raise_if(problems)


def _raise_if(problems: list[str]) -> None:
    if problems:
        raise CannotExportError(
            f"export: C has no form for {'; '.join(problems)}. Nothing was written. Export that part by itself, "
            "replace it, or use format='onnx'."
        )


def _resolve(node: fx.Node, places: dict[fx.Node, Place]) -> Place:
    return places.get(node, Place(node, 0))


def _alias(node: fx.Node, places: dict[fx.Node, Place]) -> Place | None:
    """The place of a value that is another one, or a run of its elements; None if it must be computed."""
    part: Any = None
    view: Any = node
    if node.target is operator.getitem:
        view, part = node.args
        if view.target not in PARTS:
            return None
    source = view.args[0]
    if not isinstance(source, fx.Node) or source.op == "get_attr":
        return None
    if node.target in COPIES:
        return _resolve(source, places)
    if view.target not in VIEWS and view.target not in PARTS:
        return None
    sizes, strides, start = strided(view, part)
    if not is_contiguous(sizes, strides):
        return None
    own = _resolve(source, places)
    return Place(own.root, own.start + start)


def _copies_to_outputs(
    outputs: list[fx.Node],
    places: dict[fx.Node, Place],
    module: fx.GraphModule,
    constants: Constants,
    made: list[tuple[Step, Code, int]],
) -> list[fx.Node]:
    """The nodes that lie in `out`: the outputs, or copies of those that lie elsewhere."""
    found: list[fx.Node] = []
    computed = {step.node for step, _, _ in made}
    for node in outputs:
        place = _resolve(node, places)
        if place.root in computed and place.start == 0 and size(place.root) == size(node) and place.root not in found:
            found.append(place.root)
            continue
        with module.graph.inserting_before(next(iter(reversed(module.graph.nodes)))):
            copy = module.graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta["val"] = node.meta["val"]
        step = Step(copy, copy, module, constants)
        made.append((step, Code(f"memcpy(y, {step.read(node)}, {size(node)} * sizeof *y);"), 0))
        found.append(copy)
    return found


def _with_memory(
    made: list[tuple[Step, Code, int]],
    places: dict[fx.Node, Place],
    inputs: list[fx.Node],
    outputs: list[fx.Node],
    output_shapes: list[tuple[int, ...]],
    constants: Constants,
    arithmetic: dict[fx.Node, str],
) -> Schedule:
    last_use: dict[fx.Node, int] = {}
    for i, (step, _, _) in enumerate(made):
        for node in step.reads:
            last_use[_resolve(node, places).root] = i
    outside = _outside(inputs, "in") | _outside(outputs, "out")
    buffers: list[list[int]] = []  # size, first, last
    held: dict[fx.Node, int] = {}
    scratch: dict[int, int] = {}
    shared: dict[int, int] = {}  # the input in whose memory a step writes
    for i, (step, code, _) in enumerate(made):
        if code.scratch:
            scratch[i] = len(buffers)
            buffers.append([code.scratch, i, i])
        if step.node in outside:
            continue
        for k in code.over:
            place = _resolve(step.reads[k], places)
            root = place.root
            if (
                root in held
                and last_use[root] == i
                and size(root) == size(step.node)
                and kind(root) == kind(step.node)
                and _alone(step, k, places)
            ):
                held[step.node], shared[i] = held[root], k
                break
        else:
            held[step.node] = len(buffers)
            buffers.append([_floats(step.node), i, i])
        buffers[held[step.node]][2] = max(i, last_use.get(step.node, i))
    items = [Buffer(*b) for b in buffers]
    offsets, total = plan(items)
    at = {node: f"a + {offsets[k]}" for node, k in held.items()} | outside
    blocks, layers = [], []
    for i, (step, code, flash) in enumerate(made):
        blocks.append(_block(step, code, i, at, places, shared, f"a + {offsets[scratch[i]]}" if i in scratch else None))
        live = sum(b.size for b in items if b.first <= i <= b.last)
        label = arithmetic.get(step.node, "float")
        layers.append(Layer(_label(step), shape(step.node), 4 * live, flash, code.macs, label))
    macs = sum(code.macs for _, code, _ in made)
    cost = Footprint(4 * total, 4 * lower_bound(items), constants.bytes, macs, tuple(layers))
    return Schedule(
        blocks, constants, total, list(map(shape, inputs)), output_shapes, cost, tuple(q for q, _, _ in made)
    )


def _floats(node: fx.Node) -> int:
    """The floats that would take as much memory as a value does."""
    return size(node) if quant(node) is None else -(-size(node) // 4)


def _outside(nodes: list[fx.Node], name: str) -> dict[fx.Node, str]:
    found, start = {}, 0
    for node in nodes:
        found[node] = f"{name} + {start}"
        start += size(node)
    return found


def _alone(step: Step, k: int, places: dict[fx.Node, Place]) -> bool:
    """Whether the step reads the memory of its input k by that input alone."""
    root = _resolve(step.reads[k], places).root
    return all(n == k or _resolve(node, places).root is not root for n, node in enumerate(step.reads))


def _label(step: Step) -> str:
    name = getattr(step.main.target, "__name__", str(step.main.target)).partition(".")[0]
    return f"{step.node.name} ({name})" if not step.node.name.startswith(name) else step.node.name


def _block(
    step: Step,
    code: Code,
    i: int,
    at: dict[fx.Node, str],
    places: dict[fx.Node, Place],
    shared: dict[int, int],
    scratch: str | None,
) -> str:
    text, names = code.text, []
    for k, node in enumerate(step.reads):
        if shared.get(i) == k:
            text = re.sub(rf"\bx{k}\b", "y", text)
            continue
        place = _resolve(node, places)
        start = at[place.root] if quant(node) is None else f"(const int8_t *)({at[place.root]})"
        start = f"{start} + {place.start}" if place.start else start
        names.append(f"const {kind(node)} *restrict x{k} = {start};")
    own = at[step.node] if quant(step.node) is None else f"(int8_t *)({at[step.node]})"
    names.append(f"{kind(step.node)} *restrict y = {own};")
    if scratch is not None:
        names.append(f"float *restrict t = {scratch};")
    lines = [*names, *text.split("\n")]
    body = "\n".join(f"        {line}" for line in lines)
    sizes = "x".join(map(str, shape(step.node)))
    return f"    {{ /* {_label(step)}: {sizes} */\n{body}\n    }}"
