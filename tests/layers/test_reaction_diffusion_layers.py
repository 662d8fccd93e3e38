"""The steps as layers against the functional steps, their stability reports, and the life of a cached spectrum."""

import copy
import io

import pytest
import torch
from torch import nn

from pdecnn import reference
from pdecnn.layers import (
    CirculantReactionDiffusion,
    DepthwiseConv2d,
    ExplicitReactionDiffusion,
    ImplicitReactionDiffusion,
    LinearMixConv2d,
)

STEPS = [
    ExplicitReactionDiffusion,
    ImplicitReactionDiffusion,
    CirculantReactionDiffusion,
    lambda C, **kw: CirculantReactionDiffusion(C, implicit=True, **kw),
]


def features(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def expected_step(layer, y):
    k, h, r = layer.stencil, layer.h, layer.reaction(y)
    if layer.circulant:
        if layer.implicit:
            return reference.circulant_implicit_diffusion(y + h * r, k, h)
        return y - h * reference.circulant_diffusion(y, k) + h * r
    step = reference.implicit_step if layer.implicit else reference.explicit_step
    return step(y, k, r, h, layer.boundary)


@pytest.mark.parametrize("make", STEPS)
@pytest.mark.parametrize("size", [(7,), (5, 6), (1, 4), (2, 2), (3, 4, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_step_is_the_equation(make, size, training):
    torch.manual_seed(0)
    layer = make(3, h=0.4, dims=len(size), dtype=torch.float64).train(training)
    layer.norm.momentum = 0.0  # the same statistics for both calls
    y = features(2, 3, *size)
    torch.testing.assert_close(layer(y), expected_step(layer, y), rtol=0, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(layer(y), expected_step(layer, y), rtol=0, atol=1e-10)


@pytest.mark.parametrize("boundary", ["neumann", "dirichlet"])
def test_other_boundaries(boundary):
    y = features(2, 3, 5, 6)
    for make in (ExplicitReactionDiffusion, ImplicitReactionDiffusion):
        if make is ImplicitReactionDiffusion and boundary == "dirichlet":
            with pytest.raises(ValueError, match="no transform diagonalises"):
                make(3, boundary=boundary)
            continue
        layer = make(3, boundary=boundary, dtype=torch.float64).eval()
        torch.testing.assert_close(layer(y), expected_step(layer, y), rtol=0, atol=1e-10)


@pytest.mark.parametrize("make", STEPS)
def test_gradients_reach_every_parameter(make):
    layer = make(3, affine=True, dtype=torch.float64).eval()
    y = features(2, 3, 4, 5).requires_grad_()

    def run(y, k, M):
        return torch.func.functional_call(layer, {"stencil": k, "weight": M}, y)

    assert torch.autograd.gradcheck(run, (y, layer.stencil, layer.weight))
    layer(y).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_weights_per_step():
    for make in STEPS:
        assert sum(p.numel() for p in make(16).parameters()) == 9 * 16 + 16**2
    assert sum(p.numel() for p in LinearMixConv2d(16).parameters()) == 9 * 16 + 16**2


def test_explicit_guard_holds_the_bound_and_leaves_small_stencils_alone():
    layer = ExplicitReactionDiffusion(4, h=1.0, guard=True)
    with torch.no_grad():
        layer.stencil.mul_(10)
        layer.stencil[0] = 0.01
    free = ExplicitReactionDiffusion(4, h=1.0)
    free.load_state_dict(layer.state_dict())
    assert not free.stability().stable
    assert free.stability().spectral_radius > 1
    guarded = layer.stability()
    assert guarded.h_max == pytest.approx(1.0, rel=1e-5)
    assert guarded.spectral_radius <= 1 + 1e-5
    assert torch.equal(layer.guarded(layer.stencil)[0], layer.stencil[0])
    y = torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        assert layer.diffuse(y).norm() <= y.norm() * (1 + 1e-5)
        assert free.diffuse(y).norm() > y.norm()


def test_circulant_guard_holds_the_bound():
    layer = CirculantReactionDiffusion(4, h=1.0, guard=True)
    with torch.no_grad():
        layer.stencil.mul_(10)
    y = torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        assert layer.diffuse(y).norm() <= y.norm() * (1 + 1e-5)
    assert layer.stability().h_max == pytest.approx(1.0, rel=1e-5)


def test_initial_stencils_are_stable_at_the_default_step():
    torch.manual_seed(0)
    for C in (32, 256):
        assert ExplicitReactionDiffusion(C).stability().h_max > 0.4
        assert CirculantReactionDiffusion(C).stability().h_max > 0.4
    assert ImplicitReactionDiffusion(8, h=1e6).stability().stable


def test_explicit_tends_to_implicit_as_h_tends_to_zero():
    y, errors = features(1, 3, 6, 6), []
    for h in (2.0**-8, 2.0**-9):
        torch.manual_seed(0)
        explicit = ExplicitReactionDiffusion(3, h=h, dtype=torch.float64).eval()
        implicit = ImplicitReactionDiffusion(3, h=h, dtype=torch.float64).eval()
        implicit.load_state_dict(explicit.state_dict())
        errors.append((explicit(y) - implicit(y)).abs().max().item())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)


# the cache


class Counting:
    """Counts how often a layer's spectrum is computed."""

    def __init__(self, monkeypatch, layer):
        import pdecnn.layers.reaction_diffusion as module

        self.calls = 0
        name = "circulant_symbol" if layer.circulant else "implicit_factors"
        inner = getattr(module, name)

        def counted(*args, **kwargs):
            self.calls += 1
            return inner(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)


@pytest.fixture(params=[ImplicitReactionDiffusion, CirculantReactionDiffusion])
def cached(request, monkeypatch):
    torch.manual_seed(0)
    layer = request.param(3, dtype=torch.float64).eval()
    return layer, Counting(monkeypatch, layer)


def check_fresh(layer, y):
    """The layer's answer is that of a layer that never cached."""
    twin = type(layer)(3, dtype=layer.stencil.dtype).eval()
    twin.load_state_dict(layer.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(layer(y), twin(y), rtol=0, atol=0)


@torch.no_grad()
def test_eval_computes_the_spectrum_once_for_a_size(cached):
    layer, counting = cached
    y = features(2, 3, 6, 6)
    layer(y), layer(y), layer(y[:1])
    assert counting.calls == 1
    layer(features(2, 3, 5, 6))
    assert counting.calls == 2


def test_training_and_gradients_never_use_the_cache(cached):
    layer, counting = cached
    y = features(2, 3, 6, 6)
    layer(y).sum().backward()
    layer(y)
    assert counting.calls == 2
    assert layer.stencil.grad is not None
    layer.train()
    with torch.no_grad():
        layer(y), layer(y)
    assert counting.calls == 4


@pytest.mark.parametrize("how", ["load_state_dict", "in place", "data", "optimiser", "to", "train", "new parameter"])
def test_every_change_of_the_stencil_is_seen(cached, how):
    layer, _ = cached
    y = features(2, 3, 6, 6)
    with torch.no_grad():
        before = layer(y)
    other = features(3, 3, 3, seed=5)
    if how == "load_state_dict":
        layer.load_state_dict({**layer.state_dict(), "stencil": other})
    elif how == "in place":
        with torch.no_grad():
            layer.stencil.copy_(other)
    elif how == "data":
        layer.stencil.data = other
    elif how == "optimiser":
        layer(y).square().sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.5).step()
    elif how == "to":
        layer.to(torch.float32)
        y = y.float()
    elif how == "train":
        layer.train()
        layer.stencil.data.copy_(other)  # not counted as a change by torch
        layer.eval()
    else:
        layer.stencil = nn.Parameter(other)
    check_fresh(layer, y)
    with torch.no_grad():
        if how != "to":
            assert (layer(y) - before).abs().max() > 1e-4


def test_copies_and_pickles_hold_no_spectrum(cached):
    layer, _ = cached
    y = features(2, 3, 6, 6)
    with torch.no_grad():
        layer(y)
        twin = copy.deepcopy(layer)
        assert twin._spectrum._value is None
        twin.stencil.add_(1)
        check_fresh(twin, y)
        check_fresh(layer, y)
    assert not [name for name in layer.state_dict() if "spectrum" in name]
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)


def test_inference_mode_after_no_grad_and_training_after_inference_mode():
    layer, y = ImplicitReactionDiffusion(3).eval(), torch.randn(2, 3, 6, 6)
    with torch.inference_mode():
        first = layer(y)
    with torch.no_grad():
        torch.testing.assert_close(layer(y), first)
    layer(y.clone().requires_grad_()).sum().backward()


# errors and the two convolutions


@pytest.mark.parametrize("make", STEPS)
def test_bad_arguments_are_named(make):
    with pytest.raises(ValueError, match="h \\(the time step\\) must be positive and finite, got h=0"):
        make(4, h=0)
    with pytest.raises(ValueError, match="kernel_size must be odd and positive, got 2"):
        make(4, kernel_size=2)
    with pytest.raises(ValueError, match="dims must be 1, 2 or 3, got 4"):
        make(4, dims=4)
    with pytest.raises(ValueError, match=r"ReactionDiffusion: .* of shape \(N, 4, H, W\), got \(1, 3"):
        make(4)(torch.randn(1, 3, 5, 5))


def test_circulant_is_periodic_only():
    with pytest.raises(ValueError, match="boundary must be 'periodic'"):
        CirculantReactionDiffusion(4, boundary="neumann")


def test_repr_names_the_arguments():
    assert "4, h=0.5, kernel_size=3, dims=2, boundary='periodic'" in repr(ImplicitReactionDiffusion(4, h=0.5))
    assert "implicit=True" in repr(CirculantReactionDiffusion(4, implicit=True))
    assert repr(LinearMixConv2d(4)) == "LinearMixConv2d(4, kernel_size=3, bias=False, boundary='dirichlet')"


@pytest.mark.parametrize("boundary", ["dirichlet", "periodic"])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_mix_is_a_full_convolution(boundary, bias):
    layer = LinearMixConv2d(5, bias=bias, boundary=boundary, dtype=torch.float64)
    if bias:
        nn.init.normal_(layer.bias)
    y = features(2, 5, 6, 7)
    torch.testing.assert_close(layer.as_conv2d()(y), layer(y), rtol=0, atol=1e-12)


def test_linear_mix_and_depthwise_errors():
    with pytest.raises(ValueError, match=r"expected features of shape \(N, 4, H, W\), got \(1, 3, 5, 5\)"):
        LinearMixConv2d(4)(torch.randn(1, 3, 5, 5))
    with pytest.raises(ValueError, match="LinearMixConv2d: kernel_size must be odd"):
        LinearMixConv2d(4, 4)
    with pytest.raises(ValueError, match="DepthwiseConv2d: kernel_size must be odd"):
        DepthwiseConv2d(4, 4)
    with pytest.raises(ValueError, match="has no mirrored padding"):
        LinearMixConv2d(4, boundary="neumann").as_conv2d()


@pytest.mark.parametrize("bias", [False, True])
def test_depthwise_is_the_grouped_convolution(bias):
    layer = DepthwiseConv2d(4, 5, bias=bias, dtype=torch.float64)
    if bias:
        nn.init.normal_(layer.bias)
    y = features(2, 4, 6, 7)
    expected = nn.functional.conv2d(y, layer.stencil[:, None], layer.bias, padding=2, groups=4)
    torch.testing.assert_close(layer(y), expected, rtol=0, atol=1e-12)
