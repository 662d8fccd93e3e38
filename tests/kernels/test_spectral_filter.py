"""Every way to filter against the definition: values, first and second derivatives, and awkward inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn import functional, reference
from pdecnn.kernels.native import Library, load
from pdecnn.kernels.spectral_filter import choice
from pdecnn.kernels.spectral_filter.methods import COSINE, METHODS
from pdecnn.kernels.spectral_filter.op import _adjoint as torch_adjoint

NATIVE = isinstance(load(), Library)
BOUNDARIES = ["periodic", "neumann"]


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expected_gradients(grad, v, g, boundary):
    v, g = v.clone().requires_grad_(), g.clone().requires_grad_()
    return torch.autograd.grad(reference.spectral_filter(v, g, boundary), (v, g), grad)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), H=st.integers(1, 20), W=st.integers(1, 20), boundary=st.sampled_from(BOUNDARIES))
def test_every_method_is_the_definition(seed, H, W, boundary):
    v, g, grad = randn(2, 3, H, W, seed=seed), randn(3, H, W, seed=seed + 1), randn(2, 3, H, W, seed=seed + 2)
    expected, gradients = reference.spectral_filter(v, g, boundary), expected_gradients(grad, v, g, boundary)
    methods = METHODS.values() if boundary == "periodic" else [COSINE]
    results = [(m.filter(v, g), m.adjoint(grad, v, g)) for m in methods]
    adjoint = torch.ops.pdecnn.spectral_filter_backward.default
    results.append((functional.spectral_filter(v, g, boundary), adjoint(grad, v, g, boundary)))
    for out, (grad_v, grad_g) in results:
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(grad_v, gradients[0], rtol=0, atol=1e-10)
        torch.testing.assert_close(grad_g, gradients[1], rtol=0, atol=1e-10)


@pytest.mark.skipif(not NATIVE, reason="no native library here")
@pytest.mark.parametrize("size", [(8, 8), (16, 16), (32, 32), (64, 64), (33, 17), (1, 40), (64,), (5,)])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_native_kernel_is_the_definition_at_its_sizes(size, boundary, monkeypatch):
    monkeypatch.setattr(choice, "_fastest", lambda side, native: "native" if native else "fft")
    v, g, grad = randn(3, 5, *size), randn(5, *size, seed=1), randn(3, 5, *size, seed=2)
    expected, gradients = reference.spectral_filter(v, g, boundary), expected_gradients(grad, v, g, boundary)
    for dtype, atol in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        q = [t.to(dtype) for t in (v, g, grad)]
        out = functional.spectral_filter(q[0], q[1], boundary)
        grads = torch.ops.pdecnn.spectral_filter_backward(q[2], q[0], q[1], boundary)
        for mine, theirs in ((out, expected), (grads[0], gradients[0]), (grads[1], gradients[1])):
            assert mine.dtype == dtype
            torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("size", [(4,), (3, 5), (4, 4), (2, 3, 4)])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_gradcheck_twice(size, boundary):
    v, g = randn(2, 2, *size).requires_grad_(), randn(2, *size, seed=1).requires_grad_()
    run = torch.ops.pdecnn.spectral_filter.default
    assert torch.autograd.gradcheck(lambda v, g: run(v, g, boundary), (v, g))
    assert torch.autograd.gradgradcheck(lambda v, g: run(v, g, boundary), (v, g))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype):
    v = randn(2, 3, 8, 8, dtype=dtype).requires_grad_()
    g = randn(3, 8, 8, seed=1, dtype=torch.float32).requires_grad_()
    torch.library.opcheck(torch.ops.pdecnn.spectral_filter.default, (v, g, "periodic"))
    torch.library.opcheck(torch.ops.pdecnn.spectral_filter_backward.default, (v, v, g, "neumann"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(8, 8), (100, 100)])
def test_half_precision_is_computed_in_float32(dtype, size):
    v, k = randn(2, 3, *size, dtype=dtype), randn(3, 3, 3, seed=1, dtype=torch.float32)
    out = functional.implicit_diffusion(v, k, 0.5)
    exact = reference.implicit_diffusion(v.double(), k.double(), 0.5)
    assert out.dtype == dtype
    assert (out.double() - exact).abs().max() <= 0.51 * torch.finfo(dtype).eps * exact.abs().max() + 1e-5


def test_any_layout_and_an_empty_batch():
    g = randn(6, 8, 8, dtype=torch.float32)
    v = randn(4, 6, 8, 8, dtype=torch.float32)
    expected = functional.spectral_filter(v, g)
    torch.testing.assert_close(functional.spectral_filter(v.to(memory_format=torch.channels_last), g), expected)
    wide = torch.zeros(4, 6, 8, 11)
    wide[..., 3:] = v
    torch.testing.assert_close(functional.spectral_filter(wide[..., 3:], g), expected)
    assert functional.spectral_filter(v[:0], g).shape == (0, 6, 8, 8)


@pytest.mark.parametrize("size", [(8, 8), (24, 24), (17, 30)])
def test_same_bits_for_any_number_of_threads(size):
    v, g = randn(7, 5, *size, dtype=torch.float32), randn(5, *size, seed=1, dtype=torch.float32)
    if choice.fastest(size, native=True) != "native":
        pytest.skip("the FFT answers here")
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            gradients = torch.ops.pdecnn.spectral_filter_backward(v, v, g, "periodic")
            results.append((functional.spectral_filter(v, g), *gradients))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_compiles_whole_with_gradients():
    v, k = randn(2, 3, 8, 8, dtype=torch.float32).requires_grad_(), randn(3, 3, 3, dtype=torch.float32).requires_grad_()

    def loss(v, k):
        return functional.explicit_diffusion(functional.implicit_diffusion(v, k, 0.3), k, 0.1).square().sum()

    expected = torch.autograd.grad(loss(v, k), (v, k))
    got = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(v, k), (v, k))
    torch.compiler.reset()
    torch.testing.assert_close(got, expected)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    m=st.sampled_from([1, 3, 5]),
    boundary=st.sampled_from(BOUNDARIES),
)
def test_symbol_by_taps_is_the_symbol_by_fft(seed, size, m, boundary):
    k = randn(2, *[m] * len(size), seed=seed)
    torch.testing.assert_close(
        functional.symbol(k, size, boundary), reference.symbol(k, size, boundary), rtol=1e-10, atol=1e-10
    )


def test_circulant_filter_is_the_definition():
    v, g = randn(2, 5, 6, 7).requires_grad_(), randn(5, 6, 7, seed=1).requires_grad_()
    torch.testing.assert_close(functional.circulant_filter(v, g), reference.circulant_filter(v, g), rtol=0, atol=1e-10)
    grad = randn(2, 5, 6, 7, seed=2)
    torch.testing.assert_close(
        torch.autograd.grad(functional.circulant_filter(v, g), (v, g), grad),
        torch.autograd.grad(reference.circulant_filter(v, g), (v, g), grad),
        rtol=0,
        atol=1e-10,
    )


def test_frozen_factors_save_nothing_and_need_no_adjoint():
    v, g = randn(2, 3, 8, 8).requires_grad_(), randn(3, 8, 8, seed=1)
    out = functional.spectral_filter(v, g)
    grad = randn(2, 3, 8, 8, seed=2)
    (grad_v,) = torch.autograd.grad(out, v, grad)
    torch.testing.assert_close(grad_v, torch_adjoint(grad, v.detach(), g, "periodic")[0])


def test_choice_comes_from_the_measured_table():
    table = choice.table()
    assert {8, 16, 32, 64} <= set(table)
    for side, times in table.items():
        best = min((ms, method) for method, ms in times.items() if method != "native")[1]
        assert choice.fastest((side, side), native=False) == best
    assert choice.fastest((8, 8, 8), native=True) == "fft"
    assert choice.fastest((4096, 4096), native=True) == choice.fastest((max(table), max(table)), native=True)


def test_mismatched_factors_are_refused():
    with pytest.raises(ValueError, match=r"g of shape \(C, ...\), got v \(1, 2, 4, 4\) and g \(3, 4, 4\)"):
        functional.spectral_filter(randn(1, 2, 4, 4), randn(3, 4, 4))
    with pytest.raises(ValueError, match="Use boundary='periodic' or 'neumann'"):
        functional.implicit_diffusion(randn(1, 2, 4, 4), randn(2, 3, 3), 0.1, "dirichlet")
    with pytest.raises(ValueError, match="must be positive and finite, got h=0"):
        functional.implicit_diffusion(randn(1, 2, 4, 4), randn(2, 3, 3), 0)
