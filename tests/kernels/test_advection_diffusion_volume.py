"""The solver for volumes: values, gradients and laws against the definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_cases import BOUNDARIES, DTYPES

from pdecnn import functional, reference
from pdecnn.testing import assert_matches_reference


def fields(shape, dtype=torch.float32, forms=("map",) * 6, seed=0):
    """h, h_prev, u, v, w, D_x, D_y, D_z, f as the operator takes them."""
    sizes = {"map": shape, "channel": (1, shape[1], 1, 1, 1), "0-d": ()}
    made = []
    for i, form in enumerate(("map", "map", *forms, "map")):
        generator = torch.Generator().manual_seed(9 * seed + i)
        q = torch.randn(sizes[form], generator=generator, dtype=torch.float64)
        made.append((q.abs() if i in (5, 6, 7) else q).to(dtype))
    return made


def solve(room, h, h_prev, u, v, w, D_x, D_y, D_z, f, **options):
    return room.advection_diffusion_3d(h, u, v, w, D_x, D_y, D_z, f, h_prev=h_prev, **options)


def compare(inputs, **options):
    options = {"dt": 0.1, "dx": 1.3, "dy": 0.8, "dz": 1.1, **options}
    summed = max(inputs[0].numel() // max(1, q.numel()) for q in inputs if q is not None)
    assert_matches_reference(
        lambda *q: solve(functional, *q, **options),
        lambda *q: solve(reference, *q, **options),
        *inputs,
        steps=options["K"],
        scale=max(1, summed) ** 0.5,
    )


@st.composite
def problems(draw):
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 3)), *(draw(st.integers(1, 6)) for _ in range(2)))
    forms = [draw(st.sampled_from(("map", "map", "channel", "0-d"))) for _ in range(6)]
    made = fields((*shape, draw(st.integers(1, 20))), draw(st.sampled_from(DTYPES)), forms)
    for i in (1, 8):
        made[i] = draw(st.sampled_from((made[i], None)))
    return made


@given(inputs=problems(), K=st.integers(1, 3), boundary=st.sampled_from(BOUNDARIES))
@settings(max_examples=40, deadline=None)
def test_values_and_gradients_are_those_of_the_definition(inputs, K, boundary):
    compare(inputs, K=K, boundary=boundary)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_volume_of_one_plane_is_the_plane(boundary):
    h, _, u, v, _, D_x, D_y, _, f = fields((2, 3, 1, 5, 9), torch.float64)
    flat = [q[:, :, 0] for q in (h, u, v, D_x, D_y, f)]
    out = functional.advection_diffusion_3d(h, u, v, 0.0, D_x, D_y, 0.0, f, K=3, boundary=boundary)
    torch.testing.assert_close(out[:, :, 0], functional.advection_diffusion(*flat, K=3, boundary=boundary))


def test_gradients_are_those_of_finite_differences():
    inputs = [q.requires_grad_() for q in fields((1, 2, 2, 3, 4), torch.float64)]
    torch.autograd.gradcheck(lambda *q: solve(functional, *q, K=2, dt=0.1, boundary="neumann"), inputs)


def test_the_operator_keeps_torchs_rules():
    inputs = [q.requires_grad_() for q in fields((1, 2, 2, 3, 4), torch.float64, ("map", "channel", "0-d") * 2)]
    arguments = (*inputs, 2, 0.1, 1.0, 1.0, 1.0, "periodic")
    torch.library.opcheck(torch.ops.pdecnn.advection_diffusion_3d.default, arguments)


def test_any_order_of_memory_and_number_of_threads():
    inputs = fields((2, 5, 4, 6, 10))
    expected = solve(functional, *inputs, K=3)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(solve(functional, *inputs, K=3), expected)
    finally:
        torch.set_num_threads(before)
    last = [q.contiguous(memory_format=torch.channels_last_3d) for q in inputs]
    assert torch.equal(solve(functional, *last, K=3), expected)
