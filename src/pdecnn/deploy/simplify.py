"""What can be computed before a network is deployed: constants, batch norms, dropouts, pooling in its portable form.

All passes change a graph of ATen operators in place, as `torch.export` writes it in eval mode.
"""

import operator
from collections.abc import Container
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx, nn

from pdecnn.shared.modules import affine

_ATEN = torch.ops.aten
_CONVOLUTIONS = (_ATEN.conv1d.default, _ATEN.conv2d.default, _ATEN.conv3d.default)
_RANDOM = (_ATEN.rand.default, _ATEN.randn.default, _ATEN.bernoulli.default, _ATEN.rand_like.default)
_COPIES = (_ATEN.dropout.default, _ATEN.alias.default, _ATEN.detach.default, _ATEN.lift_fresh_copy.default)
# A folded constant may be this many times larger than what it is computed from, or this large in any case.
_GROWTH, _SMALL = 4, 1 << 20


def simplify(module: fx.GraphModule) -> fx.GraphModule:
    """Runs all passes."""
    drop_copies(module)
    fold_constants(module)
    whole_batch_norms(module)
    fold_batch_norms(module)
    keep_dimensions(module)
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    _forget_unused_tensors(module)
    module.recompile()
    return module


def drop_copies(module: fx.GraphModule) -> None:
    """Removes what does nothing in inference: dropout, alias, detach, and checks of shapes."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in _COPIES:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        elif node.op == "call_module" and node.target == "_guards_fn":
            module.graph.erase_node(node)


def changes_in_place(graph: fx.Graph) -> bool:
    """Whether anything that depends on the inputs is changed in place; such a graph must be made functional first."""
    constants: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr" or _is_constant(node, constants):
            constants.add(node)
        elif node.op == "call_function" and _is_mutable(node.target):
            return True
    return False


def fold_constants(module: fx.GraphModule) -> None:
    """Computes every node that depends on weights alone; what other nodes read of it becomes a buffer.

    Constants may be changed in place on the way: nodes run in their order on copies of the weights, so that views see
    the changes. A constant that is too large is left to the runtime, if nothing changes it.
    """
    values: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "get_attr":
                value = _attribute(module, node.target)
                values[node] = value.detach().clone() if isinstance(value, Tensor) else value
            elif _is_constant(node, values):
                args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
                values[node] = node.target(*args, **kwargs)
                if node.target is _ATEN.empty.memory_format:
                    values[node].zero_()  # files do not depend on what was in memory
    mutable = any(_is_mutable(node.target) for node in values if node.op == "call_function")
    for node in list(values):
        value = values[node]
        if isinstance(value, Tensor) and node.op != "get_attr" and not mutable and not _may_grow(value, node, values):
            del values[node]
    for node, value in values.items():
        outside = [user for user in node.users if user not in values]
        if node.op == "get_attr" or not outside or not isinstance(value, Tensor):
            continue
        constant = add_constant(module, node, value)
        for user in outside:
            user.replace_input_with(node, constant)
    for node in reversed(list(values)):
        if not node.users:
            module.graph.erase_node(node)


def _is_mutable(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _is_constant(node: fx.Node, constants: Container[fx.Node]) -> bool:
    if node.op != "call_function" or node.target in _RANDOM:
        return False
    if not isinstance(node.target, torch._ops.OpOverload) and node.target is not operator.getitem:
        return False
    return all(n in constants for n in node.all_input_nodes)


def _may_grow(value: Tensor, node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    inputs = sum(q.numel() for n in node.all_input_nodes if isinstance(q := values.get(n), Tensor))
    return value.numel() <= max(_SMALL, _GROWTH * inputs)


def whole_batch_norms(module: fx.GraphModule) -> None:
    """Batch norms with one output again, as they were before a graph was made functional."""
    for node in list(module.graph.nodes):
        first = next(iter(node.users), None)
        if node.target is not _ATEN._native_batch_norm_legit_no_training.default or len(node.users) != 1:
            continue
        if first is None or first.target is not operator.getitem or first.args[1] != 0:
            continue
        with module.graph.inserting_before(first):
            arguments = (*node.args[:5], False, *node.args[5:7], False)
            norm = module.graph.call_function(_ATEN.batch_norm.default, arguments)
        norm.meta = dict(first.meta)
        first.replace_all_uses_with(norm)
        module.graph.erase_node(first)
        module.graph.erase_node(node)


def fold_batch_norms(module: fx.GraphModule) -> None:
    """Puts every batch norm into the convolution before it, or writes it as one product and one sum."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target is not _ATEN.batch_norm.default:
            continue
        x, weight, bias, mean, var, training, _, eps = node.args[:8]
        gain, offset, mean, var = (_constant(module, n) for n in (weight, bias, mean, var))
        if training or mean is None or var is None:
            continue
        scale, shift = affine(gain, offset, mean, var, eps)
        if not _fold_into_convolution(module, x, node, scale, shift):
            _write_affine(module, node, x, scale, shift)


def _fold_into_convolution(module: fx.GraphModule, conv: Any, norm: fx.Node, scale: Tensor, shift: Tensor) -> bool:
    if not (isinstance(conv, fx.Node) and conv.target in _CONVOLUTIONS and len(conv.users) == 1):
        return False
    weight = _constant(module, conv.args[1])
    bias = None if len(conv.args) < 3 or conv.args[2] is None else _constant(module, conv.args[2])
    if weight is None or (bias is None and len(conv.args) > 2 and conv.args[2] is not None):
        return False
    folded = weight * scale.view(-1, *[1] * (weight.ndim - 1))
    moved = shift if bias is None else shift + bias * scale
    new_weight, new_bias = add_constant(module, conv, folded), add_constant(module, conv, moved)
    conv.args = (conv.args[0], new_weight, new_bias, *conv.args[3:])
    norm.replace_all_uses_with(conv)
    module.graph.erase_node(norm)
    return True


def _write_affine(module: fx.GraphModule, norm: fx.Node, x: Any, scale: Tensor, shift: Tensor) -> None:
    dims = norm.meta["val"].ndim - 2
    scale_node, shift_node = (add_constant(module, norm, q.view(-1, *[1] * dims)) for q in (scale, shift))
    with module.graph.inserting_before(norm):
        product = module.graph.call_function(_ATEN.mul.Tensor, (x, scale_node))
        total = module.graph.call_function(_ATEN.add.Tensor, (product, shift_node))
    total.meta = dict(norm.meta)
    norm.replace_all_uses_with(total)
    module.graph.erase_node(norm)


def keep_dimensions(module: fx.GraphModule) -> None:
    """Average pooling of a whole plane as `mean(keepdim=True)`, which every runtime computes in one operator."""
    for node in list(module.graph.nodes):
        if node.target is _ATEN.adaptive_avg_pool2d.default and list(node.args[1]) == [1, 1]:
            node.target, node.args = _ATEN.mean.dim, (node.args[0], [-2, -1], True)


def add_constant(module: fx.GraphModule, before: fx.Node, value: Tensor) -> fx.Node:
    """A new buffer and a node, placed before `before`, that reads it."""
    name = next(name for i in count() if not hasattr(module, name := f"constant_{i}"))
    module.register_buffer(name, value.detach().clone().contiguous())
    with module.graph.inserting_before(before):
        node: fx.Node = module.graph.get_attr(name)
    node.meta["val"] = value
    return node


def _constant(module: fx.GraphModule, node: Any) -> Tensor | None:
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value = _attribute(module, str(node.target))
    return value.detach() if isinstance(value, Tensor) else None


def _attribute(module: nn.Module, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _forget_unused_tensors(module: fx.GraphModule) -> None:
    used = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for path in [*dict(module.named_parameters()), *dict(module.named_buffers())]:
        if path not in used:
            parent, _, name = path.rpartition(".")
            delattr(_attribute(module, parent) if parent else module, name)
