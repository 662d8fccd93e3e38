"""An ONNX file whose number of time steps is one of its inputs: `K`, an int64 without dimensions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pdecnn.deploy.check import CannotExportError
from pdecnn.deploy.onnx import DOMAIN, to_onnx
from pdecnn.layers.steps import served_steps, set_steps, with_steps
from pdecnn.shared.extras import require

NAME = "K"
UNSERVED = (1, 10)  # a net without statistics of each K runs with any; the file is compared for these


def open_range(model: nn.Module) -> range:
    """The K that a file with open steps is made for and compared with."""
    least, most = served_steps(model) or UNSERVED
    return range(least, most + 1)


def to_open_onnx(model: nn.Module, inputs: Sequence[Tensor], **options: Any) -> Any:
    """`to_onnx` with fused operators, which take K as an input, and K as the last input of the file.

    The file of each K is made. They differ in their constants alone: those of the norms after K steps, which become
    tables of which the row K is taken. Rows of a K that the net does not serve are NaN.
    """
    options |= {"ops": "fused"}
    served = open_range(model)
    with with_steps(model, served.start):
        if set_steps(model, served.start) == 0:
            raise CannotExportError(f"export: {type(model).__name__} has no layer with K time steps to leave open.")
        protos = []
        for K in served:
            set_steps(model, K)
            protos.append(to_onnx(model, inputs, **options))
    return _joined(protos, served, type(model).__name__)


def _joined(protos: Sequence[Any], served: range, name: str) -> Any:
    """The first file with what differs among them taken from tables."""
    onnx = require("onnx", "export")
    first, helper = protos[0], onnx.numpy_helper
    values = [{q.name: helper.to_array(q) for q in proto.graph.initializer} for proto in protos]
    nodes = list(zip(*(proto.graph.node for proto in protos), strict=False))
    alike = len({len(proto.graph.node) for proto in protos}) == 1 and all(map(_is_alike, nodes))
    if not alike or not any(node.domain == DOMAIN for node in first.graph.node):
        raise _depends_on_steps(name)
    tables: dict[tuple[Any, bytes], str] = {}
    added = []
    for row in nodes:
        node = row[0]
        for i in range(len(node.input)):
            if node.domain == DOMAIN and i == len(node.input) - 1:
                node.input[i] = NAME
                continue
            found: list[Any] = [mine.get(other.input[i]) for mine, other in zip(values, row, strict=True)]
            if any(q is None for q in found):
                if len({other.input[i] for other in row}) > 1:
                    raise _depends_on_steps(name)
                continue
            if all(np.array_equal(found[0], q) for q in found):
                continue
            if any(q.shape != found[0].shape or q.dtype.kind != "f" for q in found):
                raise _depends_on_steps(name)
            table = np.stack([np.full_like(found[0], np.nan)] * served.start + found)
            key = (table.shape, table.tobytes())
            if key not in tables:
                tables[key] = at = f"at_K_{len(tables)}"
                first.graph.initializer.append(helper.from_array(table, f"{at}_table"))
                added.append(onnx.helper.make_node("Gather", [f"{at}_table", NAME], [at], name=f"{at}_row", axis=0))
            node.input[i] = tables[key]
    _replace(first.graph.node, [*added, *first.graph.node])
    read = {q for node in first.graph.node for q in node.input} | {q.name for q in first.graph.output}
    _replace(first.graph.initializer, [q for q in first.graph.initializer if q.name in read])
    first.graph.input.append(onnx.helper.make_tensor_value_info(NAME, onnx.TensorProto.INT64, []))
    onnx.checker.check_model(first)
    return first


def _depends_on_steps(name: str) -> CannotExportError:
    return CannotExportError(
        f"export: K cannot stay open in {name}: more than the constants after its Global layers depends on K, as the "
        "stencil of Transport does. Export it for one K: `with with_steps(model, 3)`, or --K 3."
    )


def _is_alike(row: Sequence[Any]) -> bool:
    """Whether nodes are the same operator with the same attributes."""
    kinds = {(node.op_type, node.domain, len(node.input)) for node in row}
    return len(kinds) == 1 and all(list(node.attribute) == list(row[0].attribute) for node in row)


def _replace(items: Any, new: Sequence[Any]) -> None:
    new = list(new)
    del items[:]
    items.extend(new)


def as_input(K: int) -> Tensor:
    """K as the file takes it."""
    return torch.tensor(K, dtype=torch.int64)
