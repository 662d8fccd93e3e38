"""Measured order of accuracy against analytic solutions on the periodic unit interval and square."""

import cmath
import math

import pytest
import torch

from pdecnn.reference import advection_diffusion, advection_diffusion_1d
from pdecnn.testing import assert_order, measured_orders

F64 = torch.float64
TWO_PI = 2 * math.pi
U, D, T = 0.8, 0.05, 0.25


def travelling_wave(x, t):
    """The solution of `h_t + U h_x = D h_xx` that starts as a cosine."""
    return math.exp(-D * TWO_PI**2 * t) * torch.cos(TWO_PI * (x - U * t))


def error_of_travelling_wave(W, K):
    dt = T / K
    x = torch.arange(W, dtype=F64) / W
    h, h_prev = travelling_wave(x, 0.0)[None, None], travelling_wave(x, -dt)[None, None]
    out = advection_diffusion_1d(h, U, D, h_prev=h_prev, K=K, dt=dt, dx=1 / W)
    return float((out[0, 0] - travelling_wave(x, T)).abs().max())


def test_second_order_in_space_when_dt_falls_with_dx_squared():
    orders = assert_order(
        lambda dx: error_of_travelling_wave(round(1 / dx), round(T / dx**2)), [1 / 8, 1 / 16, 1 / 32], 2
    )
    assert orders[-1] == pytest.approx(2, abs=0.05)


def test_start_at_rest_keeps_second_order_when_dt_falls_with_dx_squared():
    def error(dx):  # h_prev = h is off by dt, and dt ~ dx^2
        W, K = round(1 / dx), round(T / dx**2)
        x = torch.arange(W, dtype=F64) / W
        out = advection_diffusion_1d(travelling_wave(x, 0.0)[None, None], U, D, K=K, dt=T / K, dx=dx)
        return float((out[0, 0] - travelling_wave(x, T)).abs().max())

    assert_order(error, [1 / 8, 1 / 16, 1 / 32], 2)


def test_second_order_in_time_on_a_fixed_grid():
    W = 16
    theta = TWO_PI / W
    rate = 2 * D * W**2 * (math.cos(theta) - 1) - 1j * U * W * math.sin(theta)  # of the grid, continuous in time
    phase = theta * torch.arange(W, dtype=F64)

    def on_the_grid(t):
        c = cmath.exp(rate * t)
        return c.real * phase.cos() - c.imag * phase.sin()

    def error(dt):
        h, h_prev = on_the_grid(0.0)[None, None], on_the_grid(-dt)[None, None]
        out = advection_diffusion_1d(h, U, D, h_prev=h_prev, K=round(T / dt), dt=dt, dx=1 / W)
        return float((out[0, 0] - on_the_grid(T)).abs().max())

    orders = assert_order(error, [T / 64, T / 128, T / 256], 2)
    assert orders[-1] == pytest.approx(2, abs=0.05)


def test_consistency_is_conditional_on_dt_over_dx():
    # Du Fort-Frankel adds D (dt/dx)^2 h_tt: with dt ~ dx it converges, but to another equation. The error stalls.
    spacings = [1 / 32, 1 / 64, 1 / 128]
    errors = [error_of_travelling_wave(round(1 / dx), round(0.5 * T / dx)) for dx in spacings]
    assert abs(measured_orders(errors, spacings)[-1]) < 0.2
    assert errors[-1] > 10 * error_of_travelling_wave(32, round(T * 32**2))


def test_second_order_for_a_steady_state_in_a_varying_flow():
    def error(dx):
        W = round(1 / dx)
        x, y = (
            (torch.arange(W, dtype=F64) / W * TWO_PI).expand(W, W),
            (torch.arange(W, dtype=F64) / W * TWO_PI)[:, None],
        )
        h = 2 + x.sin() * y.cos()
        u, v = 1 + 0.5 * x.cos() * y.sin(), 0.3 * (x + y).sin()
        # f = d(uh)/dx + d(vh)/dy - D (h_xx + h_yy), derived by hand
        advection = (-0.5 * x.sin() * y.sin() + 0.3 * (x + y).cos()) * h + u * x.cos() * y.cos() - v * x.sin() * y.sin()
        f = TWO_PI * advection + D * TWO_PI**2 * 2 * x.sin() * y.cos()
        K = round(0.1 / (0.5 * dx**2))
        out = advection_diffusion(h[None, None], u[None, None], v[None, None], D, D, f[None, None],
                                  K=K, dt=0.1 / K, dx=dx, dy=dx)  # fmt: skip
        return float((out[0, 0] - h).abs().max())

    orders = assert_order(error, [1 / 16, 1 / 32, 1 / 64], 2)
    assert orders[-1] == pytest.approx(2, abs=0.1)
