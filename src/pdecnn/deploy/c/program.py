"""From a model to the graph that is written in C: core ATen operators of fixed sizes, and our solvers whole."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import get_decompositions

from pdecnn.deploy.lower import lower, trace
from pdecnn.deploy.simplify import simplify

_ATEN, _OPS = torch.ops.aten, torch.ops.pdecnn
KEPT = (_OPS.global_layer.default, _OPS.advection_diffusion.default)
# composed of others in core ATen, but simpler whole
_WHOLE = (_ATEN.linear.default, _ATEN.matmul.default)
# whole in core ATen, but simpler composed
_COMPOSED = (_ATEN.upsample_bilinear2d.vec, _ATEN.upsample_bicubic2d.vec, _ATEN.upsample_linear1d.vec)
_CHECKS = (_ATEN._assert_tensor_metadata.default, _ATEN._assert_async.msg, _ATEN.sym_constrain_range_for_size.default)


def program(model: nn.Module, inputs: Sequence[Tensor]) -> fx.GraphModule:
    """A graph that computes what `model` computes for one sample; every node has its value's shape in `meta["val"]`."""
    one = [x[:1] for x in inputs]
    lowered = lower(model, one, keep=KEPT, dynamic="nothing")
    table = torch.export.default_decompositions()
    table.update(get_decompositions(_COMPOSED))
    for op in _WHOLE:
        table.pop(op, None)
    module: Any = trace(lowered, one, dynamic="nothing").run_decompositions(table).module(check_guards=False)
    for node in list(module.graph.nodes):
        if node.target in _CHECKS:
            module.graph.erase_node(node)
    simplify(module)
    with torch.no_grad():
        _Shapes(module).run(*one)
    assert isinstance(module, fx.GraphModule)
    return module


class _Shapes(fx.Interpreter):
    """Runs a graph and keeps the shape and the type of each value."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["val"] = _described(value)
        return value


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, (tuple, list)):
        return tuple(map(_described, value))
    return value
