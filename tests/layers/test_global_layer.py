"""The Global layer: its options, its quirks by name, its parameter counts and its errors."""

import copy
import math

import pytest
import torch
from global_layers import OPTIONS, make, randomised, sample
from torch import nn

from pdecnn.layers import BasicBlock, GlobalLayer, set_steps
from pdecnn.layers.coefficients import LearnedPair
from pdecnn.layers.global_fusion import covered

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
    torch.compiler.reset()  # else other sizes of other tests make them symbols
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
    "options, is_covered",
    [
        ({}, True),
        ({"diffusion": 1.0, "coef_bias": True, "kernel_size": 5, "boundary": "neumann"}, True),
        ({"act_layer": nn.ReLU6, "h_prev": "input", "residual": True}, True),
        ({"velocity": "dot"}, False),
        ({"velocity": "pointwise"}, False),
        ({"diffusion": "channel"}, False),
        ({"source": "none"}, True),
        ({"act_layer": nn.Tanh}, True),
        ({"act_layer": nn.SiLU}, False),
        ({"norm_layer": lambda C, **k: nn.GroupNorm(2, C, **k)}, False),
        ({"upwind": True}, False),
        ({"velocity_bound": True}, False),
        ({"dilation": 2}, False),
    ],
)
def test_layers_that_one_operator_stands_for(options, is_covered):
    assert (covered(GlobalLayer(4, **options)) is not None) is is_covered


@pytest.mark.parametrize("options", [{}, {"source": "residual_each_step"}, {"dilation": 2}, {"boundary": "neumann"}])
@pytest.mark.parametrize("training", [True, False])
def test_the_number_of_steps_can_be_given_with_the_input(options, training):
    layer, x = randomised(GlobalLayer(2, K=5, **options)).train(training), sample(2, 2, 8, 8, dtype=torch.float32)
    other = copy.deepcopy(layer)
    other.set_steps(3)
    torch.testing.assert_close(layer(x, K=3), other(x))
    with torch.no_grad():
        torch.testing.assert_close(layer(x, K=3), other(x))
    assert layer.K == 5
    for bad in (0, True, 2.5, 10001):
        with pytest.raises(ValueError, match=rf"GlobalLayer: K .* got K={bad!r}"):
            layer(x, K=bad)


@pytest.mark.parametrize("dilation", [1, 2])
def test_compiled_for_symbolic_sizes(dilation):
    torch._dynamo.reset()
    layer = randomised(GlobalLayer(2, K=2, dilation=dilation)).eval()
    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend="eager")
    for size in ((6, 8), (10, 12), (9, 5)):  # the grids of the first two fall apart, that of the last does not
        x = sample(2, 2, *size, dtype=torch.float32)
        torch.testing.assert_close(compiled(x), layer(x))


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
        ({"K": 0}, "K .* must be an int from 1 to 10,000, got K=0"),
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
