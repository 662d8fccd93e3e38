"""A Global layer in training, by the fused operator and module by module: the same, and modules where it must be."""

import copy
from functools import partial

import pytest
import torch
from global_layers import Operators
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from pdecnn.kernels.registry import is_native
from pdecnn.layers import GlobalLayer

pytestmark = pytest.mark.skipif(not is_native("global_layer"), reason="no native library with this operator here")

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


def operators(layer, x):
    """The operators of pdecnn that ran in one pass, without the solver alone."""
    with Operators() as seen:
        layer(x)
    return set(seen.names) - {"advection_diffusion"}


def step(layer, x):
    """Output, gradients by name, and buffers by name after one pass in training."""
    x = x.detach().clone().requires_grad_()
    out = layer(x)
    weight = sample(*out.shape, seed=1).to(out.dtype)
    (out * weight).sum().backward()
    gradients = {name: p.grad for name, p in layer.named_parameters()} | {"x": x.grad}
    return out.detach(), gradients, dict(layer.named_buffers())


def assert_same(layer, x):
    """The layer in float32 is near that in float64, which runs its modules: in output, gradients and statistics."""
    wide = copy.deepcopy(layer).double()
    mine, exact = step(layer, x), step(wide, x.double())
    torch.testing.assert_close(mine[0].double(), exact[0], rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(mine[1:], exact[1:], strict=True):
        assert ours.keys() == theirs.keys()
        for name, q in theirs.items():
            scale = max(1.0, q.abs().max().item()) if q is not None else 0
            torch.testing.assert_close(
                ours[name].to(q.dtype), q, rtol=1e-4, atol=2e-4 * scale, msg=lambda m, n=name: f"{n}: {m}"
            )


WHOLE, MAPS, NOTHING = {"global_training", "depthwise_norm"}, {"depthwise_norm"}, set()
OPTIONS = {
    "plain": ({}, WHOLE),
    "constant diffusion": ({"diffusion": (1.0, 0.5)}, WHOLE),
    "learned diffusion alone": ({"velocity": "dot"}, MAPS),
    "5x5": ({"kernel_size": 5}, WHOLE),
    "bias": ({"coef_bias": True}, WHOLE),
    "one bias": ({"coef_bias": (True, False)}, WHOLE),
    "eps of the published code": ({"coef_bn_eps": "channels"}, WHOLE),
    "ReLU6": ({"act_layer": nn.ReLU6}, WHOLE),
    "no activation": ({"act_layer": nn.Identity}, WHOLE),
    "negative flow": ({"flow_sign": -1, "upwind": True, "velocity_bound": True}, MAPS),
    "previous state": ({"h_prev": "input", "init": nn.Conv2d(5, 5, 1)}, WHOLE),
    "previous state alone": ({"h_prev": "input", "init": nn.Conv2d(5, 5, 1), "source": "none"}, WHOLE),
    "previous state and another source": (
        {"h_prev": "input", "init": nn.Conv2d(5, 5, 1), "source": "residual"},
        MAPS,
    ),
    "no affine": ({"norm_layer": partial(nn.BatchNorm2d, affine=False)}, WHOLE),
    "no statistics": ({"norm_layer": partial(nn.BatchNorm2d, track_running_stats=False)}, WHOLE),
    "average of all batches": ({"norm_layer": partial(nn.BatchNorm2d, momentum=None)}, WHOLE),
    "momentum": ({"norm_layer": partial(nn.BatchNorm2d, momentum=0.7)}, WHOLE),
    "first guess": ({"init": nn.Conv2d(5, 5, 1)}, WHOLE),
    "no source": ({"source": "none"}, WHOLE),
    "residual source": ({"source": "residual"}, MAPS),
    "source of each step": ({"source": "residual_each_step"}, MAPS),
    "the input is the first guess": ({"h_prev": "input"}, WHOLE),
    "spacings": ({"dt": 0.1, "dx": 1.5, "dy": 0.8}, WHOLE),
    "border": ({"boundary": "neumann"}, WHOLE),
    "dilated": ({"dilation": 2}, MAPS),
    "upwind": ({"upwind": True}, MAPS),
    "bounded": ({"velocity_bound": True}, MAPS),
    "backward flow": ({"flow_sign": -1}, WHOLE),
    "tanh": ({"act_layer": nn.Tanh}, WHOLE),
    "clamp": ({"act_layer": nn.Hardtanh}, WHOLE),
    "residual": ({"residual": True, "drop_path": 0.1}, WHOLE),
    "SiLU": ({"act_layer": nn.SiLU}, MAPS),
    "group norm": ({"norm_layer": lambda C, eps=1e-5, **dd: nn.GroupNorm(1, C, eps, **dd)}, NOTHING),
    "dot": ({"velocity": "dot", "diffusion": 1.0}, MAPS),
    "7x7": ({"kernel_size": 7}, WHOLE),
    "full": ({"velocity": "full", "diffusion": "channel"}, MAPS),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_layer_is_that_of_the_modules(name):
    options, expected = OPTIONS[name]
    layer = make(**options)
    assert operators(copy.deepcopy(layer), sample(*SHAPE)) == expected
    if layer.residual:
        layer.drop_path.eval()
    assert_same(layer, sample(*SHAPE))


def test_channels_last():
    x = sample(*SHAPE).to(memory_format=torch.channels_last)
    assert_same(make(), x)
    assert operators(make(), x) == {"global_training"}  # the output norm is torch's


def test_learned_numbers_keep_their_gradient():
    layer = make(diffusion=1.0)
    layer.diffusion.x = nn.Parameter(torch.tensor(1.0))
    layer(sample(*SHAPE)).square().sum().backward()
    assert layer.diffusion.x.grad.abs() > 0


def test_overridden_methods_are_called():
    class Still(GlobalLayer):
        def solve(self, h, x, coefficients):
            return h

    layer = Still(SHAPE[1]).train()
    x = sample(*SHAPE)
    torch.testing.assert_close(layer(x), layer.act(layer.norm(x)))
    layer = make(source="none")
    layer.coefficients = lambda h: (0.0, 0.0, 0.0, 0.0)  # on the instance
    torch.testing.assert_close(layer(x), layer.act(layer.norm(x)))


def test_a_source_that_works_in_place_comes_after_the_coefficients():
    class Halved(nn.Module):
        def forward(self, x):
            return x.mul_(0.5)

    layer, x = make(source=Halved()), sample(*SHAPE)
    with torch.no_grad():
        wide = copy.deepcopy(layer).double()
        torch.testing.assert_close(layer(x.clone()).double(), wide(x.double()), rtol=1e-4, atol=1e-4)


def test_planes_of_another_width():
    assert_same(make(), sample(3, 5, 9, 11))
    assert operators(make(), sample(3, 5, 9, 11)) == WHOLE


def test_statistics_over_several_batches():
    for momentum in (0.1, None):
        layer = make(norm_layer=partial(nn.BatchNorm2d, momentum=momentum), coef_bias=True)
        modules = copy.deepcopy(layer).double()
        for i in range(3):
            x = sample(*SHAPE, seed=i) + i
            layer(x)
            modules(x.double())
        for (name, a), b in zip(layer.named_buffers(), modules.buffers(), strict=True):
            torch.testing.assert_close(a.to(b), b, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
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


def test_frozen_norms_use_their_statistics():
    layer = make()
    frozen(layer)
    assert_same(layer, sample(*SHAPE))


@pytest.mark.parametrize(
    "register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
def test_hooks_hear_the_modules(register):
    layer = make()
    seen = heard(layer, register)
    layer(sample(*SHAPE).requires_grad_()).sum().backward()
    assert len(set(seen)) == 3


def test_global_hooks_hear_the_modules():
    layer, seen = make(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        layer(sample(*SHAPE))
    finally:
        handle.remove()
    assert {layer.velocity.op_x, layer.diffusion.norm_y, layer.norm} <= set(seen)


def test_evaluation_and_other_types_run_the_modules():
    x = sample(*SHAPE)
    assert operators(make().eval(), x.requires_grad_()) == NOTHING
    assert operators(make().double(), x.double()) == NOTHING
    with torch.autocast("cpu", torch.bfloat16):
        assert operators(make(), x) == NOTHING


def test_one_value_per_channel_is_refused_as_by_the_norm():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        make()(sample(1, 5, 1, 1))


def test_an_empty_batch_is_left_to_torch():
    assert make().eval()(sample(0, 5, 4, 4)).shape == (0, 5, 4, 4)


def test_compiling_gives_the_same():
    layer, x = make(), sample(*SHAPE)
    other = copy.deepcopy(layer)
    out = torch.compile(layer, backend="eager", fullgraph=True)(x)
    torch.compiler.reset()  # its memory of how often the layer was compiled is limited, and shared with other tests
    torch.testing.assert_close(out, other(x), rtol=1e-4, atol=1e-4)


def test_symbolic_tracing():
    layer, x = make(norm_layer=partial(nn.BatchNorm2d, track_running_stats=False)), sample(*SHAPE)
    traced = make_fx(layer, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x)
    for n in (3, 2):
        torch.testing.assert_close(traced(x[:n]), layer(x[:n]), rtol=1e-4, atol=1e-4)


def test_training_without_gradients_counts_too():
    layer = make()
    with torch.no_grad():
        assert operators(layer, sample(*SHAPE)) == WHOLE
    assert layer.velocity.norm_x.num_batches_tracked == 1
