"""Laws of the advection-diffusion scheme: closed forms, invariants, conservation and symmetry, in float64."""

import cmath
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.reference import advection_diffusion, advection_diffusion_1d, advection_diffusion_3d
from pdecnn.reference.advection_diffusion import solve, trajectory
from pdecnn.testing import assert_conserves

BOUNDARIES = ("periodic", "neumann", "dirichlet")
F64 = torch.float64
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def random_fields(seed, shape, count):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=F64) for _ in range(count)]


def amplitude(gain, a, K):
    """`c_K` of `c_{k+1} = a c_{k-1} + gain c_k` with `c_{-1} = c_0 = 1`, from the roots of its quadratic."""
    root = cmath.sqrt(gain * gain / 4 + a)
    plus, minus = gain / 2 + root, gain / 2 - root
    # c_k = p plus^k + m minus^k;  p + m = 1,  p / plus + m / minus = 1
    p = (1 - 1 / minus) / (1 / plus - 1 / minus)
    return p * plus**K + (1 - p) * minus**K


def wave(W, m):
    return 2 * math.pi * m * torch.arange(W, dtype=F64) / W


@pytest.mark.parametrize("K", [1, 2, 7, 40])
@pytest.mark.parametrize("m_x, m_y", [(3, 0), (0, 2), (3, 2), (8, 5)])
def test_diffused_fourier_mode_has_the_exact_amplitude(K, m_x, m_y):
    H, W, D_x, D_y, dt, dx, dy = 10, 16, 0.7, 1.9, 0.3, 1.1, 0.8
    phase = wave(H, m_y)[:, None] + wave(W, m_x)
    B_x, B_y = D_x * dt / dx**2, D_y * dt / dy**2
    L, M = 1 + 2 * B_x + 2 * B_y, 1 - 2 * B_x - 2 * B_y
    gain = 4 * (B_x * math.cos(2 * math.pi * m_x / W) + B_y * math.cos(2 * math.pi * m_y / H)) / L
    out = advection_diffusion(phase.cos()[None, None], 0.0, 0.0, D_x, D_y, K=K, dt=dt, dx=dx, dy=dy)
    torch.testing.assert_close(out[0, 0], amplitude(gain, M / L, K).real * phase.cos(), **EXACT)


@pytest.mark.parametrize("K", [1, 2, 7, 40])
@pytest.mark.parametrize("u, v", [(0.9, 0.0), (0.0, -0.7), (0.6, 0.4)])
def test_advected_fourier_mode_has_the_exact_amplitude_and_phase(K, u, v):
    H, W, m_x, m_y, dt, dx, dy = 10, 16, 3, 2, 0.5, 1.1, 0.8
    theta, phi = 2 * math.pi * m_x / W, 2 * math.pi * m_y / H
    phase = wave(H, m_y)[:, None] + wave(W, m_x)
    gain = -2j * (u * dt / dx * math.sin(theta) + v * dt / dy * math.sin(phi))
    c = amplitude(gain, 1.0, K)
    out = advection_diffusion(phase.cos()[None, None], u, v, 0.0, 0.0, K=K, dt=dt, dx=dx, dy=dy)
    torch.testing.assert_close(out[0, 0], c.real * phase.cos() - c.imag * phase.sin(), **EXACT)


def test_positive_velocity_moves_the_state_with_the_index():
    x = torch.arange(64, dtype=F64)
    h = torch.exp(-((x - 20) ** 2) / 50).expand(1, 1, 64, 64)
    along_x = advection_diffusion(h, 1.0, 0.0, 0.0, 0.0, K=100, dt=0.1)
    assert along_x[0, 0, 0].argmax() == 30
    along_y = advection_diffusion(h.mT, 0.0, 1.0, 0.0, 0.0, K=100, dt=0.1)
    assert along_y[0, 0, :, 0].argmax() == 30


@pytest.mark.parametrize("m", [1, 4])
def test_modes_of_the_two_walls_decay_exactly(m):
    W, D, dt, dx, K = 12, 0.8, 0.4, 0.9, 9
    j = torch.arange(W, dtype=F64)
    B = D * dt / dx**2
    for boundary, theta, mode in (
        ("neumann", math.pi * m / W, torch.cos(math.pi * m * (j + 0.5) / W)),
        ("dirichlet", math.pi * m / (W + 1), torch.sin(math.pi * m * (j + 1) / (W + 1))),
    ):
        out = advection_diffusion_1d(mode[None, None], 0.0, D, K=K, dt=dt, dx=dx, boundary=boundary)
        c = amplitude(4 * B * math.cos(theta) / (1 + 2 * B), (1 - 2 * B) / (1 + 2 * B), K)
        torch.testing.assert_close(out[0, 0], c.real * mode, **EXACT)


def test_constant_state_in_a_uniform_flow_stays():
    u, v = 0.7, -0.4
    D_x, D_y = (q.abs() for q in random_fields(0, (1, 2, 5, 6), 2))
    h = torch.full((1, 2, 5, 6), 3.25, dtype=F64)
    torch.testing.assert_close(advection_diffusion(h, u, v, D_x, D_y, K=20), h, **EXACT)
    torch.testing.assert_close(advection_diffusion(h, 0.0, 0.0, D_x, D_y, K=20, boundary="neumann"), h, **EXACT)


@given(seed=st.integers(0, 2**31), H=st.integers(1, 6), W=st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_source_that_balances_the_equation_holds_the_state(seed, H, W):
    dx, dy = 1.3, 0.7
    h, u, v, D_x, D_y = random_fields(seed, (1, 1, H, W), 5)
    D_x, D_y = D_x.abs(), D_y.abs()

    def central(q, dim, spacing):
        return (q.roll(-1, dim) - q.roll(1, dim)) / (2 * spacing)

    def second(q, dim, spacing):
        return (q.roll(-1, dim) - 2 * q + q.roll(1, dim)) / spacing**2

    advection = h * (central(u, 3, dx) + central(v, 2, dy)) + u * central(h, 3, dx) + v * central(h, 2, dy)
    f = advection - D_x * second(h, 3, dx) - D_y * second(h, 2, dy)
    out = advection_diffusion(h, u, v, D_x, D_y, f, K=3, dt=0.1, dx=dx, dy=dy)
    torch.testing.assert_close(out, h, rtol=1e-11, atol=1e-11)


def test_leapfrog_decouples_odd_and_even_steps():
    one = torch.ones(1, 1, 2, 2, dtype=F64)
    states = trajectory(one, (0.0, 0.0), (0.0, 0.0), one, K=6, dt=0.2, spacings=(1.0, 1.0), boundary="periodic")
    values = [float(h[0, 0, 0, 0]) for h in states]
    assert values == pytest.approx([1.0, 1.4, 1.4, 1.8, 1.8, 2.2, 2.2], abs=1e-14)


@pytest.mark.parametrize(
    "D, dt, dx, neighbour, before, source",
    [(1.0, 0.2, 1.0, 0.4 / 1.8, 0.2 / 1.8, 0.4 / 1.8), (2.0, 0.1, 1.0, 0.4 / 1.8, 0.2 / 1.8, 0.2 / 1.8),
     (2.0, 0.1, 2.0, 0.1 / 1.2, 0.8 / 1.2, 0.2 / 1.2)],
)  # fmt: skip
def test_one_step_has_the_weights_of_the_paper(D, dt, dx, neighbour, before, source):
    zero = torch.zeros(1, 1, 5, 5, dtype=F64)
    pulse = zero.clone()
    pulse[0, 0, 2, 2] = 1.0
    options = {"K": 1, "dt": dt, "dx": dx, "dy": dx}
    L, u, v = 1 + 4 * D * dt / dx**2, 0.5, 0.25

    from_h = advection_diffusion(pulse, u, v, D, D, h_prev=zero, **options)[0, 0]
    assert float(from_h[2, 1]) == pytest.approx(neighbour - u * dt / dx / L)  # the element left of the pulse
    assert float(from_h[2, 3]) == pytest.approx(neighbour + u * dt / dx / L)
    assert float(from_h[1, 2]) == pytest.approx(neighbour - v * dt / dx / L)
    assert float(from_h[3, 2]) == pytest.approx(neighbour + v * dt / dx / L)
    assert float(from_h[2, 2]) == 0.0
    from_h_prev = advection_diffusion(zero, u, v, D, D, h_prev=pulse, **options)
    torch.testing.assert_close(from_h_prev, before * pulse)
    from_f = advection_diffusion(zero, u, v, D, D, pulse, h_prev=zero, **options)
    torch.testing.assert_close(from_f, source * pulse)


def test_divergence_of_the_velocity_thins_the_state():
    u = torch.arange(7, dtype=F64).mul(3).expand(1, 1, 3, 7)  # u = 3x: the derivative is +3
    h = torch.ones(1, 1, 3, 7, dtype=F64)
    out = advection_diffusion(h, u, 0.0, 0.0, 0.0, K=1, dt=0.01)
    torch.testing.assert_close(out[..., 1:-1], torch.full((1, 1, 3, 5), 1 - 2 * 0.01 * 3, dtype=F64))


def test_published_orientation_is_this_one_with_the_flow_reversed():
    h, u, v = random_fields(1, (2, 2, 4, 5), 3)
    dt, D, K = 0.2, 1.0, 4
    prev, now = h, h
    for _ in range(K):
        # A roll by +1 reads the index before; rows are the published x, so v acts there.
        rhs = (1 - 4 * D * dt) * prev
        for c, dim in ((u, 3), (v, 2)):
            divergence = (c.roll(1, dim) - c.roll(-1, dim)) / 2
            rhs = rhs - 2 * dt * divergence * now
            rhs = rhs + (2 * D - c) * dt * now.roll(1, dim) + (2 * D + c) * dt * now.roll(-1, dim)
        prev, now = now, rhs / (1 + 4 * D * dt)
    torch.testing.assert_close(advection_diffusion(h, -u, -v, D, D, K=K, dt=dt), now, **EXACT)
    mirrored = advection_diffusion(h.flip(2, 3), u.flip(2, 3), v.flip(2, 3), D, D, K=K, dt=dt).flip(2, 3)
    torch.testing.assert_close(mirrored, now, **EXACT)


@pytest.mark.parametrize("K", [1, 3, 5])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_influence_of_a_pixel_is_a_diamond_of_radius_K(K, boundary):
    H, W, y_0, x_0 = 13, 17, 1, 2
    base, u, v = random_fields(2, (1, 1, H, W), 3)
    changed = base.clone()
    changed[0, 0, y_0, x_0] += 1.0
    reach = advection_diffusion(changed, u, v, 1.0, 1.0, K=K, boundary=boundary)
    reach = reach != advection_diffusion(base, u, v, 1.0, 1.0, K=K, boundary=boundary)
    y = (torch.arange(H) - y_0).abs()[:, None]
    x = (torch.arange(W) - x_0).abs()
    if boundary == "periodic":
        y, x = torch.minimum(y, H - y), torch.minimum(x, W - x)
    assert torch.equal(reach[0, 0], y + x <= K)


@given(seed=st.integers(0, 2**31), H=st.integers(1, 7), W=st.integers(1, 7), K=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("boundary", ["periodic", "neumann"])
def test_mass_is_conserved_in_any_flow(boundary, seed, H, W, K):
    h, u, v = random_fields(seed, (2, 2, H, W), 3)
    options = {"K": K, "dt": 0.1, "dx": 0.9, "dy": 1.2, "boundary": boundary}
    assert_conserves(lambda h: advection_diffusion(h, u, v, 0.7, 0.3, **options), h, tolerance=1e-12)


def test_mass_of_two_starting_states_is_conserved_if_they_share_it():
    h, h_prev, u, v = random_fields(5, (1, 1, 6, 6), 4)
    h_prev = h_prev - h_prev.mean() + h.mean()
    assert_conserves(lambda h: advection_diffusion(h, u, v, 1.0, 1.0, h_prev=h_prev, K=7), h, tolerance=1e-12)


def test_mass_is_lost_through_a_dirichlet_wall_and_with_varying_diffusivity():
    h, u, v, D = (q.abs() for q in random_fields(3, (1, 1, 6, 6), 4))
    with pytest.raises(AssertionError, match="assert_conserves: the sum over dims"):
        assert_conserves(lambda h: advection_diffusion(h, u, v, 1.0, 1.0, boundary="dirichlet"), h)
    with pytest.raises(AssertionError, match="assert_conserves: the sum over dims"):
        assert_conserves(lambda h: advection_diffusion(h, u, v, D, D), h)


@given(seed=st.integers(0, 2**31), K=st.integers(1, 4), W=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_one_two_and_three_dimensions_agree_on_what_varies_along_one(boundary, seed, K, W):
    h, u, D_x, f, h_prev = random_fields(seed, (2, 3, W), 5)
    D_x = D_x.abs()
    line = advection_diffusion_1d(h, u, D_x, f, h_prev=h_prev, K=K, dx=0.9, boundary=boundary)

    def sheet(q):
        return q[:, :, None, :].expand(2, 3, 4, W)

    def volume(q):
        return q[:, :, None, None, :].expand(2, 3, 2, 4, W)

    # No diffusion across what does not vary: it would change Du Fort-Frankel's weights, though not the equation.
    options = {"K": K, "dx": 0.9, "boundary": boundary}
    in_2d = advection_diffusion(
        sheet(h), sheet(u), 0.0, sheet(D_x), 0.0, sheet(f), h_prev=sheet(h_prev), **options
    )  # fmt: skip
    in_3d = advection_diffusion_3d(
        volume(h), volume(u), 0.0, 0.0, volume(D_x), 0.0, 0.0, volume(f), h_prev=volume(h_prev), **options
    )
    torch.testing.assert_close(in_2d, sheet(line), **EXACT)
    torch.testing.assert_close(in_3d, volume(line), **EXACT)


def test_three_dimensions_treat_each_axis_alike():
    h, u, v, w = random_fields(4, (1, 2, 3, 4, 5), 4)
    out = advection_diffusion_3d(h, u, v, w, 0.3, 0.5, 0.7, dx=1.1, dy=1.2, dz=1.3, boundary="neumann")
    order = (0, 1, 4, 2, 3)  # x becomes z, y becomes x, z becomes y
    turned = [q.permute(order) for q in (h, v, w, u)]
    again = advection_diffusion_3d(*turned, 0.5, 0.7, 0.3, dx=1.2, dy=1.3, dz=1.1, boundary="neumann")
    torch.testing.assert_close(again, out.permute(order), **EXACT)


@given(seed=st.integers(0, 2**31), H=st.integers(1, 6), W=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_quarter_turn_swaps_the_axes(boundary, seed, H, W):
    h, u, v, D_x, D_y, f = random_fields(seed, (1, 2, H, W), 6)
    D_x, D_y = D_x.abs(), D_y.abs()

    def turn(q):  # index (y, x) goes to (W - 1 - x, y): the new x runs along y, the new y against x
        return torch.rot90(q, 1, (2, 3))

    out = advection_diffusion(h, u, v, D_x, D_y, f, K=3, dx=0.9, dy=1.2, boundary=boundary)
    turned = advection_diffusion(
        turn(h), turn(v), -turn(u), turn(D_y), turn(D_x), turn(f), K=3, dx=1.2, dy=0.9, boundary=boundary
    )
    torch.testing.assert_close(turned, turn(out), **EXACT)


def test_coefficients_may_be_maps_per_channel_or_numbers():
    (h,) = random_fields(6, (2, 3, 4, 5), 1)
    numbers = (0.4, -0.3, 0.7, 0.2)
    out = advection_diffusion(h, *numbers)
    for form in ((), (1, 3, 1, 1), (2, 3, 4, 5)):
        coefficients = [torch.full(form, c, dtype=F64) for c in numbers]
        torch.testing.assert_close(advection_diffusion(h, *coefficients), out, **EXACT)


def test_channels_and_samples_do_not_mix():
    fields = random_fields(7, (2, 3, 4, 5), 3)
    out = advection_diffusion(*fields, 1.0, 1.0)
    alone = advection_diffusion(*(q[1:, 2:] for q in fields), 1.0, 1.0)
    assert torch.equal(out[1:, 2:], alone)


@pytest.mark.parametrize("K", [1, 2, 5])
def test_trajectory_starts_at_h_and_ends_at_the_solution(K):
    h, u, v = random_fields(8, (1, 1, 4, 5), 3)
    options = {"dt": 0.2, "spacings": (1.0, 1.0), "boundary": "neumann"}
    states = list(trajectory(h, (u, v), (1.0, 1.0), K=K, **options))
    assert len(states) == K + 1
    assert torch.equal(states[0], h)
    assert torch.equal(states[-1], solve(h, (u, v), (1.0, 1.0), K=K, **options))
    for k, state in enumerate(states[1:], start=1):
        assert torch.equal(state, solve(h, (u, v), (1.0, 1.0), K=k, **options))


@pytest.mark.parametrize("K", [1, 4])
def test_nan_reaches_what_it_influences_and_no_more(K):
    h, u, v = random_fields(9, (2, 2, 11, 11), 3)
    h[1, 0, 5, 5] = torch.nan
    bad = advection_diffusion(h, u, v, 1.0, 1.0, K=K).isnan()
    distance = (torch.arange(11) - 5).abs()
    assert torch.equal(bad[1, 0], distance[:, None] + distance <= K)
    assert bad.sum() == bad[1, 0].sum()


def test_inputs_are_never_modified():
    h, h_prev, u, v, D_x, D_y, f = fields = random_fields(10, (1, 2, 3, 4), 7)
    D_x.abs_(), D_y.abs_()
    copies, versions = [q.clone() for q in fields], [q._version for q in fields]
    advection_diffusion(h, u, v, D_x, D_y, f, h_prev=h_prev, K=3)
    assert all(torch.equal(q, copy) for q, copy in zip(fields, copies, strict=True))
    assert [q._version for q in fields] == versions


def test_empty_batch_gives_an_empty_batch():
    h = torch.empty(0, 3, 4, 5)
    assert advection_diffusion(h, 0.1, 0.1, 1.0, 1.0).shape == (0, 3, 4, 5)
