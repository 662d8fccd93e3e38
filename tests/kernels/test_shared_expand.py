"""The operators of shared stencils against plain torch, on every backend that is there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn import functional as fast
from pdecnn import kernels
from pdecnn import reference as reference
from pdecnn.kernels.shared_expand import op
from pdecnn.symmetry import Group
from pdecnn.testing import assert_equivariant, mixing

NAMES = ["shared_expand", "shared_expand_moments", "shared_expand_product"]


def inputs(name, N, C, H, W, f, stride, dtype, seed):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    u, stencils = random(N, C, H, W), random(f, 1, 3, 3)
    if name != "shared_expand_product":
        return u, stencils
    shape = op.output_shape(u, stencils, stride)
    return u, stencils, random(shape[1]), random(shape[1]), random(*shape)


def values_and_gradients(function, tensors, stride, seed):
    out = function(*tensors, stride)
    out = out if isinstance(out, tuple) else (out,)
    generator = torch.Generator().manual_seed(seed)
    grads = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in out]
    return (*out, *torch.autograd.grad(out, tensors, grads))


shapes = {
    "N": st.integers(1, 3),
    "C": st.integers(1, 4),
    "H": st.integers(1, 20),
    "W": st.integers(1, 40),
    "f": st.integers(1, 8),
    "stride": st.sampled_from([1, 2]),
    "seed": st.integers(0, 2**31),
}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(**shapes)
def test_values_and_gradients_agree_with_the_definition(name, N, C, H, W, f, stride, seed):
    tensors = inputs(name, N, C, H, W, f, stride, torch.float64, seed)
    ours = values_and_gradients(getattr(fast, name), tensors, stride, seed)
    theirs = values_and_gradients(getattr(reference, name), tensors, stride, seed)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(2, 3, 56, 56), (2, 3, 28, 28), (1, 2, 3, 700)])
@pytest.mark.parametrize("stride", [1, 2])
def test_float32_is_as_near_to_float64_as_torch_is(name, shape, stride):
    tensors = inputs(name, *shape, 4, stride, torch.float32, 0)
    wide = tuple(q.detach().double().requires_grad_() for q in tensors)
    exact = values_and_gradients(getattr(reference, name), wide, stride, 1)
    ours = values_and_gradients(getattr(fast, name), tensors, stride, 1)
    theirs = values_and_gradients(getattr(reference, name), tensors, stride, 1)
    for a, b, c in zip(ours, theirs, exact, strict=True):
        scale = c.abs().max()
        assert (a - c).abs().max() <= 3 * (b - c).abs().max() + 4e-6 * scale


def test_moments_keep_their_digits_far_from_zero():
    """The sum of squares minus the square of the sum would lose all of them here."""
    u = 1000 + torch.randn(4, 2, 30, 30, generator=torch.Generator().manual_seed(0))
    stencil = torch.zeros(1, 1, 3, 3)
    stencil[0, 0, 1, 1] = 1
    mean, var = fast.shared_expand_moments(u, stencil)
    torch.testing.assert_close(var.double(), u.double().var((0, 2, 3), correction=0), rtol=1e-4, atol=0)
    torch.testing.assert_close(mean.double(), u.double().mean((0, 2, 3)), rtol=1e-6, atol=0)


@settings(max_examples=20, deadline=None)
@given(C=st.integers(1, 5), f=st.integers(1, 4), stride=st.sampled_from([1, 2]), seed=st.integers(0, 2**31))
def test_the_expansion_commutes_with_every_mixing_also_at_the_border(C, f, stride, seed):
    generator = torch.Generator().manual_seed(seed)
    T = Group.GL.sample(C, generator)
    u = torch.randn(2, C, 5, 6, generator=generator, dtype=torch.float64)
    stencils = torch.randn(f, 1, 3, 3, generator=generator, dtype=torch.float64)

    def mix_groups(d):
        return mixing(T)(d.unflatten(1, (C, f))).flatten(1, 2)

    assert_equivariant(lambda v: fast.shared_expand(v, stencils, stride), u, mixing(T), mix_groups, rtol=1e-12)


def test_the_derivative_of_a_ramp():
    ramp = 3 * torch.arange(6.0).expand(1, 2, 4, 6)
    d_dx = torch.tensor([[0.0, 0, 0], [-0.5, 0, 0.5], [0, 0, 0]])
    d = fast.shared_expand(ramp, torch.stack([d_dx, d_dx.T]).unsqueeze(1))
    assert d[:, 0::2, :, 1:-1].unique().tolist() == [3.0]
    assert d[:, 1::2, 1:-1].unique().tolist() == [0.0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stride", [1, 2])
def test_opcheck(name, stride):
    tensors = inputs(name, 2, 3, 5, 6, 2, stride, torch.float64, 0)
    torch.library.opcheck(getattr(torch.ops.pdecnn, name).default, (*tensors, stride))


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    tensors = inputs(name, 2, 2, 4, 3, 2, 2, torch.float64, 3)
    assert torch.autograd.gradcheck(lambda *q: getattr(fast, name)(*q, 2), tensors)


def test_same_bits_on_any_number_of_threads():
    tensors = inputs("shared_expand_product", 4, 9, 20, 20, 4, 1, torch.float32, 0)
    before, results = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append(values_and_gradients(fast.shared_expand_product, tensors, 1, 0))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("layout", ["channels_last", "sliced", "empty"])
def test_awkward_inputs(layout):
    tensors = [q.detach() for q in inputs("shared_expand_product", 2, 3, 7, 5, 4, 1, torch.float32, 0)]
    u = tensors[0]
    if layout == "channels_last":
        u = u.to(memory_format=torch.channels_last)
    elif layout == "sliced":
        u = torch.cat([u, u], 3)[..., ::2][..., :5]
    else:
        u, tensors[4] = u[:0], tensors[4][:0]
    ours = fast.shared_expand_product(u, *tensors[1:])
    torch.testing.assert_close(ours, reference.shared_expand_product(u, *tensors[1:]), rtol=1e-4, atol=1e-5)


def test_half_precision_goes_to_the_reference():
    u, w = torch.randn(1, 2, 5, 5).bfloat16(), torch.randn(3, 1, 3, 3).bfloat16()
    assert torch.equal(fast.shared_expand(u, w), reference.shared_expand(u, w))


def test_second_derivatives_are_refused_aloud():
    u, w = inputs("shared_expand", 1, 1, 3, 3, 1, 1, torch.float64, 0)
    (grad,) = torch.autograd.grad(fast.shared_expand(u, w).square().sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again by the fused kernel"):
        grad.sum().backward()


def test_the_kernel_is_listed():
    assert any(row.op == "shared_expand" for row in kernels.available())


def test_refusals():
    u, w = torch.zeros(1, 2, 4, 4), torch.zeros(3, 1, 3, 3)
    for functions in (fast, reference):
        with pytest.raises(ValueError, match=r"shared_expand: expected u of shape \(N, C, H, W\), got \(2, 4, 4\)"):
            functions.shared_expand(u[0], w)
        with pytest.raises(ValueError, match=r"expected stencils of shape \(f, 1, 3, 3\), got \(3, 3, 3\)"):
            functions.shared_expand(u, w[:, 0])
        with pytest.raises(ValueError, match="stride must be 1 or 2, got 3"):
            functions.shared_expand(u, w, 3)
        ones = torch.ones(6)
        with pytest.raises(ValueError, match=r"expected c of shape \(1, 6, 4, 4\) like the expansion"):
            functions.shared_expand_product(u, w, ones, ones, u)
        with pytest.raises(ValueError, match=r"expected shift of shape \(6,\), got \(2,\)"):
            functions.shared_expand_product(u, w, ones, ones[:2], torch.zeros(1, 6, 4, 4))
