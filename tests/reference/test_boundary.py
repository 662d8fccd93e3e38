"""What stands beyond the border, and Eq. (4) written out element by element at it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.reference import Boundary, advection_diffusion
from pdecnn.reference.boundary import neighbours

BOUNDARIES = ("periodic", "neumann", "dirichlet")


@pytest.mark.parametrize(
    "boundary, parity, plus, minus",
    [
        (Boundary.PERIODIC, 1, [2, 3, 1], [3, 1, 2]),
        (Boundary.PERIODIC, -1, [2, 3, 1], [3, 1, 2]),
        (Boundary.NEUMANN, 1, [2, 3, 3], [1, 1, 2]),
        (Boundary.NEUMANN, -1, [2, 3, -3], [-1, 1, 2]),
        (Boundary.DIRICHLET, 0, [2, 3, 0], [0, 1, 2]),
        (Boundary.DIRICHLET, 1, [2, 3, 3], [1, 1, 2]),
    ],
)
@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_neighbours_by_hand(boundary, parity, plus, minus, axis):
    q = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1).movedim(0, axis)
    q_plus, q_minus = neighbours(q, axis, boundary, parity)
    assert q_plus.shape == q_minus.shape == q.shape
    assert q_plus.flatten().tolist() == plus
    assert q_minus.flatten().tolist() == minus


@pytest.mark.parametrize(
    "boundary, parity, value", [("periodic", 1, 5.0), ("neumann", 1, 5.0), ("neumann", -1, -5.0), ("dirichlet", 0, 0.0)]
)
def test_a_single_element_neighbours_its_own_image(boundary, parity, value):
    plus, minus = neighbours(torch.tensor([5.0]), -1, Boundary(boundary), parity)
    assert plus.item() == minus.item() == value


def test_parities_of_state_and_normal_velocity():
    assert [(b.state_parity, b.velocity_parity) for b in Boundary] == [(1, 1), (1, -1), (0, 1)]


def test_parse_takes_names_and_members():
    assert Boundary.parse("neumann", "here") is Boundary.NEUMANN
    assert Boundary.parse(Boundary.DIRICHLET, "here") is Boundary.DIRICHLET
    expected = r"here: boundary must be one of 'periodic', 'neumann', 'dirichlet', got 'reflect'\."
    with pytest.raises(ValueError, match=expected):
        Boundary.parse("reflect", "here")


def padded(q, boundary, velocity_axis=None):
    """`q` with one ghost cell on each side, by numpy's own padding."""
    if boundary == "periodic":
        return np.pad(q, 1, mode="wrap")
    if boundary == "dirichlet" and velocity_axis is None:
        return np.pad(q, 1)
    ghost = np.pad(q, 1, mode="edge")
    if boundary == "neumann" and velocity_axis is not None:
        first, last = [slice(None)] * 2, [slice(None)] * 2
        first[velocity_axis], last[velocity_axis] = 0, -1
        ghost[tuple(first)] *= -1
        ghost[tuple(last)] *= -1
    return ghost


def equation_4(h, h_prev, u, v, D_x, D_y, f, dt, dx, dy, boundary):
    """One step at a time, one element at a time, as printed in the paper, with x along the columns."""
    H, W = h.shape
    h_, u_, v_ = padded(h, boundary), padded(u, boundary, velocity_axis=1), padded(v, boundary, velocity_axis=0)
    out = np.empty_like(h)
    for i in range(H):
        for j in range(W):
            y, x = i + 1, j + 1
            A_x, A_y = u[i, j] * dt / dx, v[i, j] * dt / dy
            B_x, B_y = D_x[i, j] * dt / dx**2, D_y[i, j] * dt / dy**2
            u_x = (u_[y, x + 1] - u_[y, x - 1]) / (2 * dx)
            v_y = (v_[y + 1, x] - v_[y - 1, x]) / (2 * dy)
            out[i, j] = (
                (1 - 2 * B_x - 2 * B_y) * h_prev[i, j] - 2 * dt * (u_x + v_y) * h[i, j] + 2 * dt * f[i, j]
                + (-A_x + 2 * B_x) * h_[y, x + 1] + (A_x + 2 * B_x) * h_[y, x - 1]
                + (-A_y + 2 * B_y) * h_[y + 1, x] + (A_y + 2 * B_y) * h_[y - 1, x]
            ) / (1 + 2 * B_x + 2 * B_y)  # fmt: skip
    return out


@given(seed=st.integers(0, 2**31), H=st.integers(1, 5), W=st.integers(1, 5), K=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_solver_is_equation_4_element_by_element(boundary, seed, H, W, K):
    rng = np.random.default_rng(seed)
    h, h_prev, u, v, f = rng.standard_normal((5, H, W))
    D_x, D_y = rng.random((2, H, W))
    dt, dx, dy = 0.2, 1.1, 0.8
    as_map = [torch.from_numpy(q)[None, None] for q in (h, u, v, D_x, D_y, f)]
    out = advection_diffusion(
        *as_map, h_prev=torch.from_numpy(h_prev)[None, None], K=K, dt=dt, dx=dx, dy=dy, boundary=boundary
    )
    for _ in range(K):
        h_prev, h = h, equation_4(h, h_prev, u, v, D_x, D_y, f, dt, dx, dy, boundary)
    np.testing.assert_allclose(out[0, 0].numpy(), h, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("velocity", [-2.0, 3.0])
def test_nothing_leaves_through_a_neumann_wall_however_the_wind_blows(velocity):
    h = torch.rand(1, 1, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = advection_diffusion(h, velocity, velocity, 0.1, 0.1, K=8, dt=0.05, boundary="neumann")
    torch.testing.assert_close(out.sum(), h.sum(), rtol=1e-13, atol=0)


def test_dirichlet_walls_drain_the_state():
    h = torch.ones(1, 1, 4, 4, dtype=torch.float64)
    out = advection_diffusion(h, 0.0, 0.0, 1.0, 1.0, K=400, boundary="dirichlet")
    assert out.abs().max() < 1e-6
