"""What is computed together: an activation with the convolution before it, a chain of element-wise operators."""

import math
from dataclasses import dataclass, field

import torch
from torch import fx

from pdecnn.deploy.c.pointwise import EXPRESSIONS
from pdecnn.deploy.c.registry import arguments, shape

_ATEN = torch.ops.aten
LONGEST = 12  # operators in one loop


@dataclass
class Group:
    """A step to be: `main` decides how, `last` is the node whose value it gives."""

    main: fx.Node
    last: fx.Node
    residual: fx.Node | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)
    inside: set[fx.Node] = field(default_factory=set)

    def members(self) -> list[fx.Node]:
        """All nodes of the group."""
        found, node = [self.main, *self.inside], self.main
        while node is not self.last:
            node = next(iter(node.users))
            found.append(node)
        return found


def group(graph: fx.Graph, *, of_one: bool = False) -> dict[fx.Node, Group]:
    """Groups by their last node; nodes that are in no group are steps of their own.

    With `of_one`, as integers ask for, a chain is a function of one value, or one operator and its bounds.
    """
    claimed: set[fx.Node] = set()
    found = {}
    calls = [node for node in graph.nodes if node.op == "call_function"]
    order = {node: i for i, node in enumerate(graph.nodes)}
    for conv in (node for node in reversed(calls) if node.target is _ATEN.convolution.default):
        made = _with_tail(conv, claimed, order)
        if made.last is not conv:
            found[made.last] = made
    for node in reversed(calls):
        if node.target in EXPRESSIONS and node not in claimed:
            inside: set[fx.Node] = set()
            _absorb(node, node, inside, claimed)
            made = Group(node, node, inside=inside)
            if of_one and len(_leaves(node, inside)) > 1:
                made = _bounded(node, claimed)
            found[node] = made
            claimed |= {*made.members()}
    return found


def _leaves(node: fx.Node, inside: set[fx.Node]) -> set[fx.Node]:
    """The computed values that a chain reads."""
    return {n for q in (node, *inside) for n in q.all_input_nodes if n.op != "get_attr" and n not in inside}


def _bounded(node: fx.Node, claimed: set[fx.Node]) -> Group:
    """A node by itself, or as the bounds of the only node that it reads."""
    bounds, main = _bounds(node), node.all_input_nodes[0]
    single = len(main.users) == 1 and main.op == "call_function" and main.target in EXPRESSIONS
    if bounds is None or not single or main in claimed or shape(main) != shape(node):
        return Group(node, node)
    return Group(main, node, bounds=bounds)


def _with_tail(conv: fx.Node, claimed: set[fx.Node], order: dict[fx.Node, int]) -> Group:
    made = Group(conv, conv)
    user = _only_user(conv, claimed)
    if user is not None and user.target is _ATEN.add.Tensor and len(user.args) == 2 and not user.kwargs:
        other = user.args[1] if user.args[0] is conv else user.args[0]
        if isinstance(other, fx.Node) and other is not conv and shape(other) == shape(conv) == shape(user):
            made.residual, made.last = other, user
            user = _only_user(user, claimed)
    bounds = None if user is None else _bounds(user)
    if user is not None and bounds is not None:
        made.bounds, made.last = bounds, user
    node = made.last
    while node is not conv:
        claimed.add(node)
        node = next(n for n in node.all_input_nodes if n is not made.residual)
    claimed.add(conv)
    return made


def _only_user(node: fx.Node, claimed: set[fx.Node]) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op == "call_function" and users[0] not in claimed else None


def _bounds(node: fx.Node) -> tuple[float, float] | None:
    """The least and the largest value of an activation that only cuts off."""
    if node.target is _ATEN.relu.default:
        return 0.0, math.inf
    if node.target not in (_ATEN.hardtanh.default, _ATEN.clamp.default):
        return None
    a = arguments(node)
    low, high = (a["min_val"], a["max_val"]) if node.target is _ATEN.hardtanh.default else (a["min"], a["max"])
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        return None
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def _absorb(root: fx.Node, node: fx.Node, inside: set[fx.Node], claimed: set[fx.Node]) -> None:
    for n in node.all_input_nodes:
        single = len(n.users) == 1 and n.op == "call_function" and n.target in EXPRESSIONS
        if single and n not in claimed and shape(n) == shape(root) and len(inside) < LONGEST:
            inside.add(n)
            _absorb(root, n, inside, claimed)
