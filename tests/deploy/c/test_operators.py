"""Each operator's C against torch, on sizes and options that hypothesis chooses; several of them in one file."""

import pytest
import torch
from c_cases import FLAGS, MOVES, POOLS, SETTINGS, Many, convolutions, global_layers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pdecnn import functional
from pdecnn.deploy.c.build import runner
from pdecnn.deploy.c.program import program
from pdecnn.deploy.c.write import write
from pdecnn.layers import GlobalLayer
from pdecnn.layers.transport import Transport


def agree(parts, inputs, tol=1e-5):
    model = Many(*parts).eval()
    inputs = [x.contiguous() for x in inputs]
    got = runner(write(model, inputs, "net").source, flags=FLAGS)(inputs)
    with torch.no_grad():
        expected = model(*[x.clone() for x in inputs])
    for a, b in zip(got, expected, strict=True):
        largest = max(1.0, float(b.float().nan_to_num(0, 0, 0).abs().max()))
        torch.testing.assert_close(a, b.float(), rtol=tol, atol=tol * largest, equal_nan=True)


@SETTINGS
@given(st.lists(convolutions(), min_size=8, max_size=8))
def test_convolutions_of_all_kinds(cases):
    agree([conv for conv, _ in cases], [torch.randn(2, *shape) for _, shape in cases])


def test_transposed_convolutions():
    options = [
        {},
        {"stride": 2},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"padding": 1, "groups": 2},
        {"stride": (3, 1), "dilation": 2, "groups": 4, "padding": 2},
        {"padding": 2},
    ]
    parts = [nn.ConvTranspose2d(4, 8, 3, **kwargs) for kwargs in options]
    agree(parts, [torch.randn(2, 4, 5, 6)] * len(parts))


class Tail(nn.Module):
    """A convolution, what may follow it, and a residual."""

    def __init__(self, conv, tail, residual):
        super().__init__()
        self.conv, self.tail, self.residual = conv, tail, residual

    def forward(self, x):
        y = self.conv(x)
        return self.tail(y + x * 2 if self.residual == "other" else y + x if self.residual == "input" else y)


TAILS = [F.relu, F.relu6, F.hardtanh, lambda y: y.clamp(min=-0.1), lambda y: y.clamp(max=0.2), lambda y: y, F.silu]


@pytest.mark.parametrize("residual", ["none", "input", "other"])
def test_convolution_with_activation_and_residual(residual):
    parts = [Tail(nn.Conv2d(5, 5, 3, padding=1), tail, residual) for tail in TAILS]
    agree(parts, [torch.randn(2, 5, 7, 9)] * len(parts))


def test_a_residual_that_is_also_the_input_is_not_overwritten():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(5, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1)

        def forward(self, x):
            y = self.first(x)
            return F.relu(self.second(y) + y) * 2

    agree([Twice()], [torch.randn(2, 5, 30, 30)])


@pytest.mark.parametrize("inplace", [False, True])
def test_norm_and_activation_are_merged_into_the_convolution_before_them(inplace):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace), nn.Conv2d(4, 4, 1), nn.Hardtanh())
    cost = write(net.eval(), (torch.randn(1, 3, 6, 6),), "net").footprint
    assert len(cost.layers) == 2


@SETTINGS
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 70), st.booleans()), min_size=4, max_size=4))
def test_linear(sizes):
    agree([nn.Linear(i, o, bias=b) for i, o, b in sizes], [torch.randn(2, i) for i, _, _ in sizes])


UNARY = [
    F.relu,
    F.relu6,
    F.leaky_relu,
    F.elu,
    F.selu,
    F.celu,
    F.gelu,
    F.silu,
    F.mish,
    F.softplus,
    F.hardswish,
    F.hardsigmoid,
    F.hardtanh,
    F.softsign,
    F.tanhshrink,
    F.logsigmoid,
    F.hardshrink,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.expm1,
    torch.erf,
    torch.abs,
    torch.sign,
    torch.square,
    torch.neg,
    torch.sqrt,
    torch.rsqrt,
    torch.log,
    torch.log1p,
    torch.reciprocal,
    lambda x: x**3,
    lambda x: x**-2,
    lambda x: x**0.5,
    lambda x: abs(x) ** 1.7,
    lambda x: 3 - x,
    lambda x: torch.where(x > 0, x, 2 * x),
    lambda x: torch.maximum(x, -x),
    lambda x: torch.minimum(x, x * x),
    lambda x: ((x > 0.5) | (x < -0.5)).float(),
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x.add(x, alpha=3),
    lambda x: x.clamp(-0.2, 0.3),
    lambda x: (x != 0).float() + (x == 0).float() + (x >= 1).float() + (x <= 1).float(),
]


def test_functions_of_one_number():
    x = torch.cat([torch.randn(60), torch.linspace(-12, 12, 97), torch.tensor([0.0, 1e-30, -1e-3, 80.0, -80.0, 5e-39])])
    agree(UNARY, [x.reshape(1, -1)] * len(UNARY), tol=2e-6)


def test_functions_of_what_is_no_number():
    known = [F.relu, F.relu6, torch.exp, torch.tanh, torch.sigmoid, torch.sqrt, torch.log, torch.abs, F.hardtanh]
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 100.0, -100.0]])
    agree(known, [x] * len(known))


@st.composite
def broadcasts(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return [1, *sizes], [1, *(n if draw(st.booleans()) else 1 for n in sizes)]


@SETTINGS
@given(st.lists(broadcasts(), min_size=6, max_size=6))
def test_broadcasting(cases):
    factors = [torch.randn(own) for _, own in cases]
    parts = [lambda x, w=w: (x * w + x.sum(-1, keepdim=True)) / (1 + abs(w)) for w in factors]
    agree(parts, [torch.randn(2, *full[1:]) for full, _ in cases])


def test_moves():
    agree(MOVES, [torch.randn(2, 4, 5, 6)] * len(MOVES))


REDUCTIONS = [
    lambda x: x.mean((2, 3)),
    lambda x: x.mean(1),
    lambda x: x.sum((1, 3)),
    lambda x: x.amax((2, 3)),
    lambda x: x.amin(1),
    lambda x: x.softmax(1),
    lambda x: x.log_softmax(-1),
    lambda x: x.var((2, 3)),
    lambda x: x.std(-1),
    lambda x: x.mean(2, True),
    lambda x: F.layer_norm(x, x.shape[2:]),
    nn.GroupNorm(2, 4),
    nn.LayerNorm([4, 5, 6]),
    nn.InstanceNorm2d(4, affine=True),
    lambda x: F.normalize(x),
    lambda x: x.norm(dim=1),
    lambda x: (x * x).sum((1, 2, 3)),
    nn.BatchNorm2d(4),
    nn.Softmax2d(),
    lambda x: x.flatten(1).max(1).values,
]


def test_reductions_and_norms():
    agree(REDUCTIONS, [torch.randn(2, 4, 5, 6)] * len(REDUCTIONS))


def test_pooling():
    agree(POOLS, [torch.randn(2, 3, 8, 7)] * len(POOLS))


def test_products():
    parts = [
        lambda x: x @ x.mT,
        lambda x: x.mT @ x,
        lambda x: x @ torch.arange(12.0).reshape(6, 2),
        lambda x: torch.ones(3, 5) @ x,
        lambda x: torch.einsum("ncyx,yz->nczx", x, torch.arange(10.0).reshape(5, 2)),
    ]
    agree(parts, [torch.randn(1, 4, 5, 6)] * len(parts))


def test_weights_that_are_no_numbers():
    odd = torch.tensor([float("inf"), -float("inf"), float("nan"), 1.0])
    agree([lambda x: x + odd], [torch.randn(2, 4)])


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


def test_blocks_of_mobile_nets():
    agree([SqueezeExcite(), nn.Conv1d(6, 4, 3, padding=1, stride=2)], [torch.randn(2, 6, 9, 5), torch.randn(2, 6, 11)])


@SETTINGS
@given(st.lists(global_layers(), min_size=5, max_size=5))
def test_global_layers_with_all_options(cases):
    agree([layer for layer, _ in cases], [torch.randn(2, *shape) for _, shape in cases], tol=2e-5)


def test_a_covered_global_layer_is_one_step():
    layer = GlobalLayer(4).eval()
    module = program(layer, (torch.randn(1, 4, 6, 6),))
    assert [str(n.target) for n in module.graph.nodes if n.op == "call_function"] == ["pdecnn.global_layer.default"]


def test_solver_with_coefficients_of_all_kinds():
    C, H, W = 3, 5, 7
    kinds = [torch.rand(1, C, H, W), torch.rand(1, C, 1, 1), torch.tensor(0.3)]
    parts = [
        lambda h, u=u, D=D, b=b: functional.advection_diffusion(h, u, D, D, u, h * 2, K=3, boundary=b)
        for u in kinds
        for D in kinds
        for b in ("periodic", "neumann", "dirichlet")
    ]
    agree(parts, [torch.randn(1, C, H, W)] * len(parts))


def test_transport_and_stencils():
    parts = [Transport(4), lambda x: functional.depthwise(x, torch.ones(4, 3, 3), "neumann")]
    agree(parts, [torch.randn(2, 4, 6, 7)] * 2)
