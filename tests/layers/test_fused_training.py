"""A Global layer in training, by the fused operator and module by module: the same, and modules where it must be."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from pdecnn.kernels.registry import is_native
from pdecnn.layers import GlobalLayer, fused_training

pytestmark = pytest.mark.skipif(not is_native("depthwise_norm"), reason="no native library with this operator here")

SHAPE = (3, 5, 9, 8)


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(**options):
    torch.manual_seed(0)
    layer = GlobalLayer(SHAPE[1], **{"K": 2, **options}).train()
    for norm in layer.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.weight is not None:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.5, 0.5)
    return layer


@pytest.fixture
def calls(monkeypatch):
    """How many maps each call of depthwise_norm made; "K" for a call that made the steps too."""
    seen = []
    original, solved = fused_training.depthwise_norm, fused_training.global_training

    def counted(h, weight, *others):
        seen.append(1 if weight is None else len(weight))
        return original(h, weight, *others)

    def counted_steps(*arguments, **steps):
        seen.append("K")
        return solved(*arguments, **steps)

    monkeypatch.setattr(fused_training, "depthwise_norm", counted)
    monkeypatch.setattr(fused_training, "global_training", counted_steps)
    return seen


def step(layer, x):
    """Output, gradients by name, and buffers by name after one pass in training."""
    x = x.detach().clone().requires_grad_()
    out = layer(x)
    weight = sample(*out.shape, seed=1).to(out.dtype)
    (out * weight).sum().backward()
    gradients = {name: p.grad for name, p in layer.named_parameters()} | {"x": x.grad}
    return out.detach(), gradients, dict(layer.named_buffers())


def assert_same(layer, x, monkeypatch):
    """The layer in float32 is near the one done by modules in float64, in output, gradients and statistics."""
    wide = copy.deepcopy(layer).double()
    mine = step(layer, x)
    with monkeypatch.context() as patch:
        patch.setattr(fused_training, "_can_run", lambda h: False)
        exact = step(wide, x.double())
    torch.testing.assert_close(mine[0].double(), exact[0], rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(mine[1:], exact[1:], strict=True):
        assert ours.keys() == theirs.keys()
        for name, q in theirs.items():
            scale = max(1.0, q.abs().max().item()) if q is not None else 0
            torch.testing.assert_close(
                ours[name].to(q.dtype), q, rtol=1e-4, atol=2e-4 * scale, msg=lambda m, n=name: f"{n}: {m}"
            )


OPTIONS = {
    "plain": ({}, ["K", 1]),
    "constant diffusion": ({"diffusion": (1.0, 0.5)}, ["K", 1]),
    "learned diffusion alone": ({"velocity": "dot"}, [2, 1]),
    "5x5": ({"kernel_size": 5}, ["K", 1]),
    "bias": ({"coef_bias": True}, ["K", 1]),
    "one bias": ({"coef_bias": (True, False)}, ["K", 1]),
    "eps of the published code": ({"coef_bn_eps": "channels"}, ["K", 1]),
    "ReLU6": ({"act_layer": nn.ReLU6}, ["K", 1]),
    "no activation": ({"act_layer": nn.Identity}, ["K", 1]),
    "negative flow": ({"flow_sign": -1, "upwind": True, "velocity_bound": True}, [4, 1]),
    "previous state": ({"h_prev": "input", "init": nn.Conv2d(5, 5, 1)}, ["K", 1]),
    "previous state alone": ({"h_prev": "input", "init": nn.Conv2d(5, 5, 1), "source": "none"}, ["K", 1]),
    "previous state and another source": (
        {"h_prev": "input", "init": nn.Conv2d(5, 5, 1), "source": "residual"},
        [4, 1],
    ),
    "no affine": ({"norm_layer": partial(nn.BatchNorm2d, affine=False)}, ["K", 1]),
    "no statistics": ({"norm_layer": partial(nn.BatchNorm2d, track_running_stats=False)}, ["K", 1]),
    "average of all batches": ({"norm_layer": partial(nn.BatchNorm2d, momentum=None)}, ["K", 1]),
    "momentum": ({"norm_layer": partial(nn.BatchNorm2d, momentum=0.7)}, ["K", 1]),
    "first guess": ({"init": nn.Conv2d(5, 5, 1)}, ["K", 1]),
    "no source": ({"source": "none"}, ["K", 1]),
    "residual source": ({"source": "residual"}, [4, 1]),
    "source of each step": ({"source": "residual_each_step"}, [4, 1]),
    "the input is the first guess": ({"h_prev": "input"}, ["K", 1]),
    "spacings": ({"dt": 0.1, "dx": 1.5, "dy": 0.8}, ["K", 1]),
    "border": ({"boundary": "neumann"}, [4, 1]),
    "dilated": ({"dilation": 2}, [4, 1]),
    "upwind": ({"upwind": True}, [4, 1]),
    "bounded": ({"velocity_bound": True}, [4, 1]),
    "backward flow": ({"flow_sign": -1}, [4, 1]),
    "SiLU": ({"act_layer": nn.SiLU}, []),
    "group norm": ({"norm_layer": lambda C, eps=1e-5, **dd: nn.GroupNorm(1, C, eps, **dd)}, []),
    "dot": ({"velocity": "dot", "diffusion": 1.0}, [1]),
    "7x7": ({"kernel_size": 7}, [1]),
    "full": ({"velocity": "full", "diffusion": "channel"}, [1]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_layer_is_that_of_the_modules(name, calls, monkeypatch):
    options, expected = OPTIONS[name]
    layer = make(**options)
    assert_same(layer, sample(*SHAPE), monkeypatch)
    assert calls == expected


def test_channels_last(calls, monkeypatch):
    assert_same(make(), sample(*SHAPE).to(memory_format=torch.channels_last), monkeypatch)
    assert calls == ["K"]  # the output norm is torch's


def test_learned_numbers_keep_their_gradient(calls):
    layer = make(diffusion=1.0)
    layer.diffusion.x = nn.Parameter(torch.tensor(1.0))
    layer(sample(*SHAPE)).square().sum().backward()
    assert layer.diffusion.x.grad.abs() > 0
    assert calls == [2, 1]


def test_overridden_methods_are_called(calls):
    class Still(GlobalLayer):
        def solve(self, h, x, coefficients):
            return h

    layer = Still(SHAPE[1]).train()
    x = sample(*SHAPE)
    torch.testing.assert_close(layer(x), layer.act(layer.norm(x)))
    assert "K" not in calls
    layer = make()
    layer.coefficients = lambda h: (0.0, 0.0, 0.0, 0.0)  # on the instance
    layer(x)
    assert "K" not in calls


def test_a_source_that_works_in_place_comes_after_the_coefficients(monkeypatch):
    class Halved(nn.Module):
        def forward(self, x):
            return x.mul_(0.5)

    layer, x = make(source=Halved()), sample(*SHAPE)
    with torch.no_grad():
        mine = layer(x.clone())
        monkeypatch.setattr(fused_training, "_can_run", lambda h: False)
        torch.testing.assert_close(mine, layer(x.clone()), rtol=1e-4, atol=1e-4)


def test_planes_of_another_width(calls, monkeypatch):
    assert_same(make(), sample(3, 5, 9, 11), monkeypatch)
    assert calls == [4, 1]


def test_statistics_over_several_batches(monkeypatch):
    for momentum in (0.1, None):
        layer = make(norm_layer=partial(nn.BatchNorm2d, momentum=momentum), coef_bias=True)
        modules = copy.deepcopy(layer)
        for i in range(3):
            x = sample(*SHAPE, seed=i) + i
            layer(x)
            with monkeypatch.context() as patch:
                patch.setattr(fused_training, "_can_run", lambda h: False)
                modules(x)
        for (name, a), b in zip(layer.named_buffers(), modules.buffers(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        assert layer.velocity.norm_x.num_batches_tracked == 3


def test_the_bias_gets_a_zero_gradient_so_that_weight_decay_reaches_it():
    layer = make(coef_bias=True)
    layer(sample(*SHAPE)).sum().backward()
    assert torch.equal(layer.velocity.op_x.bias.grad, torch.zeros(SHAPE[1]))


def test_state_dict_is_that_of_the_modules():
    names = {"op_x.weight", "norm_x.weight", "norm_x.bias", "norm_x.running_mean", "norm_x.running_var"}
    assert {f"velocity.{name}" for name in names} <= make().state_dict().keys()


def frozen(layer):
    layer.velocity.norm_x.eval()
    layer.norm.eval()


def heard(layer, register):
    """A hook on parts that the operator would skip; returns what it heard."""
    seen = []
    for part in (layer.velocity.op_y, layer.diffusion, layer.act):
        getattr(part, register)(lambda module, *_: seen.append(module))
    return seen


def test_frozen_norms_use_their_statistics(calls, monkeypatch):
    layer = make()
    frozen(layer)
    assert_same(layer, sample(*SHAPE), monkeypatch)
    assert calls == [2]  # the diffusivities alone


@pytest.mark.parametrize(
    "register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
def test_hooks_hear_the_modules(register, calls):
    layer = make()
    seen = heard(layer, register)
    layer(sample(*SHAPE).requires_grad_()).sum().backward()
    assert len(set(seen)) == 3
    assert calls == []


def test_global_hooks_hear_the_modules(calls):
    layer, seen = make(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        layer(sample(*SHAPE))
    finally:
        handle.remove()
    assert {layer.velocity.op_x, layer.diffusion.norm_y, layer.norm} <= set(seen)
    assert calls == []


class Doubled(nn.Conv2d):
    """A convolution that does more than it is called."""

    def forward(self, h):
        return 2 * super().forward(h)


def change_subclass(layer):
    layer.velocity.op_x = layer.diffusion.op_x = Doubled(5, 5, 3, padding=1, groups=5)


def change_padding(layer):
    for pair in (layer.velocity, layer.diffusion):
        pair.op_x.padding_mode = "circular"
        pair.op_x._reversed_padding_repeated_twice = [1, 1, 1, 1]


def change_stencil(layer):
    for pair in (layer.velocity, layer.diffusion):
        pair.op_x = nn.Conv2d(5, 5, 3, padding=2, dilation=2, groups=5)


def change_norm(layer):
    for pair in (layer.velocity, layer.diffusion):
        pair.norm_x = nn.Sequential(pair.norm_x)


def change_parametrization(layer):
    for pair in (layer.velocity, layer.diffusion):
        nn.utils.parametrizations.weight_norm(pair.op_x)


@pytest.mark.parametrize(
    "change",
    [change_subclass, change_padding, change_stencil, change_norm, change_parametrization],
    ids=lambda f: f.__name__,
)
def test_other_modules_are_run(change, calls, monkeypatch):
    layer = make()
    change(layer)
    assert_same(layer, sample(*SHAPE), monkeypatch)
    assert calls == [1]  # the output norm alone


def test_evaluation_and_other_types_run_the_modules(calls):
    x = sample(*SHAPE)
    make().eval()(x.requires_grad_())
    make().double()(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        make()(x)
    assert calls == []


def test_one_value_per_channel_is_refused_as_by_the_norm():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        make()(sample(1, 5, 1, 1))


def test_an_empty_batch_is_left_to_torch(calls):
    assert make().eval()(sample(0, 5, 4, 4)).shape == (0, 5, 4, 4)
    assert calls == []


def test_compiling_and_tracing_see_the_modules(calls):
    layer, x = make(), sample(*SHAPE)
    other = copy.deepcopy(layer)
    out = torch.compile(layer, backend="eager", fullgraph=True)(x)
    torch.compiler.reset()  # its memory of how often the layer was compiled is limited, and shared with other tests
    assert calls == []
    torch.testing.assert_close(out, other(x), rtol=1e-4, atol=1e-4)


def test_symbolic_tracing():
    layer, x = make(norm_layer=partial(nn.BatchNorm2d, track_running_stats=False)), sample(*SHAPE)
    traced = make_fx(layer, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x)
    for n in (3, 2):
        torch.testing.assert_close(traced(x[:n]), layer(x[:n]), rtol=1e-4, atol=1e-4)


def test_training_without_gradients_counts_too(calls):
    layer = make()
    with torch.no_grad():
        layer(sample(*SHAPE))
    assert calls == ["K", 1]
    assert layer.velocity.norm_x.num_batches_tracked == 1
