"""Implicit diffusion: against the linear system that it solves, and by the laws of heat."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pdecnn
from pdecnn.layers.implicit_diffusion import ImplicitDiffusion

SIZES = (5, 6, 4)


def drawn(axes, groups, share, seed):
    torch.manual_seed(seed)
    layer = ImplicitDiffusion(groups * share, axes=axes, share=share, dtype=torch.float64)
    torch.nn.init.normal_(layer.root)
    return layer, torch.randn(2, groups * share, *SIZES[:axes], dtype=torch.float64)


def left_side(layer, h):
    """`h - sum D_i d_ii h` with differences; beyond the border stands the pixel before it."""
    out = h.clone()
    for i in range(layer.axes):
        D = layer.root[i].square().repeat_interleave(layer.share).view(1, -1, *[1] * layer.axes)
        n = h.shape[i + 2]
        after = h.index_select(i + 2, torch.arange(1, n + 1).clamp(max=n - 1))
        before = h.index_select(i + 2, torch.arange(-1, n - 1).clamp(min=0))
        out = out - D * (after - 2 * h + before)
    return out


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_it_solves_its_system(axes, groups, share, seed):
    layer, h = drawn(axes, groups, share, seed)
    torch.testing.assert_close(left_side(layer, layer(h)), h, rtol=1e-9, atol=1e-9)


@given(st.integers(1, 3), st.integers(0, 10**6))
@settings(deadline=None, max_examples=20)
def test_heat_is_kept_and_no_pixel_becomes_hotter_or_colder_than_all_were(axes, seed):
    layer, h = drawn(axes, 2, 1, seed)
    out, space = layer(h), tuple(range(2, 2 + axes))
    torch.testing.assert_close(out.mean(space), h.mean(space))
    assert (out.amax(space) <= h.amax(space) + 1e-12).all()
    assert (out.amin(space) >= h.amin(space) - 1e-12).all()


def test_gradients():
    layer, h = drawn(2, 2, 2, 0)
    run = lambda h, root: torch.func.functional_call(layer, {"root": root}, (h,))  # noqa: E731
    assert torch.autograd.gradcheck(run, (h.requires_grad_(), layer.root))


def test_factors_are_kept_until_the_weights_change():
    layer, h = drawn(2, 2, 1, 0)
    layer.eval()
    with torch.no_grad():
        first = layer(h)
        assert layer.factors(h.shape[2:]) is layer.factors(h.shape[2:])
        layer.root.mul_(3)
        assert not torch.allclose(layer(h), first)


def test_it_is_exported(tmp_path):
    layer = torch.nn.Sequential(ImplicitDiffusion(3), torch.nn.ReLU()).eval()
    h = torch.randn(2, 3, 8, 7)
    report = pdecnn.export(layer, tmp_path / "heat.onnx", h)
    assert report.agreement.max_error < 1e-5


@pytest.mark.parametrize("options", [{"axes": 0}, {"share": 2}])
def test_what_cannot_be_is_refused(options):
    with pytest.raises(ValueError, match="ImplicitDiffusion: " + next(iter(options))):
        ImplicitDiffusion(3, **options)
