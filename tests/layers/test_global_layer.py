"""The Global layer against Algorithm 1 done by hand, its options, its quirks by name, its laws and its errors."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pdecnn.layers import BasicBlock, GlobalLayer, set_steps
from pdecnn.layers.blocks import ResidualChain
from pdecnn.layers.coefficients import LearnedPair

OPTIONS = {
    "default": {},
    "biased": {"coef_bias": True},
    "biased velocity alone": {"coef_bias": (True, False)},
    "pointwise": {"velocity": "pointwise", "diffusion": "pointwise"},
    "full": {"velocity": "full", "diffusion": "full"},
    "residual coefficients": {"velocity": "residual", "diffusion": "residual"},
    "bottleneck": {"velocity": "bottleneck", "diffusion": "bottleneck"},
    "identity": {"velocity": "identity", "diffusion": "identity"},
    "dot": {"velocity": "dot", "diffusion": "dot"},
    "channel": {"velocity": "channel", "diffusion": "channel"},
    "numbers": {"velocity": (0.5, -0.25), "diffusion": 1.0},
    "module": {"velocity": nn.Conv2d(4, 4, 3, padding=1), "diffusion": 2},
    "5x5": {"kernel_size": 5},
    "no source": {"source": "none"},
    "residual source": {"source": "residual"},
    "residual source each step": {"source": "residual_each_step"},
    "module source": {"source": ResidualChain(4)},
    "block init": {"init": BasicBlock(4, 4)},
    "strided init": {"init": BasicBlock(4, 4, stride=2)},
    "input before": {"init": BasicBlock(4, 4), "h_prev": "input"},
    "silu": {"act_layer": nn.SiLU},
    "group norm": {"norm_layer": lambda C, **kwargs: nn.GroupNorm(2, C, **kwargs)},
    "residual": {"residual": True, "drop_path": 0.5},
    "neumann": {"boundary": "neumann"},
    "dirichlet": {"boundary": "dirichlet"},
    "mirrored": {"flow_sign": -1},
    "eps = C": {"coef_bn_eps": "channels"},
    "bounded": {"velocity_bound": 0.5},
    "bounded channel": {"velocity": "channel", "velocity_bound": True},
    "upwind": {"upwind": True},
    "upwind numbers": {"velocity": 0.5, "diffusion": 0.1, "upwind": True},
    "dilated": {"dilation": 2, "velocity": "channel"},
    "anisotropic": {"dx": 0.5, "dy": 2.0, "dt": 0.1},
}


def make(name, **more):
    """A layer of 4 channels with the named options; modules among them are its own."""
    return GlobalLayer(4, **copy.deepcopy(OPTIONS[name]), **more)


def sample(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def randomised(layer, seed=0):
    """The layer in eval mode with norms that do something: random affine parameters and running statistics."""
    g = torch.Generator().manual_seed(seed)
    for m in layer.modules():
        if isinstance(m, nn.BatchNorm2d):
            for q in (m.weight.data, m.bias.data, m.running_mean):
                q.copy_(torch.randn(q.shape, generator=g))
            m.running_var.copy_(torch.rand(m.running_var.shape, generator=g) + 0.5)
    return layer.eval()


# ---- Algorithm 1 by hand


def numpy_conv(h, weight, bias):
    """Depth-wise convolution with zero padding, element by element."""
    N, C, H, W = h.shape
    k = weight.shape[-1]
    out = np.zeros_like(h)
    for n, c, y, x in np.ndindex(N, C, H, W):
        for i, j in np.ndindex(k, k):
            yy, xx = y + i - k // 2, x + j - k // 2
            if 0 <= yy < H and 0 <= xx < W:
                out[n, c, y, x] += weight[c, 0, i, j] * h[n, c, yy, xx]
        out[n, c, y, x] += bias[c]
    return out


def numpy_norm(h, norm):
    get = lambda name: getattr(norm, name).detach().numpy()[:, None, None]  # noqa: E731
    return (h - get("running_mean")) / np.sqrt(get("running_var") + norm.eps) * get("weight") + get("bias")


def numpy_coefficient(h, op, norm):
    bias = np.zeros(h.shape[1]) if op.bias is None else op.bias.detach().numpy()
    return np.maximum(numpy_norm(numpy_conv(h, op.weight.detach().numpy(), bias), norm), 0)


def numpy_algorithm_1(layer, image, h, h_prev):
    """[KS22, Algorithm 1], the scheme as Eq. (4) is printed, in loops over the pixels."""
    u, v = (
        numpy_coefficient(h, getattr(layer.velocity, f"op_{a}"), getattr(layer.velocity, f"norm_{a}")) for a in "xy"
    )
    D = (numpy_coefficient(h, getattr(layer.diffusion, f"op_{a}"), getattr(layer.diffusion, f"norm_{a}")) for a in "xy")
    D_x, D_y = D
    u, v = layer.flow_sign * u, layer.flow_sign * v
    dt, dx, dy = layer.dt, layer.dx, layer.dy
    N, C, H, W = h.shape
    for _ in range(layer.K):
        h_next = np.zeros_like(h)
        for n, c, y, x in np.ndindex(N, C, H, W):
            E, Wst = (n, c, y, (x + 1) % W), (n, c, y, (x - 1) % W)
            S, Nth = (n, c, (y + 1) % H, x), (n, c, (y - 1) % H, x)
            i = (n, c, y, x)
            A_x, A_y = u[i] * dt / dx, v[i] * dt / dy
            B_x, B_y = D_x[i] * dt / dx**2, D_y[i] * dt / dy**2
            u_x, v_y = (u[E] - u[Wst]) / (2 * dx), (v[S] - v[Nth]) / (2 * dy)
            right = (1 - 2 * B_x - 2 * B_y) * h_prev[i] - 2 * dt * (u_x + v_y) * h[i] + 2 * dt * image[i]
            right += (-A_x + 2 * B_x) * h[E] + (A_x + 2 * B_x) * h[Wst]
            right += (-A_y + 2 * B_y) * h[S] + (A_y + 2 * B_y) * h[Nth]
            h_next[i] = right / (1 + 2 * B_x + 2 * B_y)
        h_prev, h = h, h_next
    return np.maximum(numpy_norm(h, layer.norm), 0)


@pytest.mark.parametrize("flow_sign", [1, -1])
@pytest.mark.parametrize("h_prev", ["init", "input"])
def test_layer_is_algorithm_1(h_prev, flow_sign):
    init = nn.Conv2d(2, 2, 1)
    options = {"coef_bias": True, "coef_bn_eps": "channels", "dx": 1.5, "dy": 0.75, "K": 3}
    layer = GlobalLayer(2, init=init, h_prev=h_prev, flow_sign=flow_sign, **options).double()
    randomised(layer)
    x = sample(2, 2, 3, 4)
    with torch.no_grad():
        h = init(x).numpy()
        expected = numpy_algorithm_1(layer, x.numpy(), h, h if h_prev == "init" else x.numpy())
        np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-12, atol=1e-12)
        assert np.count_nonzero(expected) > expected.size // 4


# ---- every option


@pytest.mark.parametrize("name", OPTIONS)
def test_option_runs_learns_and_reloads(name):
    torch.manual_seed(0)
    layer = make(name)
    x = sample(3, 4, 5, 6, dtype=torch.float32).requires_grad_()
    out = layer(x)
    (out * torch.randn_like(out)).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum() > 0
    for n, p in layer.named_parameters():
        assert p.grad is not None, n
        assert torch.isfinite(p.grad).all(), n
        if not n.endswith(("op_x.bias", "op_y.bias")):  # a norm follows: what a bias adds, it takes away
            assert p.grad.abs().sum() > 0, n
    twin = make(name)
    twin.load_state_dict(layer.state_dict())
    torch.testing.assert_close(twin.eval()(x), layer.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", OPTIONS)
def test_trajectory_ends_where_the_layer_does(name):
    layer = randomised(make(name, K=4).double())
    x = sample(2, 4, 5, 6)
    with torch.no_grad():
        states = layer.trajectory(x)
        assert len(states) == 5
        h, x_or_h = layer.first_guess(x)
        torch.testing.assert_close(states[0], h)
        out = layer.act(layer.norm(states[-1]))
        torch.testing.assert_close(out + x_or_h if layer.residual else out, layer(x))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"velocity": "dot", "act_layer": nn.SiLU},
        {"source": "residual_each_step", "act_layer": nn.SiLU},
        {"upwind": True, "velocity_bound": 0.3, "diffusion": "channel"},
        {"dilation": 2, "h_prev": "input", "init": nn.Conv2d(2, 2, 1)},
        {"residual": True, "boundary": "neumann", "velocity": "channel"},
    ],
    ids=str,
)
def test_gradients(options):
    layer = randomised(GlobalLayer(2, K=2, **options).double())
    x = sample(1, 2, 3, 4).requires_grad_()
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *(p.detach().requires_grad_() for p in values)))


@pytest.mark.parametrize("name", ["default", "dot", "residual source each step", "dilated", "upwind"])
def test_compiles_and_exports_whole(name):
    layer = randomised(make(name))
    x = sample(2, 4, 5, 6, dtype=torch.float32)
    with torch.no_grad():
        expected = layer(x)
        torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), expected)
        torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), expected)


@pytest.mark.parametrize("name", ["default", "channel", "numbers", "block init", "residual source each step"])
def test_bfloat16_autocast(name):
    layer = randomised(make(name))
    x = sample(2, 4, 6, 6, dtype=torch.float32)
    with torch.no_grad():
        expected = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
    error = (out.float() - expected).abs().max() / expected.abs().max()
    assert error < 0.05, error  # bfloat16 has 8 bits: 0.4 % per operation, some ten of them


def test_channels_last_gives_the_same():
    layer = randomised(GlobalLayer(4))
    x = sample(2, 4, 5, 6, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), layer(x))


# ---- parameter counts, spec 1.3 and 3.6a


@pytest.mark.parametrize("k", [3, 5])
@pytest.mark.parametrize("C", [1, 16])
def test_parameter_formulas(C, k):
    def count(**options):
        return sum(p.numel() for p in GlobalLayer(C, kernel_size=k, **options).parameters())

    assert count() == 4 * k * k * C + 10 * C
    assert count(diffusion=1.0) == 2 * k * k * C + 6 * C
    assert count(coef_bias=True) == 4 * k * k * C + 14 * C
    assert count(coef_bias=True, diffusion=1.0) == 2 * k * k * C + 8 * C
    assert count(velocity="identity", diffusion="identity") == 10 * C
    assert count(velocity="channel", diffusion="channel") == 2 * C + 4 * C
    assert count(velocity="residual", diffusion=1.0) == 2 * (18 * C * C + 4 * C) + 6 * C
    assert count(velocity="bottleneck", diffusion=1.0) == 2 * (11 * C * C + 6 * C) + 6 * C
    assert count(velocity="full", diffusion=1.0, coef_bias=True) == 2 * (k * k * C * C + C) + 6 * C
    assert count(velocity=0, diffusion=1.0, source="residual") == 2 * (9 * C + C * C + 2 * C) + 2 * C


# ---- the published quirks, by name


def test_coef_bn_eps_channels_is_for_the_coefficients_alone():
    layer = GlobalLayer(16, coef_bn_eps="channels")
    norms = [m for pair in (layer.velocity, layer.diffusion) for m in pair.modules() if isinstance(m, nn.BatchNorm2d)]
    assert [norm.eps for norm in norms] == [16.0] * 4
    assert layer.norm.eps == 1e-5


def test_flow_sign_mirrors_both_axes():
    plus, minus = GlobalLayer(2, K=3).double(), GlobalLayer(2, K=3, flow_sign=-1).double()
    h, x = sample(1, 2, 4, 5), sample(1, 2, 4, 5, seed=1)
    u, v, D_x, D_y = (sample(1, 2, 4, 5, seed=s).abs() for s in range(2, 6))
    flip = lambda q: q.flip(-1, -2)  # noqa: E731
    mirrored = plus.solve(flip(h), flip(x), (flip(u), flip(v), flip(D_x), flip(D_y)))
    torch.testing.assert_close(flip(mirrored), minus.solve(h, x, (-u, -v, D_x, D_y)))
    minus.velocity = plus.velocity
    torch.testing.assert_close(minus.coefficients(h)[0], -plus.coefficients(h)[0])


def test_h_prev_input_is_a_skip_of_weight_one_third():
    class Zero(nn.Module):
        def forward(self, x):
            return 0 * x

    x = sample(1, 2, 4, 4)
    options = {"velocity": 0.0, "diffusion": 1.0, "K": 1}
    _, h = GlobalLayer(2, init=Zero(), h_prev="input", **options).trajectory(x)
    torch.testing.assert_close(h, x / 3)  # (M + 2 dt) / L = (0.2 + 0.4) / 1.8
    _, h = GlobalLayer(2, init=Zero(), h_prev="init", **options).trajectory(x)
    torch.testing.assert_close(h, x * (0.4 / 1.8))


def test_source_is_the_first_guess_where_the_shape_changes():
    layer = GlobalLayer(4, init=BasicBlock(2, 4, stride=2), h_prev="input")
    h, x = layer.first_guess(sample(1, 2, 6, 6, dtype=torch.float32))
    assert h.shape == (1, 4, 3, 3)
    assert x is h


def test_nothing_moves_without_coefficients_but_the_source():
    x = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    states = GlobalLayer(1, velocity=0.0, diffusion=0.0, K=6).trajectory(x)
    assert [round(h[0, 0, 0, 0].item(), 12) for h in states] == [1, 1.4, 1.4, 1.8, 1.8, 2.2, 2.2]


def test_dot_gives_one_map_for_both_axes():
    layer = GlobalLayer(3, velocity="dot", act_layer=nn.SiLU).double()
    h = sample(2, 3, 4, 4)
    pair = layer.velocity
    assert isinstance(pair, LearnedPair)
    u, v = pair(h)
    silu = nn.functional.silu
    expected = silu(pair.norm_x(pair.op_x(h)) * silu(pair.norm_y(pair.op_y(h))))
    torch.testing.assert_close(u, expected)
    torch.testing.assert_close(v, expected)


def test_channel_coefficients_start_still_and_diffusive():
    u, v, D_x, D_y = GlobalLayer(3, velocity="channel", diffusion="channel").coefficients(torch.zeros(1, 3, 2, 2))
    torch.testing.assert_close(torch.cat([u, v]), torch.zeros(2, 3, 1, 1))
    torch.testing.assert_close(torch.cat([D_x, D_y]), torch.ones(2, 3, 1, 1))


def test_source_each_step_sees_state_and_input():
    layer = randomised(GlobalLayer(2, K=2, source="residual_each_step", velocity=0.0, diffusion=0.0).double())
    x = sample(1, 2, 3, 3)
    with torch.no_grad():
        h1 = x + 0.4 * layer.source(x + x)
        h2 = x + 0.4 * layer.source(h1 + x)
        torch.testing.assert_close(layer.trajectory(x)[2], h2)


# ---- neighbours farther away


def by_rolls(h, h_prev, f, u, v, D_x, D_y, *, K, dt, d):
    """Eq. (4) with neighbours d pixels away and spacing d, by rolls over the whole grid."""
    A_x, A_y, B_x, B_y = u * dt / d, v * dt / d, D_x * dt / d**2, D_y * dt / d**2
    east, west, south, north = (lambda q, s=s, a=a: q.roll(s, a) for s, a in ((-d, -1), (d, -1), (-d, -2), (d, -2)))
    divergence = (east(u) - west(u) + south(v) - north(v)) / (2 * d)
    for _ in range(K):
        right = (1 - 2 * B_x - 2 * B_y) * h_prev - 2 * dt * divergence * h + 2 * dt * f
        right = right + (2 * B_x - A_x) * east(h) + (2 * B_x + A_x) * west(h)
        right = right + (2 * B_y - A_y) * south(h) + (2 * B_y + A_y) * north(h)
        h_prev, h = h, right / (1 + 2 * B_x + 2 * B_y)
    return h


@settings(max_examples=40, deadline=None)
@given(H=st.integers(1, 9), W=st.integers(1, 9), d=st.integers(1, 4), seed=st.integers(0, 2**20))
def test_dilation_is_exact_on_every_grid(H, W, d, seed):
    h, x, u, v, D_x, D_y = (sample(2, 3, H, W, seed=seed + i) for i in range(6))
    D_x, D_y = D_x.abs(), D_y.abs()
    layer = GlobalLayer(3, K=3, dilation=d, h_prev="input")
    expected = by_rolls(h, x, x, u, v, D_x, D_y, K=3, dt=0.2, d=d)
    torch.testing.assert_close(layer.solve(h, x, (u, v, D_x, D_y)), expected)


def test_published_numbers_of_neighbours_two_pixels_away():
    x = torch.zeros(1, 1, 5, 6, dtype=torch.float64)
    x[0, 0, 2, 3] = 1
    _, h = GlobalLayer(1, velocity=0.0, diffusion=2.0, dt=0.1, dilation=2, source="none", K=1).trajectory(x)
    expected = torch.zeros(5, 6, dtype=torch.float64)
    expected[2, 3] = 0.8 / 1.2
    for y, column in ((2, 5), (2, 1), (4, 3), (0, 3)):
        expected[y, column] = 0.1 / 1.2
    torch.testing.assert_close(h[0, 0], expected)


# ---- stability


@settings(max_examples=60, deadline=None)
@given(
    A=st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    D=st.tuples(st.floats(0.01, 5), st.floats(0.01, 5)),
)
def test_von_neumann_number_predicts_growth(A, D):
    """The roots of the scheme's growth polynomial, over all waves, against the closed form."""
    from pdecnn.layers.stability import von_neumann_number

    theta = np.linspace(-np.pi, np.pi, 201)
    fine = np.concatenate([theta, np.linspace(-0.1, 0.1, 81)])
    X, Y = np.meshgrid(fine, fine)
    s = 2 * sum(D)
    b = -(4 * D[0] * np.cos(X) + 4 * D[1] * np.cos(Y) - 2j * (A[0] * np.sin(X) + A[1] * np.sin(Y))) / (1 + s)
    c = -(1 - s) / (1 + s)
    root = np.sqrt(b**2 - 4 * c + 0j)
    growth = np.maximum(abs(-b + root), abs(-b - root)).max() / 2
    V = von_neumann_number(*(torch.tensor(q, dtype=torch.float64) for q in (*A, *D))).item()
    if V <= 1:
        assert growth <= 1 + 1e-7
    elif V > 1.2:
        assert growth > 1 + 1e-9


def test_stability_reports_the_courant_number():
    x = torch.zeros(2, 3, 4, 4)
    report = GlobalLayer(3, velocity=(3.0, -4.0), diffusion=(0.5, 0.25), dy=2.0).stability(x)
    assert report.cfl == pytest.approx(3 * 0.2 + 4 * 0.2 / 2)
    assert report.fraction_above_1 == 0.0
    assert report.von_neumann_fraction == 1.0
    assert (report.max_velocity, report.max_diffusivity, report.min_diffusivity) == (4.0, 0.5, 0.25)
    assert GlobalLayer(3, velocity=6.0).stability(x).fraction_above_1 == 1.0


@pytest.mark.parametrize("bound", [True, 0.5])
def test_velocity_bound_holds_and_leaves_slow_flow_alone(bound):
    layer = GlobalLayer(2, velocity_bound=bound, dx=0.5).double()
    free = GlobalLayer(2, dx=0.5).double()
    free.load_state_dict(layer.state_dict())
    h = 20 * sample(2, 2, 6, 6)
    for m in (*layer.modules(), *free.modules()):
        if isinstance(m, nn.BatchNorm2d):
            m.weight.data.fill_(5.0)
    report, unbounded = layer.stability(h), free.stability(h)
    assert unbounded.cfl > 1 >= float(bound) >= report.cfl - 1e-6
    assert report.cfl == pytest.approx(float(bound), abs=1e-6)
    (u, v, *_), (u0, v0, *_) = layer.coefficients(h), free.coefficients(h)
    courant = u0.abs() * (0.2 / 0.5) + v0.abs() * 0.2
    slow = courant <= float(bound)
    torch.testing.assert_close(u[slow], u0[slow])
    torch.testing.assert_close((u / v)[~slow], (u0 / v0)[~slow], equal_nan=True)


def test_bound_keeps_a_rough_flow_from_exploding():
    """Spec 1.5: rough velocities up to 12 with D = 1 blow up in 20 steps; bounded by 0.7 they do not."""
    h = sample(1, 8, 32, 32).clamp(-1, 1)

    class Rough(nn.Module):
        def forward(self, h):
            return 12 * torch.rand(h.shape, generator=torch.Generator().manual_seed(1), dtype=h.dtype)

    options = {"velocity": Rough(), "diffusion": 1.0, "source": "none", "K": 20}
    free = GlobalLayer(8, **options).trajectory(h)[-1].abs().max()
    bounded = GlobalLayer(8, velocity_bound=0.7, **options).trajectory(h)[-1].abs().max()
    assert free > 1e6
    assert bounded < 10


def test_upwind_reads_only_upstream():
    """Without diffusion and for u > 0 a step is (1 - A) h_prev + 2 A h[x-1] over 1 + A: no downstream neighbour."""
    x = sample(1, 1, 1, 8)
    _, h = GlobalLayer(1, velocity=(2.0, 0.0), diffusion=0.0, source="none", upwind=True, K=1, dx=0.8).trajectory(x)
    A = 2.0 * 0.2 / 0.8
    torch.testing.assert_close(h, ((1 - A) * x + 2 * A * x.roll(1, -1)) / (1 + A))
    _, h = GlobalLayer(1, velocity=(-2.0, 0.0), diffusion=0.0, source="none", upwind=True, K=1, dx=0.8).trajectory(x)
    torch.testing.assert_close(h, ((1 - A) * x + 2 * A * x.roll(-1, -1)) / (1 + A))


@settings(max_examples=40, deadline=None)
@given(
    share=st.floats(0, 1),
    total=st.floats(0, 0.6),
    D=st.floats(0, 0.4),
    signs=st.sampled_from([(1, 1), (1, -1), (-1, 1), (-1, -1)]),
    seed=st.integers(0, 2**20),
)
def test_upwind_makes_no_new_maximum(share, total, D, signs, seed):
    """|A_x| + |A_y| + 2 (B_x + B_y) <= 1, constant velocities: every step is a weighted mean. Central is not."""
    dt = 0.2
    D = min(D, (1 - total) / (4 * dt))
    u, v = signs[0] * total * share / dt, signs[1] * total * (1 - share) / dt
    h = sample(1, 1, 6, 5, seed=seed)
    layer = GlobalLayer(1, velocity=(u, v), diffusion=D, source="none", upwind=True, K=8, dt=dt)
    for state in layer.trajectory(h):
        assert state.max() <= h.max() + 1e-12
        assert state.min() >= h.min() - 1e-12


def test_central_differences_do_make_a_new_maximum():
    h = torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    h[..., 3:5] = 1
    options = {"velocity": (3.0, 0.0), "diffusion": 0.0, "source": "none", "K": 8}
    assert max(s.max() for s in GlobalLayer(1, **options).trajectory(h)) > 1.1
    assert max(s.max() for s in GlobalLayer(1, upwind=True, **options).trajectory(h)) <= 1 + 1e-12


# ---- steps, plainness, description, errors


def test_steps_can_change_after_building():
    layer = randomised(GlobalLayer(2, K=5).double())
    x = sample(1, 2, 4, 4)
    with torch.no_grad():
        states = layer.trajectory(x)
        model = nn.Sequential(layer)
        assert set_steps(model, 3) == 1
        torch.testing.assert_close(layer(x), layer.act(layer.norm(states[3])))


@pytest.mark.parametrize(
    "options, plain",
    [
        ({}, True),
        ({"diffusion": 1.0, "coef_bias": True, "kernel_size": 5, "boundary": "neumann"}, True),
        ({"act_layer": nn.ReLU6, "h_prev": "input", "residual": True}, True),
        ({"velocity": "dot"}, False),
        ({"velocity": "pointwise"}, False),
        ({"diffusion": "channel"}, False),
        ({"source": "none"}, False),
        ({"act_layer": nn.SiLU}, False),
        ({"norm_layer": lambda C, **k: nn.GroupNorm(2, C, **k)}, False),
        ({"upwind": True}, False),
        ({"velocity_bound": True}, False),
        ({"dilation": 2}, False),
    ],
)
def test_is_plain(options, plain):
    assert GlobalLayer(4, **options).is_plain is plain


def test_repr_shows_what_is_not_default():
    assert "GlobalLayer(\n  4, K=5, dt=0.2\n" in repr(GlobalLayer(4))
    text = repr(GlobalLayer(4, flow_sign=-1, diffusion=2.0, upwind=True))
    assert "flow_sign=-1, upwind=True" in text
    assert "NumberPair(2, 2)" in text


@pytest.mark.parametrize(
    "options, message",
    [
        ({"velocity": "deep"}, "velocity must be .* 'depthwise', 'pointwise', 'full', 'residual', .* got 'deep'"),
        ({"diffusion": "deep"}, "diffusion must be .* 'channel', got 'deep'"),
        ({"velocity": (1.0, 2.0, 3.0)}, "velocity must be a number, two numbers"),
        ({"velocity": None}, "velocity must be a number, two numbers, a module or one of 'depthwise'.* got None"),
        ({"diffusion": -1.0}, "diffusion must not be negative, got -1.0"),
        ({"source": "all"}, "source must be one of 'identity', 'none', 'residual', 'residual_each_step', got 'all'"),
        ({"h_prev": "zero"}, "h_prev must be one of 'init', 'input', got 'zero'"),
        ({"flow_sign": 2}, "flow_sign must be one of 1, -1, got 2"),
        ({"boundary": "open"}, "boundary must be one of 'periodic', 'neumann', 'dirichlet', got 'open'"),
        ({"K": 0}, "K .* at least 1, got K=0"),
        ({"K": 2.0}, "K .* must be an int"),
        ({"dt": 0.0}, "dt must be positive and finite, got dt=0.0"),
        ({"dy": math.inf}, "dy must be positive and finite, got dy=inf"),
        ({"kernel_size": 4}, "kernel_size must be odd, got kernel_size=4"),
        ({"dilation": 0}, "dilation must be at least 1, got dilation=0"),
        ({"dilation": 2, "boundary": "neumann"}, "dilation=2 needs boundary='periodic', got boundary='neumann'"),
        ({"drop_path": 0.1}, "drop_path=0.1 .* use residual=True"),
        ({"coef_bn_eps": "C"}, "coef_bn_eps must be a positive number or 'channels', got 'C'"),
        ({"coef_bn_eps": 0.0}, "coef_bn_eps must be a positive number or 'channels', got 0.0"),
        ({"velocity_bound": -1.0}, "velocity_bound must be False, True or positive, got -1.0"),
    ],
)
def test_bad_option_is_refused_with_the_valid_ones(options, message):
    with pytest.raises(ValueError, match=f"GlobalLayer: {message}"):
        GlobalLayer(4, **options)


def test_wrong_channels_are_refused():
    with pytest.raises(ValueError, match=r"first guess of shape \(N, 4, H, W\), got \(1, 3, 5, 5\)"):
        GlobalLayer(4)(torch.zeros(1, 3, 5, 5))
