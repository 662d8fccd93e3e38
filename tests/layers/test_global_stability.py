"""Stability of the Global layer: the predicted growth, the Courant number, the velocity bound and upwind steps."""

import numpy as np
import pytest
import torch
from global_layers import sample
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pdecnn.layers import GlobalLayer


@settings(max_examples=60, deadline=None)
@given(
    A=st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    D=st.tuples(st.floats(0.01, 5), st.floats(0.01, 5)),
)
def test_von_neumann_number_predicts_growth(A, D):
    """The roots of the scheme's growth polynomial, over all waves, against the closed form."""
    from pdecnn.reference.courant import von_neumann_number

    theta = np.linspace(-np.pi, np.pi, 201)
    fine = np.concatenate([theta, np.linspace(-0.1, 0.1, 81)])
    X, Y = np.meshgrid(fine, fine)
    s = 2 * sum(D)
    b = -(4 * D[0] * np.cos(X) + 4 * D[1] * np.cos(Y) - 2j * (A[0] * np.sin(X) + A[1] * np.sin(Y))) / (1 + s)
    c = -(1 - s) / (1 + s)
    root = np.sqrt(b**2 - 4 * c + 0j)
    growth = np.maximum(abs(-b + root), abs(-b - root)).max() / 2
    V = von_neumann_number(*(torch.tensor(q, dtype=torch.float64) for q in (*A, *D))).item()
    if V <= 1:
        assert growth <= 1 + 1e-7
    elif V > 1.2:
        assert growth > 1 + 1e-9


def test_stability_reports_the_courant_number():
    x = torch.zeros(2, 3, 4, 4)
    report = GlobalLayer(3, velocity=(3.0, -4.0), diffusion=(0.5, 0.25), dy=2.0).stability(x)
    assert report.cfl == pytest.approx(3 * 0.2 + 4 * 0.2 / 2)
    assert report.fraction_above_1 == 0.0
    assert report.von_neumann_fraction == 1.0
    assert (report.max_velocity, report.max_diffusivity, report.min_diffusivity) == (4.0, 0.5, 0.25)
    assert GlobalLayer(3, velocity=6.0).stability(x).fraction_above_1 == 1.0


@pytest.mark.parametrize("bound", [True, 0.5])
def test_velocity_bound_holds_and_leaves_slow_flow_alone(bound):
    layer = GlobalLayer(2, velocity_bound=bound, dx=0.5).double()
    free = GlobalLayer(2, dx=0.5).double()
    free.load_state_dict(layer.state_dict())
    h = 20 * sample(2, 2, 6, 6)
    for m in (*layer.modules(), *free.modules()):
        if isinstance(m, nn.BatchNorm2d):
            m.weight.data.fill_(5.0)
    report, unbounded = layer.stability(h), free.stability(h)
    assert unbounded.cfl > 1 >= float(bound) >= report.cfl - 1e-6
    assert report.cfl == pytest.approx(float(bound), abs=1e-6)
    (u, v, *_), (u0, v0, *_) = layer.coefficients(h), free.coefficients(h)
    courant = u0.abs() * (0.2 / 0.5) + v0.abs() * 0.2
    slow = courant <= float(bound)
    torch.testing.assert_close(u[slow], u0[slow])
    torch.testing.assert_close((u / v)[~slow], (u0 / v0)[~slow], equal_nan=True)


def test_bound_keeps_a_rough_flow_from_exploding():
    """Spec 1.5: rough velocities up to 12 with D = 1 blow up in 20 steps; bounded by 0.7 they do not."""
    h = sample(1, 8, 32, 32).clamp(-1, 1)

    class Rough(nn.Module):
        def forward(self, h):
            return 12 * torch.rand(h.shape, generator=torch.Generator().manual_seed(1), dtype=h.dtype)

    options = {"velocity": Rough(), "diffusion": 1.0, "source": "none", "K": 20}
    free = GlobalLayer(8, **options).trajectory(h)[-1].abs().max()
    bounded = GlobalLayer(8, velocity_bound=0.7, **options).trajectory(h)[-1].abs().max()
    assert free > 1e6
    assert bounded < 10


def test_upwind_reads_only_upstream():
    """Without diffusion and for u > 0 a step is (1 - A) h_prev + 2 A h[x-1] over 1 + A: no downstream neighbour."""
    x = sample(1, 1, 1, 8)
    _, h = GlobalLayer(1, velocity=(2.0, 0.0), diffusion=0.0, source="none", upwind=True, K=1, dx=0.8).trajectory(x)
    A = 2.0 * 0.2 / 0.8
    torch.testing.assert_close(h, ((1 - A) * x + 2 * A * x.roll(1, -1)) / (1 + A))
    _, h = GlobalLayer(1, velocity=(-2.0, 0.0), diffusion=0.0, source="none", upwind=True, K=1, dx=0.8).trajectory(x)
    torch.testing.assert_close(h, ((1 - A) * x + 2 * A * x.roll(-1, -1)) / (1 + A))


@settings(max_examples=40, deadline=None)
@given(
    share=st.floats(0, 1),
    total=st.floats(0, 0.6),
    D=st.floats(0, 0.4),
    signs=st.sampled_from([(1, 1), (1, -1), (-1, 1), (-1, -1)]),
    seed=st.integers(0, 2**20),
)
def test_upwind_makes_no_new_maximum(share, total, D, signs, seed):
    """|A_x| + |A_y| + 2 (B_x + B_y) <= 1, constant velocities: every step is a weighted mean. Central is not."""
    dt = 0.2
    D = min(D, (1 - total) / (4 * dt))
    u, v = signs[0] * total * share / dt, signs[1] * total * (1 - share) / dt
    h = sample(1, 1, 6, 5, seed=seed)
    layer = GlobalLayer(1, velocity=(u, v), diffusion=D, source="none", upwind=True, K=8, dt=dt)
    for state in layer.trajectory(h):
        assert state.max() <= h.max() + 1e-12
        assert state.min() >= h.min() - 1e-12


def test_central_differences_do_make_a_new_maximum():
    h = torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    h[..., 3:5] = 1
    options = {"velocity": (3.0, 0.0), "diffusion": 0.0, "source": "none", "K": 8}
    assert max(s.max() for s in GlobalLayer(1, **options).trajectory(h)) > 1.1
    assert max(s.max() for s in GlobalLayer(1, upwind=True, **options).trajectory(h)) <= 1 + 1e-12
