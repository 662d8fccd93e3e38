"""The low-cost operators against dense matrices, and the laws of the two time steps."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn import reference
from pdecnn.reference.depthwise import extend, reflected
from pdecnn.reference.spectral import cosine_matrix, embed, hartley_matrix

TOL = {"rtol": 0, "atol": 1e-10}
LAPLACIAN = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=torch.float64)
SIZES = [(4, 4), (5, 7), (1, 6), (2, 2), (1, 1), (3, 2), (6, 3), (8, 5)]


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense_depthwise(k, size, boundary):
    """The matrix (pixels, pixels) of one stencil, tap by tap."""
    H, W = size
    A = torch.zeros(H * W, H * W, dtype=torch.float64)

    def place(i, n):
        if boundary == "periodic":
            return i % n
        if boundary == "neumann":
            i %= 2 * n
            return i if i < n else 2 * n - 1 - i
        return i if 0 <= i < n else None

    R, S = k.shape[0] // 2, k.shape[1] // 2
    for r in range(H):
        for s in range(W):
            for p in range(k.shape[0]):
                for q in range(k.shape[1]):
                    i, j = place(r + p - R, H), place(s + q - S, W)
                    if i is not None and j is not None:
                        A[r * W + s, i * W + j] += k[p, q]
    return A


def dense_diffusion(k, size, boundary):
    """`K^T K` of one channel; Neumann as the energy of the mirrored image, by its definition."""
    if boundary != "neumann":
        K = dense_depthwise(k, size, boundary)
        return K.T @ K
    H, W = size
    E = torch.zeros(4 * H * W, H * W, dtype=torch.float64)
    for i in range(2 * H):
        for j in range(2 * W):
            E[i * 2 * W + j, min(i, 2 * H - 1 - i) * W + min(j, 2 * W - 1 - j)] = 1
    K = dense_depthwise(k, (2 * H, 2 * W), "periodic")
    return E.T @ K.T @ K @ E / 4


def apply(A, y):
    return torch.stack([torch.einsum("ij,nj->ni", a, y[:, c].flatten(1)) for c, a in enumerate(A)], 1).view_as(y)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("boundary", ["periodic", "neumann", "dirichlet"])
@pytest.mark.parametrize("m", [1, 3, 5])
def test_depthwise_is_its_matrix_and_the_adjoint_is_the_transpose(size, boundary, m):
    y, k = randn(2, 3, *size), randn(3, m, m, seed=1)
    A = [dense_depthwise(k[c], size, boundary) for c in range(3)]
    torch.testing.assert_close(reference.depthwise(y, k, boundary), apply(A, y), **TOL)
    torch.testing.assert_close(reference.depthwise_adjoint(y, k, boundary), apply([a.T for a in A], y), **TOL)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("boundary", ["periodic", "neumann", "dirichlet"])
def test_diffusion_is_one_stencil(size, boundary):
    y, k = randn(2, 3, *size), randn(3, 3, 3, seed=1)
    A = [dense_diffusion(k[c], size, boundary) for c in range(3)]
    torch.testing.assert_close(reference.diffusion(y, k, boundary), apply(A, y), **TOL)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("h", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("boundary", ["periodic", "neumann"])
def test_implicit_solve_is_the_dense_solve(size, h, boundary):
    v, k = randn(2, 3, *size), randn(3, 3, 3, seed=1)
    n = size[0] * size[1]
    A = [torch.linalg.inv(torch.eye(n) + h * dense_diffusion(k[c], size, boundary)) for c in range(3)]
    torch.testing.assert_close(reference.implicit_diffusion(v, k, h, boundary), apply(A, v), **TOL)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("boundary", ["periodic", "neumann"])
def test_symbol_holds_the_eigenvalues(size, boundary):
    k = randn(2, 3, 3)
    for c in range(2):
        expected = torch.linalg.eigvalsh(dense_diffusion(k[c], size, boundary))
        torch.testing.assert_close(reference.symbol(k, size, boundary)[c].flatten().sort().values, expected, **TOL)


def test_with_zero_padding_one_pass_is_right_inside_and_wrong_at_the_border():
    y, k = randn(1, 2, 8, 8), randn(2, 3, 3, seed=1)
    error = (
        reference.depthwise(y, reference.autocorrelation(k), "dirichlet") - reference.diffusion(y, k, "dirichlet")
    ).abs()
    assert error[..., 1:-1, 1:-1].max() < 1e-12
    assert error.max() > 0.1


def test_autocorrelation_is_point_symmetric_but_not_axis_symmetric():
    a = reference.autocorrelation(randn(4, 3, 3))
    assert a.shape == (4, 5, 5)
    torch.testing.assert_close(a, a.flip(1, 2))
    assert (a - a.flip(2)).abs().max() > 0.1
    torch.testing.assert_close(reflected(a), reflected(a).flip(2))


@pytest.mark.parametrize("size", [(4, 4), (5, 3), (1, 4), (2, 2)])
def test_circulant_is_the_full_convolution_of_its_kernel(size):
    C = 4
    y, w = randn(2, C, *size), randn(C, 3, 3, seed=1)
    W = reference.circulant_kernel(w)
    assert torch.equal(W[0, 3], w[3])
    assert torch.equal(W[1, 0], w[3])
    direct = torch.nn.functional.conv2d(extend(y, [1, 1], reference.Boundary("periodic")), W)
    torch.testing.assert_close(reference.circulant(y, w), direct, **TOL)
    transposed = torch.nn.functional.conv2d(
        extend(y, [1, 1], reference.Boundary("periodic")), W.transpose(0, 1).flip(2, 3)
    )
    torch.testing.assert_close(reference.circulant_adjoint(y, w), transposed, **TOL)
    torch.testing.assert_close(
        reference.circulant_diffusion(y, w), reference.circulant_adjoint(reference.circulant(y, w), w), **TOL
    )

    n = C * size[0] * size[1]
    basis = torch.eye(n, dtype=torch.float64).view(n, C, *size)
    K = reference.circulant(basis, w).view(n, n).T
    eigenvalues = torch.linalg.eigvalsh(K.T @ K)
    torch.testing.assert_close(reference.circulant_symbol(w, size).flatten().sort().values, eigenvalues, **TOL)
    solved = torch.linalg.solve(torch.eye(n) + 0.3 * K.T @ K, y.flatten(1).T).T.view_as(y)
    torch.testing.assert_close(reference.circulant_implicit_diffusion(y, w, 0.3), solved, **TOL)


def test_linear_mix_is_the_full_convolution_of_its_kernel():
    y, k, M = randn(2, 4, 5, 6), randn(4, 3, 3, seed=1), randn(4, 4, seed=2)
    kernel = reference.linear_mix_kernel(k, M)
    torch.testing.assert_close(reference.linear_mix(y, k, M), torch.nn.functional.conv2d(y, kernel, padding=1), **TOL)
    z = randn(2, 4, 5, 6, seed=3)
    left, right = (reference.linear_mix(y, k, M) * z).sum(), (y * reference.linear_mix_adjoint(z, k, M)).sum()
    torch.testing.assert_close(left, right, **TOL)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    m=st.sampled_from([1, 3, 5]),
    h=st.floats(1e-3, 1e3),
    boundary=st.sampled_from(["periodic", "neumann"]),
)
def test_implicit_solve_inverts_the_operator_in_any_dimension(seed, size, m, h, boundary):
    v, k = randn(2, 2, *size, seed=seed), randn(2, *[m] * len(size), seed=seed + 1)
    solved = reference.implicit_diffusion(v, k, h, boundary)
    back = solved + h * reference.diffusion(solved, k, boundary)
    torch.testing.assert_close(back, v, rtol=0, atol=1e-12 * (1 + h * reference.symbol(k, size, boundary).max().item()))
    assert solved.norm() <= v.norm() * (1 + 1e-12)  # never expands


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), H=st.integers(1, 9), W=st.integers(1, 9))
def test_hartley_form_is_the_fourier_form(seed, H, W):
    v, g = randn(2, 3, H, W, seed=seed), randn(3, H, W, seed=seed + 1)
    torch.testing.assert_close(reference.hartley_filter(v, g), reference.spectral_filter(v, g), **TOL)


def test_matrices_are_orthonormal():
    for n in (1, 2, 5, 8):
        eye = torch.eye(n, dtype=torch.float64)
        H, D = hartley_matrix(n, torch.float64), cosine_matrix(n, torch.float64)
        torch.testing.assert_close(H @ H, eye, **TOL)
        torch.testing.assert_close(D @ D.T, eye, **TOL)


def test_filter_reads_only_the_point_symmetric_part():
    v, g = randn(1, 2, 5, 6), randn(2, 5, 6, seed=1)
    turned = g.flip(1, 2).roll((1, 1), (1, 2))
    torch.testing.assert_close(reference.spectral_filter(v, g), reference.spectral_filter(v, turned), **TOL)


def test_stencils_wrap_on_grids_smaller_than_they_are():
    grid = embed(torch.arange(1.0, 10).view(1, 3, 3), (2, 2), centred=True)
    assert grid.tolist() == [[[5.0, 10.0], [10.0, 20.0]]]


# stability


def test_explicit_bound_is_tight():
    k = randn(3, 3, 3)
    bound = reference.stability(k, 1.0, implicit=False, size=(8, 8)).h_max
    A = [dense_diffusion(k[c], (8, 8), "periodic") for c in range(3)]

    def radius(h):
        return max(torch.linalg.eigvalsh(torch.eye(64) - h * a).abs().max().item() for a in A)

    assert radius(bound) == pytest.approx(1, abs=1e-12)
    assert radius(1.001 * bound) == pytest.approx(1.002, abs=1e-10)
    report = reference.stability(k, 1.001 * bound, implicit=False, size=(8, 8))
    assert not report.stable
    assert report.spectral_radius == pytest.approx(radius(1.001 * bound))
    assert report.h_monotone == bound / 2


@pytest.mark.parametrize("h", [0.1, 10.0])
def test_implicit_radius_is_one_exactly_where_the_symbol_vanishes(h):
    """The paper claims a radius below 1 for all weights; every stencil that sums to zero is a counterexample."""
    delta = torch.zeros(3, 3, dtype=torch.float64)
    delta[1, 1] = 1
    sobel = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]], dtype=torch.float64)
    for k, strict in ((LAPLACIAN, False), (sobel, False), (torch.zeros(3, 3).double(), False), (delta, True)):
        A = torch.linalg.inv(torch.eye(36) + h * dense_diffusion(k, (6, 6), "periodic"))
        radius = torch.linalg.eigvalsh(A).abs().max().item()
        report = reference.stability(k[None], h, implicit=True, size=(6, 6))
        assert report.spectral_radius == pytest.approx(radius, abs=1e-12)
        assert report.stable
        assert report.h_max == math.inf
        if strict:
            assert radius == pytest.approx(1 / (1 + h), abs=1e-12)
        else:
            assert radius == pytest.approx(1, abs=1e-12)


def test_bound_of_any_grid_holds_for_zero_padding_too():
    k = randn(1, 3, 3)
    K = dense_depthwise(k[0], (9, 9), "dirichlet")
    sup = reference.stability(k, 1.0, implicit=False).max_symbol
    assert torch.linalg.matrix_norm(K, 2).item() ** 2 <= sup
    assert sup <= k.abs().sum().item() ** 2 <= 9 * k.square().sum().item()


def test_explicit_and_implicit_step_agree_to_second_order():
    y, r, k = randn(1, 2, 6, 5), randn(1, 2, 6, 5, seed=2), randn(2, 3, 3, seed=1)
    hs = [2.0**-i for i in range(7, 12)]
    errors = [
        (reference.explicit_step(y, k, r, h) - reference.implicit_step(y, k, r, h)).abs().max().item() for h in hs
    ]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders[-1] == pytest.approx(2, abs=0.05)


def test_a_stencil_that_sums_to_zero_conserves_the_mean():
    y, k = randn(2, 1, 6, 7), LAPLACIAN[None]
    for step in (
        reference.explicit_diffusion(y, k, 0.01),
        reference.implicit_diffusion(y, k, 3.0),
        reference.implicit_diffusion(y, k, 3.0, "neumann"),
    ):
        torch.testing.assert_close(step.mean((2, 3)), y.mean((2, 3)), **TOL)


def test_gradients_through_the_solves():
    v, k, w = randn(1, 2, 3, 4), randn(2, 3, 3, seed=1), randn(2, 3, 3, seed=2)
    for q in (v, k, w):
        q.requires_grad_()
    assert torch.autograd.gradcheck(lambda v, k: reference.implicit_diffusion(v, k, 0.5), (v, k))
    assert torch.autograd.gradcheck(lambda v, k: reference.implicit_diffusion(v, k, 0.5, "neumann"), (v, k))
    assert torch.autograd.gradcheck(lambda v, w: reference.circulant_implicit_diffusion(v, w, 0.5), (v, w))
    zero = torch.zeros_like(k).requires_grad_()
    reference.implicit_diffusion(v, zero, 0.5).sum().backward()
    assert torch.isfinite(zero.grad).all()


# bad input


@pytest.mark.parametrize("h", [0, -1.0, math.nan, math.inf])
def test_time_step_must_be_positive(h):
    for step in (reference.explicit_diffusion, reference.implicit_diffusion, reference.circulant_implicit_diffusion):
        with pytest.raises(ValueError, match="h \\(the time step\\) must be positive and finite, got h="):
            step(randn(1, 2, 4, 4), randn(2, 3, 3), h)


def test_bad_arguments_are_named():
    y, k = randn(1, 2, 4, 4), randn(2, 3, 3)
    with pytest.raises(ValueError, match=r"expected features of shape \(N, 3, H, W\), got \(1, 2, 4, 4\)"):
        reference.depthwise(y, randn(3, 3, 3))
    with pytest.raises(ValueError, match="odd size"):
        reference.depthwise(y, randn(2, 2, 2))
    with pytest.raises(ValueError, match=r"expected k of shape \(C, m\)"):
        reference.depthwise(y, randn(2))
    with pytest.raises(ValueError, match="boundary must be one of"):
        reference.depthwise(y, k, "zero")
    with pytest.raises(ValueError, match="only the batch may be"):
        reference.depthwise(y[..., :0], k)
    with pytest.raises(TypeError, match=r"floating-point dtype, got torch.int64. Use y.float\(\)"):
        reference.depthwise(y.long(), k)
    with pytest.raises(ValueError, match="no transform diagonalises"):
        reference.implicit_diffusion(y, k, 0.1, "dirichlet")
    with pytest.raises(ValueError, match=r"g of shape \(C, ...\), got v \(1, 2, 4, 4\) and g \(2, 4, 3\)"):
        reference.spectral_filter(y, randn(2, 4, 3))
    with pytest.raises(ValueError, match=r"expected M of shape \(C_out, C\)"):
        reference.pointwise(y, randn(3, 3))
    with pytest.raises(TypeError, match="must be a number, got str"):
        reference.explicit_diffusion(y, k, "1")
