"""Round trips: every registered model becomes an ONNX file that answers as the model does."""

import onnxruntime
import pytest
import timm
import torch
from timm.models import model_entrypoint

import pdecnn
import pdecnn.deploy.sessions
from pdecnn.deploy.check import compare
from pdecnn.deploy.lower import lower
from pdecnn.deploy.onnx import to_onnx

NAMES = [name for name in timm.list_models() if model_entrypoint(name).__module__.startswith("pdecnn.")]
QUICK = ["cifar_resnet_tiny_global", "mnist_toy_global", "lowcost_explicit_tiny", "cifar_hyperbolic_eq3"]
# The number of steps of an adaptive solver depends on the input; with fixed steps the net exports.
ADAPTIVE = {"mnist_odenet": {"gradient": "anode", "method": "rk4", "steps": 4}}


def make(name, batch=64):
    torch.manual_seed(0)
    model = timm.create_model(name, **ADAPTIVE.get(name, {})).eval()
    C, side, _ = model.default_cfg["input_size"]
    side = {28: 28, 32: 16}.get(side, 32)
    return model, torch.randn(batch, C, side, side)


def run(proto, x, *, fused=False):
    options = pdecnn.deploy.session_options(threads=1, fused=fused)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def check(name, ops):
    model, x = make(name)
    proto = to_onnx(model, (x[:2],), ops=ops)
    with torch.no_grad():
        agreement = compare([model(x)], [run(proto, x, fused=ops == "fused")])
    assert agreement.max_error <= 1e-4
    assert agreement.top1 == 1.0
    assert agreement.samples == 64
    return proto


@pytest.mark.parametrize("name", QUICK)
def test_portable_file_agrees_with_the_model(name):
    proto = check(name, "portable")
    assert {node.domain for node in proto.graph.node} == {""}
    kinds = {node.op_type for node in proto.graph.node}
    assert not kinds & {"BatchNormalization", "DFT", "Loop", "If", "ScatterND", "SplitToSequence"}


@pytest.mark.parametrize("name", ["cifar_resnet_tiny_global"])
def test_fused_file_agrees_with_the_model(name):
    proto = check(name, "fused")
    assert [node.op_type for node in proto.graph.node].count("GlobalLayer") == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_model_agrees(name):
    check(name, "portable")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if "global" in name])
def test_every_global_model_agrees_fused(name):
    check(name, "fused")


def test_the_file_carries_nothing_that_no_runtime_reads():
    model, x = make("mnist_toy_global", batch=2)
    proto = to_onnx(model, (x,))
    assert not proto.graph.value_info
    assert not proto.metadata_props
    assert not any(node.doc_string or node.metadata_props for node in proto.graph.node)
    assert proto.producer_name == "pdecnn"
    assert [i.name for i in proto.graph.input] == ["input"]
    assert [o.name for o in proto.graph.output] == ["logits"]
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param


@pytest.mark.parametrize("size", [(7, 5), (1, 2)])
@pytest.mark.parametrize("ops", ["portable", "fused"])
def test_odd_sizes_and_any_batch(size, ops):
    torch.manual_seed(1)
    layer = pdecnn.layers.GlobalLayer(3, K=3).eval()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.rand_like(p))
    proto = to_onnx(layer, (torch.rand(1, 3, *size),), ops=ops)
    for batch in (1, 2, 5):
        x = torch.rand(batch, 3, *size)
        with torch.no_grad():
            torch.testing.assert_close(run(proto, x, fused=ops == "fused"), layer(x), rtol=1e-5, atol=1e-6)


def test_layers_that_the_whole_layer_kernel_does_not_cover_use_the_solver_node():
    torch.manual_seed(2)
    layer = pdecnn.layers.GlobalLayer(4, K=2, source="none", diffusion="channel", boundary="neumann").eval()
    x = torch.rand(3, 4, 6, 5)
    proto = to_onnx(layer, (x,), ops="fused")
    assert "AdvectionDiffusion" in [node.op_type for node in proto.graph.node]
    with torch.no_grad():
        torch.testing.assert_close(run(proto, x, fused=True), layer(x), rtol=1e-5, atol=1e-6)


def test_the_model_is_left_as_it_was():
    model, x = make("mnist_toy_global", batch=2)
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    lower(model, x)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_node_with_wrong_shapes_is_refused():
    layer, x = pdecnn.layers.GlobalLayer(3, K=1).eval(), torch.rand(2, 3, 4, 4)
    proto = to_onnx(layer, (x,), ops="fused")
    node = next(n for n in proto.graph.node if n.op_type == "GlobalLayer")
    node.input[4], node.input[2] = node.input[2], node.input[4]
    with pytest.raises(Exception, match="pdecnn::GlobalLayer: expected input 'weight' of shape"):
        run(proto, x, fused=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar_resnet_tiny", "cifar_wrn_tiny", "mnist_resnet_tiny"])
@pytest.mark.parametrize("ops", ["portable", "fused"])
def test_condensed_models_agree(name, ops):
    model, x = make(name)
    student, _ = pdecnn.condense(model, x[:2])
    student.eval()
    proto = to_onnx(student, (x[:2],), ops=ops)
    with torch.no_grad():
        agreement = compare([student(x)], [run(proto, x, fused=ops == "fused")])
    assert agreement.max_error <= 1e-4
    assert agreement.top1 == 1.0
