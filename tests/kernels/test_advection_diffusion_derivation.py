"""The formulas of kernels/advection_diffusion/README.md, done by hand, against autograd and against the kernel."""

import pytest
import torch

from pdecnn import functional, reference
from pdecnn.reference.boundary import Boundary, neighbours

BOUNDARIES = ["periodic", "neumann", "dirichlet"]
OPTIONS = {"dt": 0.3, "dx": 1.5, "dy": 0.7}
NAMES = ("h", "h_prev", "u", "v", "D_x", "D_y", "f")


def beside(q, boundary, parity):
    """The values at x+1, x-1, y+1, y-1."""
    return [*neighbours(q, -1, boundary, parity), *neighbours(q, -2, boundary, parity)]


def by_hand(fields, grad, K, boundary, dt, dx, dy):
    """`h^K` and the gradients of the seven fields."""
    h, h_prev, u, v, D_x, D_y, f = fields
    boundary = Boundary(boundary)
    A_x, A_y, two_B_x, two_B_y = u * dt / dx, v * dt / dy, 2 * D_x * dt / dx**2, 2 * D_y * dt / dy**2
    u_xp, u_xm, _, _ = beside(u, boundary, boundary.velocity_parity)
    _, _, v_yp, v_ym = beside(v, boundary, boundary.velocity_parity)

    r = 1 / (1 + two_B_x + two_B_y)
    a, s = (1 - two_B_x - two_B_y) * r, 2 * dt * f * r
    b = -(dt / dx * (u_xp - u_xm) + dt / dy * (v_yp - v_ym)) * r
    c_plus, c_minus = (two_B_x - A_x) * r, (two_B_x + A_x) * r
    d_plus, d_minus = (two_B_y - A_y) * r, (two_B_y + A_y) * r
    if boundary is not Boundary.PERIODIC:  # weights that reach over the border move to the centre
        for weight, axis, i in ((c_plus, -1, -1), (c_minus, -1, 0), (d_plus, -2, -1), (d_minus, -2, 0)):
            b.select(axis, i).add_(boundary.state_parity * weight.select(axis, i))
            weight.select(axis, i).zero_()

    states = [h_prev, h]
    for _ in range(K):
        xp, xm, yp, ym = beside(states[-1], boundary, boundary.state_parity)
        states.append(a * states[-2] + b * states[-1] + c_plus * xp + c_minus * xm + d_plus * yp + d_minus * ym + s)

    G, G_next = grad, torch.zeros_like(grad)
    sums = dict.fromkeys(("G", "Gh", "A_x", "A_y", "B_x", "B_y"), torch.zeros_like(grad))
    for before, now, after in list(zip(states, states[1:], states[2:], strict=False))[::-1]:
        xp, xm, yp, ym = beside(now, boundary, boundary.state_parity)
        both = before + after
        terms = (G, G * now, G * (xm - xp), G * (ym - yp), G * (xp + xm - both), G * (yp + ym - both))
        sums = {name: sums[name] + term for name, term in zip(sums, terms, strict=True)}
        transposed = b * G + neighbours(c_plus * G, -1, boundary, 0)[1] + neighbours(c_minus * G, -1, boundary, 0)[0]
        transposed += neighbours(d_plus * G, -2, boundary, 0)[1] + neighbours(d_minus * G, -2, boundary, 0)[0]
        G, G_next = transposed + a * G_next, G

    P_xp, P_xm, P_yp, P_ym = beside(r * sums["Gh"], boundary, -boundary.velocity_parity)
    grads = {
        "h": G,
        "h_prev": a * G_next,
        "u": dt / dx * (r * sums["A_x"] - P_xm + P_xp),
        "v": dt / dy * (r * sums["A_y"] - P_ym + P_yp),
        "D_x": 2 * dt / dx**2 * r * sums["B_x"],
        "D_y": 2 * dt / dy**2 * r * sums["B_y"],
        "f": 2 * dt * r * sums["G"],
    }
    return states[-1], grads


def draw(H, W):
    generator = torch.Generator().manual_seed(100 * H + W)
    h, h_prev, u, v, f, grad = torch.randn(6, 2, 3, H, W, dtype=torch.float64, generator=generator)
    D_x, D_y = torch.rand(2, 2, 3, H, W, dtype=torch.float64, generator=generator)
    return (h, h_prev, u, v, D_x, D_y, f), grad


def by_autograd(solve, fields, grad, K, boundary):
    leaves = [q.detach().clone(memory_format=torch.preserve_format).requires_grad_() for q in fields]
    h, h_prev, u, v, D_x, D_y, f = leaves
    out = solve(h, u, v, D_x, D_y, f, h_prev=h_prev, K=K, boundary=boundary, **OPTIONS)
    return out.detach(), dict(zip(NAMES, torch.autograd.grad(out, leaves, grad), strict=True))


def assert_same(actual, expected):
    """Within rounding of float64: K <= 5 steps, whose growth these coefficients keep below 1e3."""
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-10, atol=1e-10)
    for name in NAMES:
        torch.testing.assert_close(
            actual[1][name], expected[1][name], rtol=1e-10, atol=1e-9, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("K", [1, 2, 5])
@pytest.mark.parametrize("H, W", [(5, 7), (1, 4), (3, 1), (2, 2), (1, 1)])
def test_the_derivation_is_the_gradient_of_the_definition(H, W, K, boundary):
    fields, grad = draw(H, W)
    assert_same(
        by_hand(fields, grad, K, boundary, **OPTIONS),
        by_autograd(reference.advection_diffusion, fields, grad, K, boundary),
    )


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("H, W", [(9, 8), (9, 5), (40, 5), (1, 8)])
def test_the_kernel_follows_the_derivation(H, W, memory_format, boundary):
    """Planes that stay whole (width 8), waves that hold a part of the rows (40 rows), and both memory formats."""
    fields, grad = draw(H, W)
    fields = tuple(q.contiguous(memory_format=memory_format) for q in fields)
    assert_same(
        by_autograd(functional.advection_diffusion, fields, grad, 3, boundary),
        by_hand(fields, grad, 3, boundary, **OPTIONS),
    )
