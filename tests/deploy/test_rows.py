"""The Global layer on channels-last rows, against the definitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn import reference
from pdecnn.deploy import portable, rows
from pdecnn.layers import GlobalLayer
from pdecnn.layers.global_fusion import FusedGlobalLayer

KINDS = st.sampled_from(["map", "channel", "number"])


def rand(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(N=st.integers(1, 3), C=st.integers(1, 4), H=st.integers(1, 5), W=st.integers(1, 5))
def test_rows_and_back(N, C, H, W):
    q = rand(N, C, H, W)
    grid = rows.Rows(q)
    held = grid.hold(q)
    assert held.shape == (N, H, W * C)
    assert torch.equal(held.view(N, H, W, C)[0, H - 1, W - 1], q[0, :, H - 1, W - 1])
    assert torch.equal(grid.release(held), q)


@settings(max_examples=60, deadline=None)
@given(
    H=st.integers(1, 6),
    W=st.integers(1, 6),
    K=st.integers(1, 4),
    boundary=st.sampled_from(["periodic", "periodic", "neumann", "dirichlet"]),
    kinds=st.tuples(KINDS, KINDS, KINDS, KINDS),
    source=st.sampled_from(["none", "state", "previous", "other"]),
    previous=st.booleans(),
    seed=st.integers(0, 99),
)
def test_steps_equal_the_scheme(H, W, K, boundary, kinds, source, previous, seed):
    shapes = {"map": (2, 3, H, W), "channel": (1, 3, 1, 1), "number": ()}
    h, other, h_prev = (rand(2, 3, H, W, seed=seed + i) for i in range(3))
    u, v, D_x, D_y = (rand(*shapes[kind], seed=seed + 10 + i) for i, kind in enumerate(kinds))
    h_prev = h_prev if previous else None
    f = {"none": None, "state": h, "previous": h_prev, "other": other}[source]
    options = {"K": K, "dt": 0.3, "dx": 0.9, "dy": 1.2, "boundary": boundary}
    expected = reference.advection_diffusion(h, u, v, D_x, D_y, f, h_prev=h_prev, **options)
    got = portable.advection_diffusion(h, h_prev, u, v, D_x, D_y, f, *options.values(), grid_of=rows.Rows)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("diffusion", ["depthwise", 0.7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"flow_sign": -1, "h_prev": "init", "dx": 2, "dy": 0.5},
        {"act_layer": torch.nn.ReLU6},
        {"act_layer": torch.nn.Tanh, "residual": True},
        {"act_layer": torch.nn.Hardtanh, "flow_sign": -1},
        {"source": "none", "residual": True, "init": torch.nn.Conv2d(3, 3, 1)},
        {"boundary": "neumann"},
        {"init": torch.nn.Conv2d(3, 3, 1)},
    ],
)
def test_a_whole_layer_equals_the_operator(options, diffusion, kernel_size):
    torch.manual_seed(0)
    layer = GlobalLayer(3, kernel_size=kernel_size, diffusion=diffusion, **options).eval()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.rand_like(p) - 0.3)
        fused, x = FusedGlobalLayer(layer), torch.rand(2, 3, 4, 5)
        expected = layer(x)
        with portable.InPlaceOf(rows.TABLE):
            got = fused(x)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


NODES = {
    "default": {},
    "tanh": {"act_layer": torch.nn.Tanh, "diffusion": 0.5},
    "clamp": {"act_layer": torch.nn.Hardtanh, "flow_sign": -1},
    "residual": {"residual": True, "source": "none", "init": torch.nn.Conv2d(3, 3, 1)},
    "neumann": {"boundary": "neumann", "h_prev": "input", "init": torch.nn.Conv2d(3, 3, 1)},
    "by the solver": {"upwind": True, "act_layer": torch.nn.SiLU},
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_takes_the_number_of_steps_as_its_last_input(name):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    from pdecnn.deploy.onnx import to_onnx
    from pdecnn.deploy.sessions import session_options

    torch.manual_seed(0)
    layer, x = GlobalLayer(3, K=3, **NODES[name]).eval(), torch.rand(2, 3, 8, 8)
    proto = to_onnx(torch.nn.Sequential(layer), [x], ops="fused")
    (node,) = (node for node in proto.graph.node if node.domain == "pdecnn")
    (steps,) = (q for q in proto.graph.initializer if q.name == node.input[-1])
    assert onnx.numpy_helper.to_array(steps) == 3
    for K in (3, 2):
        steps.CopyFrom(onnx.numpy_helper.from_array(torch.tensor(K).numpy(), steps.name))
        session = runtime.InferenceSession(proto.SerializeToString(), session_options())
        (got,) = session.run(None, {"input": x.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(got), layer(x, K=K), rtol=1e-5, atol=1e-5)
