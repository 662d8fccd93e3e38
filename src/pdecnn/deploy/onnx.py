"""Writing ONNX: from a lowered graph to a clean, checked model."""

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.deploy import rows
from pdecnn.deploy.check import CannotExportError
from pdecnn.deploy.lower import check_inputs, lower, lower_with, trace
from pdecnn.deploy.names import Names, check_names, input_names, output_names
from pdecnn.deploy.portable import TABLE, Table, WithTable
from pdecnn.kernels.advection_diffusion.op import Problem
from pdecnn.kernels.global_layer.arguments import Steps
from pdecnn.kernels.library import ACTIVATIONS, BOUNDARIES
from pdecnn.shared.extras import require
from pdecnn.shared.modules import eval_mode

DOMAIN, DOMAIN_VERSION = "pdecnn", 1
OPS = ("portable", "fused")
FUSED = (torch.ops.pdecnn.global_layer.default, torch.ops.pdecnn.advection_diffusion.default)


def to_onnx(
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    ops: str = "portable",
    opset: int = 20,
    names: Names | None = None,
    dynamic: str = "batch",
) -> Any:
    """An `onnx.ModelProto` that computes `model`, checked by `onnx.checker`.

    Args:
        model: What to export.
        inputs: Example inputs.
        ops: `"portable"`: ONNX operators alone; `"fused"`: Global layers are nodes of the domain `pdecnn`, which
            `pdecnn.deploy.session_options()` knows.
        opset: Version of the ONNX operators.
        names: `{"inputs": [...], "outputs": [...]}`; found by `deploy.names` by default.
        dynamic: Which sizes of the inputs may change, as in `lower`.
    """
    onnx = require("onnx", "export")
    require("onnxscript", "export")
    called = _names(model, inputs, names or {})
    if ops == "fused":
        lowered: nn.Module = WithTable(lower(model, inputs, keep=FUSED, dynamic=dynamic), NODES)
    else:  # rows are for sizes that are known
        table = rows.TABLE if dynamic != "size" else TABLE
        lowered = lower_with(table, model, check_inputs(model, inputs), dynamic=dynamic)
    program = trace(lowered, inputs, dynamic=dynamic)
    noise = io.StringIO()  # the exporter reports its progress, which is not ours to print
    try:
        with redirect_stdout(noise), redirect_stderr(noise), torch.no_grad():
            exported: Any = torch.onnx.export(
                program,
                (),
                input_names=called["inputs"],
                output_names=called["outputs"],
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise CannotExportError(f"export: {type(model).__name__} cannot be written as ONNX: {reason}") from error
    proto = exported.model_proto
    written = next((item.version for item in proto.opset_import if not item.domain), opset)
    if written != opset:  # the exporter says so in a log line alone
        raise ValueError(f"export: opset {opset} cannot be written for this model, only {written}.")
    clean(proto)
    name_sizes(proto)
    onnx.checker.check_model(proto, full_check=ops == "portable")
    return proto


def clean(proto: Any) -> None:
    """Removes what no runtime reads: source lines, inferred shapes, notes; names the producer."""
    from importlib.metadata import version

    graph = proto.graph
    custom = {output for node in graph.node if node.domain == DOMAIN for output in node.output}
    kept = [info for info in graph.value_info if info.name in custom]  # a runtime cannot infer these
    del graph.value_info[:]
    graph.value_info.extend(kept)
    del proto.metadata_props[:]
    for item in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.initializer, *graph.value_info):
        item.ClearField("doc_string")
        if hasattr(item, "metadata_props"):
            del item.metadata_props[:]
    del proto.functions[:]
    used = {node.domain for node in graph.node}
    imports = [(item.domain, item.version) for item in proto.opset_import if item.domain in used or not item.domain]
    del proto.opset_import[:]
    for domain, number in imports:
        proto.opset_import.add(domain=domain, version=DOMAIN_VERSION if domain == DOMAIN else number)
    proto.producer_name, proto.producer_version = "pdecnn", version("pdecnn")
    graph.name = "main"


def _names(model: nn.Module, inputs: Sequence[Tensor], given: Names) -> dict[str, list[str]]:
    """What the user calls inputs and outputs, or else the model."""
    with eval_mode(model), torch.no_grad():
        own = output_names(model(*[x.clone() for x in inputs]))
    check_names(given, len(inputs), len(own))
    return {
        "inputs": list(given.get("inputs", ())) or input_names(model, len(inputs)),
        "outputs": list(given.get("outputs", ())) or own,
    }


SIZES = {3: ("length",), 4: ("height", "width"), 5: ("depth", "height", "width")}


def name_sizes(proto: Any) -> None:
    """Calls the free sizes of the first input `batch`, `height` and `width`; torch gives them numbers."""
    graph = proto.graph
    dims = graph.input[0].type.tensor_type.shape.dim
    words = ("batch", "channels", *SIZES.get(len(dims), ()))
    called = {dim.dim_param: word for dim, word in zip(dims, words, strict=False) if dim.dim_param}
    for item in (*graph.input, *graph.output, *graph.value_info):
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param:  # a name, or a formula of names
                dim.dim_param = re.sub(r"\w+", lambda name: called.get(name[0], name[0]), dim.dim_param)


def _global_layer(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor,
    residual: bool, output_act: str, *options: Any,
) -> Tensor:  # fmt: skip
    steps = Steps(*options)
    attributes = {
        **steps._asdict(),
        "boundary": BOUNDARIES[steps.boundary],
        "coefficient_act": ACTIVATIONS[steps.coefficient_act],
        "output_act": ACTIVATIONS[output_act],
        "residual": residual,
    }
    del attributes["K"]
    return _node("GlobalLayer", (h, x, weight, bias, scale, shift), steps.K, attributes)


def _advection_diffusion(*arguments: Any) -> Tensor:
    problem = Problem(*arguments)
    inputs = [problem.h if q is None else q for q in problem.tensors]  # an unused input is filled with h
    attributes = {name: getattr(problem, name) for name in ("dt", "dx", "dy")}
    codes = {"boundary": BOUNDARIES[problem.boundary], "has_source": problem.f is not None}
    return _node("AdvectionDiffusion", inputs, problem.K, attributes | codes)


def _node(name: str, inputs: Sequence[Tensor], K: int, attributes: Mapping[str, int | float]) -> Tensor:
    """A node of our domain with one output, of the shape of the first input; K is its last input."""
    h = inputs[0]
    numbers: dict[str, Any] = {key: int(q) if isinstance(q, bool) else q for key, q in attributes.items()}
    steps = torch.tensor(K, dtype=torch.int64)
    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::{name}", (*inputs, steps), numbers, dtype=h.dtype, shape=h.shape, version=DOMAIN_VERSION
    )


NODES: Table = {FUSED[0]: _global_layer, FUSED[1]: _advection_diffusion}
