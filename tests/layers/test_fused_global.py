"""A Global layer in one kernel is the layer done part by part, and where the kernel cannot be used the parts run."""

import re
from functools import partial

import pytest
import torch
from global_layers import Operators
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import BatchNormAct2d
from torch import nn

from pdecnn.layers import BasicBlock, GlobalLayer
from pdecnn.layers.global_fusion import FusedGlobalLayer, covered, match

FORMATS = (torch.contiguous_format, torch.channels_last)


def sample(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def trained(module, seed=0):
    """The module in evaluation, with norms that have seen something."""
    generator = torch.Generator().manual_seed(seed)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for q, low, high in (
                (norm.running_mean, -0.5, 0.5),
                (norm.running_var, 0.5, 2.0),
                (norm.weight, -1.5, 1.5),
                (norm.bias, -0.5, 0.5),
            ):
                if q is not None:
                    nn.init.uniform_(q, low, high, generator=generator)
    return module.eval()


@torch.no_grad()
def by_parts(layer, x):
    """What the layer's documentation says, from its parts in float64."""
    layer, x = layer.double(), x.double()
    h = layer.init(x)
    source = x if x.shape == h.shape else h
    out = layer.act(layer.norm(layer.solve(h, source, layer.coefficients(h))))
    out = out + source if layer.residual else out
    layer.float()
    return out


def rounding(layer, x, expected):
    """By how much the answer changes if every value of the input is rounded, at the most of a few times."""
    if not expected.numel():
        return 0.0
    noise = (sample(*x.shape, seed=seed, dtype=torch.float64) for seed in range(4))
    return max(float((by_parts(layer, x * (1 + 2**-24 * n)) - expected).abs().max()) for n in noise)


INITS = {
    "identity": lambda C: None,
    "block": lambda C: BasicBlock(C, C),
    "strided": lambda C: BasicBlock(C, C, stride=2),
    "wider": lambda C: nn.Conv2d(C, C, 3, padding=2),
}


@settings(max_examples=80, deadline=None)
@given(
    N=st.integers(0, 2),
    C=st.sampled_from((1, 3, 17)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9) | st.sampled_from((14, 16, 28, 32))),
    K=st.integers(1, 5),
    init=st.sampled_from(tuple(INITS)),
    memory_format=st.sampled_from(FORMATS),
    options=st.fixed_dictionaries(
        {
            "kernel_size": st.sampled_from((1, 3, 5)),
            "diffusion": st.sampled_from(("depthwise", 0.0, (0.3, 1.0))),
            "boundary": st.sampled_from(("periodic", "neumann", "dirichlet")),
            "flow_sign": st.sampled_from((1, -1)),
            "h_prev": st.sampled_from(("init", "input")),
            "coef_bias": st.sampled_from((False, True, (True, False))),
            "act_layer": st.sampled_from((nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh)),
            "source": st.sampled_from(("identity", "none")),
            "residual": st.booleans(),
            "dx": st.sampled_from((1.0, 0.7)),
            "dy": st.sampled_from((1.0, 1.5)),
        }
    ),
)
def test_the_fused_layer_is_the_layer(N, C, size, K, init, memory_format, options):
    torch.manual_seed(0)
    layer = trained(GlobalLayer(C, K=K, init=INITS[init](C), **options))
    x = sample(N, C, *size).to(memory_format=memory_format)
    expected = by_parts(layer, x)
    in_single = layer(x.clone().requires_grad_()).detach().double()
    modules = (in_single - expected).abs().max() if expected.numel() else 0
    with torch.no_grad():
        assert match(layer, *layer.first_guess(x), K) is not None
        for out in (FusedGlobalLayer(layer)(x), layer(x)):
            assert out.dtype == torch.float32
            scale = expected.abs().max() if expected.numel() else 0
            # where a layer is badly conditioned: twice what single precision costs its modules, or what rounding its
            # input alone changes, once for that, the coefficients and the affine, and once for each step
            allowed = max(1e-5 * max(1.0, float(scale)), 2 * float(modules), (K + 3) * rounding(layer, x, expected))
            torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=allowed)
    if init == "identity":
        assert out.is_contiguous(memory_format=memory_format)


class Broadcast(nn.Module):
    """A first guess without memory of its own: strides are 0, or those of the transposed input."""

    def __init__(self, view):
        super().__init__()
        self.view = view

    def forward(self, x):
        return self.view(x)


VIEWS = {
    "mean": lambda x: x.mean((2, 3), keepdim=True).expand_as(x),
    "mean of columns": lambda x: x.mean(3, keepdim=True).expand_as(x),
    "mean of rows": lambda x: x.mean(2, keepdim=True).expand_as(x),
    "first sample": lambda x: x[:1].expand_as(x),
    "transpose": lambda x: x.transpose(2, 3),
}


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_first_guess_that_is_a_view(view, memory_format):
    for C, W in ((3, 8), (18, 9), (2, 16)):
        layer = trained(GlobalLayer(C, init=Broadcast(VIEWS[view]), h_prev="input", K=2))
        x = sample(2, C, W, W).to(memory_format=memory_format)
        with torch.no_grad():
            torch.testing.assert_close(layer(x).double(), by_parts(layer, x), rtol=1e-5, atol=1e-5)


def used_parts(layer, x):
    """Whether the parts of the layer run, and what comes out."""
    with Operators() as operators:
        out = layer(x)
    return "global_layer" not in operators.names, out


def test_the_kernel_is_used_in_inference():
    layer, x = trained(GlobalLayer(4)), sample(2, 4, 8, 8)
    with torch.no_grad():
        assert not used_parts(layer, x)[0]
    with torch.inference_mode():
        assert not used_parts(layer, x)[0]


class OddReLU(nn.ReLU):
    def forward(self, x):
        return super().forward(x) + 1


NOT_PLAIN = {
    "silu": {"act_layer": nn.SiLU},
    "gated": {"velocity": "dot"},
    "dilation": {"dilation": 2},
    "upwind": {"upwind": True},
    "bounded": {"velocity_bound": True},
    "pointwise": {"diffusion": "pointwise"},
    "channel": {"diffusion": "channel"},
    "group norm": {"norm_layer": lambda C, **kwargs: nn.GroupNorm(2, C, **kwargs)},
    "norm with an activation": {"norm_layer": partial(BatchNormAct2d, act_layer=nn.SiLU)},
    "norm without statistics": {"norm_layer": partial(nn.BatchNorm2d, track_running_stats=False)},
    "subclass of ReLU": {"act_layer": OddReLU},
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_layers_beyond_the_kernel_run_in_parts(name):
    layer, x = trained(GlobalLayer(4, **NOT_PLAIN[name])), sample(2, 4, 8, 8)
    assert covered(layer) is None
    with torch.no_grad():
        ran, out = used_parts(layer, x)
    assert ran
    torch.testing.assert_close(out.double(), by_parts(layer, x), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"^FusedGlobalLayer: the kernel does not cover GlobalLayer"):
        FusedGlobalLayer(layer)


def test_float64_runs_in_parts():
    layer, x = trained(GlobalLayer(4)), sample(2, 4, 8, 8, dtype=torch.float64)
    expected = by_parts(layer, x)
    with torch.no_grad():
        ran, out = used_parts(layer.double(), x)
        assert ran
        assert torch.equal(out, expected)
        torch.testing.assert_close(FusedGlobalLayer(layer)(x), expected, rtol=1e-12, atol=1e-12)


def test_autocast_runs_in_parts():
    layer, x = trained(GlobalLayer(4, init=nn.Conv2d(4, 4, 1))), sample(2, 4, 8, 8)
    expected = by_parts(layer, x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ran, out = used_parts(layer, x)
        fused = FusedGlobalLayer(layer)(x)
    assert ran
    for q in (out, fused):
        assert (q.double() - expected).abs().max() <= 0.05 * expected.abs().max()


def test_gradients_run_in_parts():
    layer, x = trained(GlobalLayer(4)), sample(2, 4, 8, 8).requires_grad_()
    ran, out = used_parts(layer, x)
    assert ran
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_training_does_without_the_kernel_for_inference():
    layer, x = trained(GlobalLayer(4)).train(), sample(2, 4, 8, 8)
    before = layer.norm.running_mean.clone()
    with torch.no_grad():
        assert used_parts(layer, x)[0]
    assert not torch.equal(layer.norm.running_mean, before)


def test_a_norm_left_in_training_renews_its_statistics():
    layer, x = trained(GlobalLayer(4)), sample(2, 4, 8, 8)
    layer.velocity.norm_x.train()
    before = layer.velocity.norm_x.running_mean.clone()
    with torch.no_grad():
        assert used_parts(layer, x)[0]
    assert not torch.equal(layer.velocity.norm_x.running_mean, before)


@pytest.mark.parametrize("part", ["velocity", "velocity.op_x", "diffusion.norm_y", "source", "norm", "act"])
def test_hooks_on_the_parts_are_served(part):
    layer, x = trained(GlobalLayer(4)), sample(2, 4, 8, 8)
    module, seen = layer.get_submodule(part), []
    hooks = (module.register_forward_hook, module.register_forward_pre_hook)
    with torch.no_grad():
        expected = layer(x)
        for register in hooks:
            handle = register(lambda *args: seen.append(args[0]))
            ran, out = used_parts(layer, x)
            handle.remove()
            assert ran
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        assert seen
        assert all(m is module for m in seen)
        handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
        try:
            assert used_parts(layer, x)[0]
        finally:
            handle.remove()
        assert not used_parts(layer, x)[0]


def test_compiling_runs_in_parts():
    layer, x = trained(GlobalLayer(4)), sample(2, 4, 8, 8)
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)


def test_inputs_that_need_a_gradient_are_refused():
    fused = FusedGlobalLayer(trained(GlobalLayer(4)))
    x = sample(2, 4, 8, 8).requires_grad_()
    message = re.escape("the whole-layer kernel is for inference and has no gradient. Use the GlobalLayer for training")
    with pytest.raises(RuntimeError, match=message):
        fused(x)
    fused.init = Broadcast(torch.Tensor.detach)  # the source still needs one
    with pytest.raises(RuntimeError, match=message):
        fused(x)
    with torch.no_grad():
        assert fused(x).shape == x.shape
    assert fused(x.detach()).grad_fn is None


def test_a_first_guess_of_other_channels_is_refused():
    fused = FusedGlobalLayer(trained(GlobalLayer(4)))
    message = r"^FusedGlobalLayer: expected a first guess of shape \(N, 4, H, W\), got \(2, 8, 5, 5\) from an input"
    with pytest.raises(ValueError, match=message):
        fused(sample(2, 8, 5, 5))
    with pytest.raises(ValueError, match=r"expected a first guess of shape \(N, 4, H, W\), got \(4, 5, 5\)"):
        fused(sample(4, 5, 5))


def test_the_number_of_steps_can_be_changed():
    layer, x = trained(GlobalLayer(4, K=5)), sample(2, 4, 8, 8)
    fused = FusedGlobalLayer(layer)
    for K in (1, 3):
        fused.set_steps(K)
        layer.set_steps(K)
        torch.testing.assert_close(fused(x).double(), by_parts(layer, x), rtol=1e-5, atol=1e-5)
    assert "4, K=3" in repr(fused)
    for bad in (0, True, 2.0, 10001):
        with pytest.raises(ValueError, match=f"FusedGlobalLayer: K .* must be an int from 1 to 10,000, got K={bad!r}"):
            fused.set_steps(bad)


def test_the_fused_layer_has_no_parameters_and_keeps_its_own_numbers():
    layer, x = trained(GlobalLayer(4)), sample(2, 4, 8, 8)
    fused = FusedGlobalLayer(layer)
    before = fused(x)
    assert list(fused.parameters()) == []
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
    assert torch.equal(fused(x), before)
    assert torch.equal(fused.to(memory_format=torch.channels_last)(x), before)


def test_an_init_that_is_exchanged_later_is_used():
    fused = FusedGlobalLayer(GlobalLayer(4).eval())
    x = torch.rand(2, 4, 8, 8)
    before = fused(x)
    fused.init = nn.Conv2d(4, 4, 1, bias=False)
    nn.init.dirac_(fused.init.weight)
    with torch.no_grad():
        fused.init.weight.mul_(2)
        expected = FusedGlobalLayer(GlobalLayer(4, init=fused.init).eval())
        expected.load_state_dict(fused.state_dict())
        assert torch.equal(fused(x), expected(x))
        assert not torch.equal(fused(x), before)
