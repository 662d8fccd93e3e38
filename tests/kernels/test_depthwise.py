"""The depth-wise kernel against the definition: values, derivatives, and awkward inputs."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn import functional, reference
from pdecnn.kernels.depthwise.op import _stencil_gradient_reference

BOUNDARIES = ["periodic", "neumann", "dirichlet"]


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.lists(st.integers(1, 20), min_size=1, max_size=2) | st.lists(st.integers(1, 4), min_size=3, max_size=3),
    m=st.sampled_from([1, 3, 5, 7]),
    boundary=st.sampled_from(BOUNDARIES),
)
def test_values_and_gradients_are_those_of_the_definition(seed, size, m, boundary):
    y, k = randn(2, 3, *size, seed=seed).requires_grad_(), randn(3, *[m] * len(size), seed=seed + 1).requires_grad_()
    grad = randn(2, 3, *size, seed=seed + 2)
    results = []
    for room in (reference, functional):
        out = room.depthwise(y, k, boundary)
        results.append((out, *torch.autograd.grad(out, (y, k), grad)))
        results[-1] += (room.depthwise_adjoint(y, k, boundary), room.diffusion(y, k, boundary))
        results[-1] += (room.explicit_diffusion(y, k, 0.3, boundary),)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-10)
    by_taps = _stencil_gradient_reference(grad, y.detach(), k.shape[1:], boundary)
    torch.testing.assert_close(by_taps, results[0][2], rtol=0, atol=1e-10)


def test_rectangular_stencils():
    y, k = randn(2, 3, 9, 21), randn(3, 3, 7, seed=1)
    torch.testing.assert_close(functional.depthwise(y, k), reference.depthwise(y, k), rtol=0, atol=1e-12)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_gradcheck_twice(boundary):
    y, k = randn(2, 2, 3, 4).requires_grad_(), randn(2, 3, 3, seed=1).requires_grad_()
    run = torch.ops.pdecnn.depthwise.default
    assert torch.autograd.gradcheck(lambda y, k: run(y, k, boundary), (y, k))
    assert torch.autograd.gradgradcheck(lambda y, k: run(y, k, boundary), (y, k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype):
    y, k = randn(2, 3, 6, 9, dtype=dtype).requires_grad_(), randn(3, 5, 5, dtype=torch.float32).requires_grad_()
    torch.library.opcheck(torch.ops.pdecnn.depthwise.default, (y, k, "periodic"))
    torch.library.opcheck(torch.ops.pdecnn.depthwise_stencil_gradient.default, (y, y, [3, 3], "dirichlet"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_near_the_exact_result(dtype):
    y, k = randn(2, 3, 16, 33, dtype=dtype), randn(3, 5, 5, seed=1, dtype=dtype)
    exact = reference.depthwise(y.double(), k.double())
    out = functional.depthwise(y, k)
    assert out.dtype == dtype
    scale = reference.depthwise(y.double().abs(), k.double().abs()).max()
    assert (out.double() - exact).abs().max() <= 2 * torch.finfo(dtype).eps * scale


def test_any_layout_and_an_empty_batch():
    y, k = randn(4, 6, 8, 8, dtype=torch.float32), randn(6, 3, 3, dtype=torch.float32)
    expected = functional.depthwise(y, k)
    torch.testing.assert_close(functional.depthwise(y.to(memory_format=torch.channels_last), k), expected)
    torch.testing.assert_close(functional.depthwise(y.repeat(1, 1, 1, 2)[..., :8], k), expected)
    assert functional.depthwise(y[:0], k).shape == (0, 6, 8, 8)
    gradient = torch.ops.pdecnn.depthwise_stencil_gradient(y[:0], y[:0], [3, 3], "periodic")
    assert torch.equal(gradient, torch.zeros(6, 3, 3))


def test_infinite_neighbours_beyond_a_zero_border_do_not_leak():
    y = torch.full((1, 1, 3, 3), float("inf"))
    k = torch.zeros(1, 3, 3)
    k[0, 1, 1] = 1
    for room in (reference, functional):
        assert torch.isnan(room.depthwise(y, k, "dirichlet")).sum() == 9  # 0 * inf inside
    one = torch.ones(1, 1, 3, 3)
    assert functional.depthwise(one, torch.ones(1, 3, 3), "dirichlet")[0, 0, 0].tolist() == [4.0, 6.0, 4.0]


def test_linear_mix_is_the_definition():
    y, k, M = randn(2, 4, 5, 6), randn(4, 3, 3, seed=1), randn(4, 4, seed=2)
    for name in ("linear_mix", "linear_mix_adjoint"):
        mine, theirs = (getattr(room, name)(y, k, M) for room in (functional, reference))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_unequal_channels_are_refused():
    with pytest.raises(ValueError, match=r"expected features of shape \(N, 3, H, W\), got \(1, 2, 4, 4\)"):
        functional.depthwise(randn(1, 2, 4, 4), randn(3, 3, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("boundary", ["periodic", "neumann", "dirichlet"])
def test_same_bits_for_any_number_of_threads(boundary, dtype):
    y, k = torch.randn(5, 37, 17, 19, dtype=dtype), torch.randn(37, 3, 3, dtype=dtype)
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3, 8):
            torch.set_num_threads(n)
            leaves = [q.clone().requires_grad_() for q in (y, k)]
            out = functional.depthwise(*leaves, boundary)
            results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("boundary", ["periodic", "neumann", "dirichlet"])
def test_transforms_of_torch_func_are_those_of_the_reference(boundary):
    y, k = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(3, 3, 3, dtype=torch.float64)

    def results(room):
        def loss(y):
            return room.depthwise(y, k, boundary).pow(3).sum()

        tangent = torch.func.jvp(lambda y, k: room.depthwise(y, k, boundary), (y, k), (y.cos(), k.cos()))[1]
        return tangent, torch.func.vmap(torch.func.grad(loss))(torch.stack([y, -y])), torch.func.hessian(loss)(y[:1])

    torch.testing.assert_close(results(functional), results(reference), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "y, k, message",
    [
        ((1, 2, 4, 4), (2, 3), "with k of shape (2, 3) expected features of shape (N, 2, W), got (1, 2, 4, 4)."),
        ((1, 2, 4, 4), (1, 3, 3), "expected features of shape (N, 1, H, W), got (1, 2, 4, 4)."),
        ((1, 2, 4, 4), (2, 2, 3), "stencils must have an odd size, to have a centre; got k of shape (2, 2, 3)."),
        ((1, 2, 0, 4), (2, 3, 3), "features of shape (1, 2, 0, 4) are empty; only the batch may be."),
    ],
)
def test_the_operators_check_for_themselves(y, k, message):
    y, k = torch.zeros(y), torch.zeros(k)
    with pytest.raises(ValueError, match=re.escape(message)):
        torch.ops.pdecnn.depthwise(y, k, "periodic")
    with pytest.raises(ValueError, match="depthwise"):
        torch.ops.pdecnn.depthwise_stencil_gradient(y[:, :1], y, list(k.shape[1:]), "periodic")
    with pytest.raises(TypeError, match="expected floating-point tensors"):
        torch.ops.pdecnn.depthwise(torch.zeros(1, 2, 4, 4), torch.zeros(2, 3, 3, dtype=torch.int32), "periodic")
