"""A net that serves a range of K: its file has tables of the norms after the steps, which are all that depends on K."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from pdecnn.deploy.c.program import program
from pdecnn.deploy.c.registry import arguments, constant_of
from pdecnn.layers.steps import served_steps, set_steps, with_steps
from pdecnn.reference.advection_diffusion import MAX_STEPS

_LAYER = torch.ops.pdecnn.global_layer.default
BY_K = ("scale", "shift")  # of a Global layer, with its norm folded into them

Tables = dict[fx.Node, dict[str, Tensor]]


def program_for_steps(model: nn.Module, inputs: Sequence[Tensor], *, fixed: bool = False) -> fx.GraphModule:
    """`program`, with the K that its file may be asked for in `meta["steps"]`: every K, or what a knob serves.

    Each Global layer of a knob has the tables of `BY_K` in its own meta, with a row for each K. A knob of which more
    depends on K, or one in 8 bits (`fixed`), has the K that is set and no other.
    """
    module, served = program(model, inputs), served_steps(model)
    module.meta["steps"] = range(1, MAX_STEPS + 1)
    if served is None:
        return module
    steps = range(served[0], served[1] + 1)
    tables = None if fixed else _tables(module, model, inputs, steps)
    module.meta["steps"] = range(0) if tables is None else steps
    for node, found in (tables or {}).items():
        node.meta["by_K"] = found
    return module


def _tables(module: fx.GraphModule, model: nn.Module, inputs: Sequence[Tensor], steps: range) -> Tables | None:
    """The tables of every Global layer; None if the graphs of the K differ in anything else."""
    graphs = []
    with with_steps(model, steps.start):
        for K in steps:
            set_steps(model, K)
            graphs.append(program(model, inputs))
    if any(len(g.graph.nodes) != len(module.graph.nodes) for g in graphs):
        return None
    tables: Tables = {}
    for node, *row in zip(module.graph.nodes, *(g.graph.nodes for g in graphs), strict=True):
        if node.target is _LAYER:
            values = [arguments(other) for other in row]
            rows = {name: [constant_of(g, q.pop(name)) for g, q in zip(graphs, values, strict=True)] for name in BY_K}
            if any(q is None for found in rows.values() for q in found):
                return None
            tables[node] = {name: torch.stack(found) for name, found in rows.items()}  # type: ignore[arg-type]
        elif node.op == "call_function":
            values = [{"target": other.target, **other.kwargs, "args": other.args} for other in row]
        else:
            continue
        for q in values:
            q.pop("K", None)
        if not all(_alike(graphs[0], values[0], g, q) for g, q in zip(graphs, values, strict=True)):
            return None
    return tables


def _alike(first: fx.GraphModule, mine: Any, other: fx.GraphModule, theirs: Any) -> bool:
    """Whether the arguments of two nodes are the same: values, weights, and what other nodes give."""
    a, b = tree_leaves(mine), tree_leaves(theirs)
    return len(a) == len(b) and all(_same(first, p, other, q) for p, q in zip(a, b, strict=True))


def _same(first: fx.GraphModule, a: Any, other: fx.GraphModule, b: Any) -> bool:
    p, q = constant_of(first, a), constant_of(other, b)
    if p is not None and q is not None:
        return torch.equal(p, q)
    return bool(str(a) == str(b))
