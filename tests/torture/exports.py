"""Two small networks and their files, so that exporting one over the other is writing, comparing and renaming alone."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch
from torch import nn

from pdecnn.deploy import api

X = torch.linspace(-1, 1, 4).view(2, 2)


def net(n: int) -> nn.Module:
    """One of two fully connected layers."""
    torch.manual_seed(n)
    return nn.Linear(2, 3).eval()


def to_onnx(model: Any, *_: Any, **__: Any) -> Any:
    """The file of such a layer; it takes the exporter of torch seconds to find that out."""
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    node = make.make_node("Gemm", ["x", "weight", "bias"], ["y"], transB=1)
    sides = [make.make_tensor_value_info(name, kind, ["N", size]) for name, size in (("x", 2), ("y", 3))]
    values = [onnx.numpy_helper.from_array(q.detach().numpy(), name) for name, q in model.named_parameters()]
    graph = make.make_graph([node], "net", sides[:1], sides[1:], values)
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


def export(folder: Path, n: int) -> None:
    """Writes net.onnx as `pdecnn.export` does."""
    given, api.to_onnx = api.to_onnx, to_onnx
    try:
        api.export(net(n), folder / "net.onnx", X)
    finally:
        api.to_onnx = given


@cache
def whole() -> list[bytes]:
    """The two files."""
    made = []
    for n in range(2):
        with TemporaryDirectory() as folder:
            export(Path(folder), n)
            made.append((Path(folder) / "net.onnx").read_bytes())
    assert made[0] != made[1]
    return made


def which(folder: Path) -> int:
    """Which of the two networks stands there; a ValueError if it is neither, or a part."""
    return whole().index((folder / "net.onnx").read_bytes())
