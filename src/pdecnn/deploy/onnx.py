"""Writing ONNX: from a lowered graph to a clean, checked model."""

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.deploy import rows
from pdecnn.deploy.lower import check_inputs, lower, lower_with, trace
from pdecnn.deploy.portable import TABLE as PLANES
from pdecnn.deploy.portable import Table, WithTable
from pdecnn.deploy.sizes import name_sizes
from pdecnn.kernels.global_layer.arguments import Steps
from pdecnn.kernels.library import ACTIVATIONS, BOUNDARIES
from pdecnn.shared.extras import require

DOMAIN, DOMAIN_VERSION = "pdecnn", 1
OPS = ("portable", "fused")
FUSED = (torch.ops.pdecnn.global_layer.default, torch.ops.pdecnn.advection_diffusion.default)


def to_onnx(
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    ops: str = "portable",
    opset: int = 20,
    names: Mapping[str, Sequence[str]] | None = None,
    free_size: bool = False,
) -> Any:
    """An `onnx.ModelProto` that computes `model`, with a free batch, checked by `onnx.checker`.

    Args:
        model: What to export.
        inputs: Example inputs; the sizes but the batch are fixed to theirs.
        ops: `"portable"`: ONNX operators alone; `"fused"`: Global layers are nodes of the domain `pdecnn`, which
            `pdecnn.deploy.session_options()` knows.
        opset: Version of the ONNX operators.
        names: `{"inputs": [...], "outputs": [...]}`, or one of them; `input`, `logits` and numbered ones by default.
        free_size: Whether all sizes of the inputs but their channels stay free.
    """
    onnx = require("onnx", "export")
    require("onnxscript", "export")
    if ops == "fused":
        lowered: nn.Module = WithTable(lower(model, inputs, keep=FUSED, free_size=free_size), NODES)
    else:
        table = PLANES if free_size else rows.TABLE  # rows are as long as the example's
        lowered = lower_with(table, model, check_inputs(model, inputs), free_size=free_size)
    program = trace(lowered, inputs, free_size=free_size)
    outputs = len(program.graph_signature.output_specs)
    names = {"inputs": _numbered("input", len(inputs)), "outputs": _numbered("logits", outputs), **(names or {})}
    noise = io.StringIO()  # the exporter reports its progress, which is not ours to print
    try:
        with redirect_stdout(noise), redirect_stderr(noise), torch.no_grad():
            exported: Any = torch.onnx.export(
                program,
                (),
                input_names=list(names["inputs"]),
                output_names=list(names["outputs"]),
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ValueError(f"export: {type(model).__name__} cannot be written as ONNX: {reason}") from error
    proto = exported.model_proto
    written = next((item.version for item in proto.opset_import if not item.domain), opset)
    if written != opset:  # the exporter says so in a log line alone
        raise ValueError(f"export: opset {opset} cannot be written for this model, only {written}.")
    clean(proto)
    if free_size:
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


def _numbered(stem: str, count: int) -> list[str]:
    return [stem if i == 0 else f"{stem}_{i}" for i in range(count)]


def _global_layer(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, *options: Any
) -> Tensor:
    steps, residual, output_act = Steps(*options[:-2]), *options[-2:]
    attributes = {
        **steps._asdict(),
        "boundary": BOUNDARIES[steps.boundary],
        "coefficient_act": ACTIVATIONS[steps.coefficient_act],
        "output_act": ACTIVATIONS[output_act],
        "residual": residual,
    }
    del attributes["K"]
    return _node("GlobalLayer", (h, x, weight, bias, scale, shift), steps.K, attributes)


def _advection_diffusion(
    h: Tensor, h_prev: Tensor | None, u: Tensor, v: Tensor, D_x: Tensor, D_y: Tensor, f: Tensor | None,
    K: int, dt: float, dx: float, dy: float, boundary: str,
) -> Tensor:  # fmt: skip
    inputs = [h if q is None else q for q in (h, h_prev, u, v, D_x, D_y, f)]  # an unused input is filled with h
    attributes = {"dt": dt, "dx": dx, "dy": dy, "boundary": BOUNDARIES[boundary], "has_source": f is not None}
    return _node("AdvectionDiffusion", inputs, K, attributes)


def _node(name: str, inputs: Sequence[Tensor], K: int, attributes: Mapping[str, int | float]) -> Tensor:
    """A node of our domain with one output, of the shape of the first input; K is its last input."""
    h = inputs[0]
    numbers: dict[str, Any] = {key: int(q) if isinstance(q, bool) else q for key, q in attributes.items()}
    steps = torch.tensor(K, dtype=torch.int64)
    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::{name}", (*inputs, steps), numbers, dtype=h.dtype, shape=h.shape, version=DOMAIN_VERSION
    )


NODES: Table = {FUSED[0]: _global_layer, FUSED[1]: _advection_diffusion}
