"""The operators of ONNX Runtime: right where they run, and nothing that a file may hold gets past their checks."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv2d

from pdecnn import reference
from pdecnn.deploy.sessions import library_path

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def find_library():
    try:
        return library_path()
    except RuntimeError:
        return None


LIBRARY = find_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="pdecnn was installed without a C++ compiler")

STEPS = {"boundary": 0, "has_source": 1, "dt": 0.2, "dx": 1.0, "dy": 1.0}
LAYER = STEPS | {
    "residual": 0,
    "previous_is_input": 1,
    "coefficient_act": 1,
    "output_act": 2,
    "flow_sign": -1,
    "D_x": 1.0,
    "D_y": 0.5,
}


def run(op, inputs, attributes):
    """A model of one node, whose inputs are of any size, on these arrays."""
    make = onnx.helper
    types = {np.dtype("float32"): onnx.TensorProto.FLOAT, np.dtype("int64"): onnx.TensorProto.INT64}
    infos = [make.make_tensor_value_info(name, types[q.dtype], [None] * q.ndim) for name, q in inputs.items()]
    out = make.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [None] * 4)
    node = make.make_node(op, list(inputs), ["out"], domain="pdecnn", **attributes)
    graph = make.make_graph([node], "g", infos, [out])
    opsets = [make.make_opsetid("", 17), make.make_opsetid("pdecnn", 1)]
    model = make.make_model(graph, opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.register_custom_ops_library(str(LIBRARY))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, dict(inputs))[0])


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def solver_inputs(shape=(2, 3, 4, 5), K=3):
    maps = {name: random(*shape, seed=i) for i, name in enumerate(("h", "h_prev", "u", "v", "D_x", "D_y", "f"))}
    numbers = {"D_x": np.abs(maps["D_x"]), "v": random(1, shape[1], 1, 1), "D_y": np.array(0.5, np.float32)}
    return maps | numbers | {"K": np.array(K)}


def layer_inputs(shape=(2, 3, 4, 5), maps=4, side=3, K=3):
    C = shape[1]
    inputs = {"h": random(*shape), "x": random(*shape, seed=1), "weight": random(maps, C, side, side, seed=2)}
    norms = {"bias": random(maps, C, seed=3), "scale": random(C, seed=4), "shift": random(C, seed=5)}
    return inputs | norms | {"K": np.array([K])}


@pytest.mark.parametrize("boundary", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 4, 8, 8), (0, 3, 4, 5)])
def test_the_solver_is_the_definition(shape, boundary):
    inputs = solver_inputs(shape)
    out = run("AdvectionDiffusion", inputs, STEPS | {"boundary": boundary})
    h, h_prev, u, v, D_x, D_y, f, K = (torch.from_numpy(np.array(q)) for q in inputs.values())
    where = ("periodic", "neumann", "dirichlet")[boundary]
    expected = reference.advection_diffusion(h, u, v, D_x, D_y, f, h_prev=h_prev, K=int(K), boundary=where)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("maps", [2, 4])
@pytest.mark.parametrize("side", [1, 3, 5])
def test_the_layer_is_the_definition(side, maps):
    inputs = layer_inputs((2, 3, 6, 8), maps, side)
    out = run("GlobalLayer", inputs, LAYER)
    h, x, weight, bias, scale, shift, K = (torch.from_numpy(q) for q in inputs.values())
    c = [conv2d(h, w.unsqueeze(1), b, padding=side // 2, groups=3).relu() for w, b in zip(weight, bias, strict=True)]
    D = c[2:] or (1.0, 0.5)
    state = reference.advection_diffusion(h, -c[0], -c[1], *D, x, h_prev=x, K=int(K))
    expected = (scale.view(-1, 1, 1) * state + shift.view(-1, 1, 1)).clamp(0, 6)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "name, value",
    [
        *[("boundary", -1), ("boundary", 99), ("has_source", 2), ("dt", NAN), ("dt", 0.0), ("dx", 0.0), ("dy", INF)],
        *[("dx", -1.0), ("coefficient_act", 7), ("output_act", -1), ("flow_sign", 0), ("flow_sign", 3)],
        *[("D_x", -1.0), ("D_y", NAN), ("residual", 2), ("previous_is_input", -5)],
    ],
)
def test_bad_attributes_are_refused_when_the_model_is_loaded(name, value):
    with pytest.raises(Exception, match=f"pdecnn::GlobalLayer: attribute '{name}' must be"):
        run("GlobalLayer", layer_inputs(), LAYER | {name: value})
    if name in STEPS:
        with pytest.raises(Exception, match=f"pdecnn::AdvectionDiffusion: attribute '{name}' must be"):
            run("AdvectionDiffusion", solver_inputs(), STEPS | {name: value})


@pytest.mark.parametrize("K", [0, -1, 10_001, 2**62, -(2**63)])
def test_bad_numbers_of_steps_are_refused(K):
    message = re.escape("input 'K' (number of time steps) must be from 1 to 10000, got")
    with pytest.raises(Exception, match=message):
        run("GlobalLayer", layer_inputs(K=K), LAYER)
    with pytest.raises(Exception, match=message):
        run("AdvectionDiffusion", solver_inputs(K=K), STEPS)
    assert run("AdvectionDiffusion", solver_inputs((1, 1, 1, 1), 10_000), STEPS).shape == (1, 1, 1, 1)


LAYER_SHAPES = [
    *[("h", s) for s in ((2, 3, 0, 5), (2, 3, 4, 0), (2, 0, 4, 5), (3, 4, 5), (1, 2, 3, 4, 5), ())],
    *[("x", s) for s in ((2, 3, 4, 6), (1, 3, 4, 5), (2, 3, 4), (0, 3, 4, 5))],
    *[("weight", s) for s in ((4, 3, 3, 1), (4, 1, 3, 3), (3, 3, 3, 3), (4, 3, 2, 2), (4, 3, 7, 7))],
    *[("weight", s) for s in ((4, 3, 3), (0, 3, 3, 3))],
    *[("bias", s) for s in ((1, 1), (4,), (4, 0), (2, 3), (4, 3, 1))],
    *[("scale", s) for s in ((1,), (0,), (), (3, 1))],
    *[("shift", s) for s in ((1,), (2,), (), (1, 3))],
    ("K", (2,)), ("K", (0,)), ("K", (1, 1)),
]  # fmt: skip
SOLVER_SHAPES = [
    *[("h", s) for s in ((2, 3, 0, 5), (2, 3, 4, 0), (3, 4, 5), (1, 2, 3, 4, 5))],
    *[(name, s) for name in ("h_prev", "f") for s in ((1, 3, 1, 1), (), (2, 3, 4, 4), (0, 3, 4, 5))],
    *[(name, s) for name in ("u", "v", "D_x", "D_y") for s in ((0, 3, 1, 1), (1, 1, 1, 1), (2, 3, 1, 1), (3,))],
    ("K", (2,)), ("K", (0,)),
]  # fmt: skip


@pytest.mark.parametrize("op", ["GlobalLayer", "AdvectionDiffusion"])
def test_bad_shapes_are_refused_by_name(op):
    cases = LAYER_SHAPES if op == "GlobalLayer" else SOLVER_SHAPES
    inputs, attributes = (layer_inputs(), LAYER) if op == "GlobalLayer" else (solver_inputs(), STEPS)
    for name, shape in cases:
        with pytest.raises(Exception, match=f"pdecnn::{op}: (expected )?input '") as error:
            run(op, inputs | {name: np.ones(shape, inputs[name].dtype)}, attributes)
        assert f"input '{name}'" in str(error.value) or name == "h", (name, shape, str(error.value))


DIMS = st.lists(st.integers(0, 5), max_size=5).map(tuple)


@settings(max_examples=60, deadline=None)
@given(op=st.sampled_from(("GlobalLayer", "AdvectionDiffusion")), data=st.data())
def test_random_shapes_run_or_are_refused(op, data):
    inputs, attributes = (layer_inputs(), LAYER) if op == "GlobalLayer" else (solver_inputs(), STEPS)
    for name in data.draw(st.sets(st.sampled_from(sorted(inputs)), max_size=3)):
        inputs[name] = np.ones(data.draw(DIMS, label=name), inputs[name].dtype)
    try:
        out = run(op, inputs, attributes)
    except Exception as error:  # ONNX Runtime's own, of no common kind
        assert f"pdecnn::{op}: " in str(error)  # noqa: PT017
    else:
        assert out.shape == inputs["h"].shape
        assert out.isfinite().all()
