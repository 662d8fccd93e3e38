"""The portable forms against the definitions in `functional`, and the passes that fold what is known before."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pdecnn import reference
from pdecnn.deploy import portable
from pdecnn.deploy.lower import lower
from pdecnn.deploy.modules import solve_positive
from pdecnn.reference.circulant import circulant_filter
from pdecnn.reference.spectral import spectral_filter

BOUNDARIES = st.sampled_from(["periodic", "neumann", "dirichlet"])


def rand(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(
    H=st.integers(1, 6),
    W=st.integers(1, 6),
    K=st.integers(1, 4),
    boundary=BOUNDARIES,
    kind=st.sampled_from(["map", "channel", "number"]),
    source=st.booleans(),
    previous=st.booleans(),
    seed=st.integers(0, 99),
)
def test_steps_equal_the_scheme(H, W, K, boundary, kind, source, previous, seed):
    shape = {"map": (2, 3, H, W), "channel": (1, 3, 1, 1), "number": ()}[kind]
    h, f, h_prev = (rand(2, 3, H, W, seed=seed + i) for i in range(3))
    u, v, D_x, D_y = (rand(*shape, seed=seed + 10 + i) for i in range(4))
    options = {"K": K, "dt": 0.3, "dx": 0.9, "dy": 1.2, "boundary": boundary}
    f, h_prev = (f if source else None), (h_prev if previous else None)
    expected = reference.advection_diffusion(h, u, v, D_x, D_y, f, h_prev=h_prev, **options)
    got = portable.advection_diffusion(h, h_prev, u, v, D_x, D_y, f, K, 0.3, 0.9, 1.2, boundary)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(size=st.lists(st.integers(1, 6), min_size=1, max_size=3), neumann=st.booleans(), seed=st.integers(0, 99))
def test_filters_by_real_matrices_equal_the_fourier_transform(size, neumann, seed):
    v, g = rand(2, 3, *size, seed=seed), rand(3, *size, seed=seed + 1)
    boundary = "neumann" if neumann else "periodic"
    got = portable.spectral_filter(v, g, boundary)
    torch.testing.assert_close(got, spectral_filter(v, g, boundary), rtol=1e-10, atol=1e-10)


def test_circulant_filter_couples_the_channels():
    v, g = rand(2, 4, 3, 5), rand(4, 3, 5, seed=1)
    got = portable.spectral_filter(v.unsqueeze(1), g.unsqueeze(0), "periodic").squeeze(1)
    torch.testing.assert_close(got, circulant_filter(v, g))


@settings(max_examples=30, deadline=None)
@given(
    size=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    m=st.sampled_from([1, 3, 5]),
    boundary=BOUNDARIES,
    seed=st.integers(0, 99),
)
def test_stencils_equal_the_reference(size, m, boundary, seed):
    y, k = rand(2, 3, *size, seed=seed), rand(3, *[m] * len(size), seed=seed + 1)
    torch.testing.assert_close(portable.depthwise(y, k, boundary), reference.depthwise(y, k, boundary))


@pytest.mark.parametrize("stride", [1, 2])
def test_shared_stencils_equal_the_reference(stride):
    from pdecnn.reference.shared_stencils import shared_expand, shared_expand_product

    u, stencils, scale, shift = rand(2, 3, 5, 6), rand(2, 1, 3, 3), rand(6, seed=1), rand(6, seed=2)
    d = shared_expand(u, stencils, stride)
    c = rand(*d.shape, seed=3)
    form = portable.TABLE[torch.ops.pdecnn.shared_expand.default]
    torch.testing.assert_close(form(u, stencils, stride), d)
    expected = shared_expand_product(u, stencils, scale, shift, c, stride)
    torch.testing.assert_close(portable.shared_expand_product(u, stencils, scale, shift, c, stride), expected)


def test_the_table_holds_only_inside_the_scope():
    from pdecnn.functional import depthwise

    seen = []
    table = {torch.ops.pdecnn.depthwise.default: lambda y, k, boundary: seen.append(boundary) or y}
    y, k = torch.rand(1, 2, 4, 4), torch.rand(2, 3, 3)
    with portable.InPlaceOf(table):
        assert depthwise(y, k) is y
    assert seen == ["periodic"]
    assert depthwise(y, k) is not y
    assert seen == ["periodic"]


def test_norms_are_folded_and_constants_computed():
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
    net = nn.Sequential(nn.BatchNorm2d(3), conv, norm, nn.ReLU(), nn.Dropout(), nn.AdaptiveAvgPool2d(1)).eval()
    with torch.no_grad():
        for m in (net[0], norm):
            m.running_mean.normal_(), m.running_var.uniform_(0.5, 2), m.weight.normal_(), m.bias.normal_()
    x = torch.randn(2, 3, 8, 8)
    lowered = lower(net, x)
    targets = [str(node.target) for node in lowered.graph.nodes if node.op == "call_function"]
    assert targets == [
        "aten.mul.Tensor",
        "aten.add.Tensor",
        "aten.conv2d.default",
        "aten.relu.default",
        "aten.mean.dim",
    ]
    with torch.no_grad():
        torch.testing.assert_close(lowered(x), net(x), rtol=1e-5, atol=1e-5)


@given(m=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_elimination_solves_positive_systems(m, seed):
    B = rand(3, m, m, seed=seed)
    A = B @ B.mT + 0.1 * torch.eye(m, dtype=torch.float64)
    torch.testing.assert_close(A @ solve_positive(A), torch.ones(3, m, 1, dtype=torch.float64))


def test_a_layer_with_two_names_is_prepared_once():
    from pdecnn.deploy.modules import prepare
    from pdecnn.layers import GlobalLayer
    from pdecnn.layers.global_fusion import FusedGlobalLayer

    layer = GlobalLayer(4).eval()
    prepared = prepare(nn.Sequential(layer, nn.ReLU(), layer))
    assert isinstance(prepared[0], FusedGlobalLayer)
    assert prepared[0] is prepared[2]


def test_unrolled_equilibrium_is_that_of_the_loop():
    from pdecnn.layers.equilibrium import Equilibrium

    class Tanh(nn.Module):
        def forward(self, z, x):
            return torch.tanh(0.5 * z.roll(1, 1) + x)

    layer = Equilibrium(Tanh(), tol=1e-9, max_evaluations=20).double()
    x = rand(3, 4)
    with torch.no_grad():
        found = layer(torch.zeros_like(x), x)
    lowered = lower(layer, (torch.zeros_like(x), x))
    torch.testing.assert_close(lowered(torch.zeros_like(x), x), found, rtol=1e-8, atol=1e-8)


class Scatter(nn.Module):
    def forward(self, x):
        grid = torch.zeros(3)
        grid[1] = 2.0  # a change in place of what would otherwise be a constant
        out = torch.zeros_like(x)
        out[:, 1] = x[:, 0]
        return out + grid


def test_changes_in_place_survive_folding():
    x = torch.rand(2, 3)
    torch.testing.assert_close(lower(Scatter(), x)(x), Scatter()(x))


class Total(nn.Module):
    def forward(self, x):
        row = torch.zeros(3)
        row[1] = x.sum()  # a constant until here
        return row + x


def test_constants_that_are_changed_by_inputs_keep_no_trace_of_them():
    from pdecnn.deploy.lower import lower_with

    lowered = lower_with(portable.TABLE, Total(), (torch.rand(2, 3),))  # as `write_pt2` does
    for x in (torch.rand(2, 3), torch.rand(2, 3)):
        torch.testing.assert_close(lowered(x), Total()(x))
