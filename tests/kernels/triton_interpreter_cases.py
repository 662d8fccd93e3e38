"""The Triton solver against the reference, on CPU tensors under Triton's interpreter.

`test_advection_diffusion_triton.py` runs this file in a process of its own with TRITON_INTERPRET=1, which Triton reads
when it is first imported. To run it by hand: `TRITON_INTERPRET=1 pytest tests/kernels/triton_interpreter_cases.py`.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pdecnn.reference import advection_diffusion
from pdecnn.testing import assert_matches_reference

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("triton_interpreter_cases.py needs TRITON_INTERPRET=1 in the environment.")

from pdecnn.kernels.advection_diffusion import triton

BOUNDARIES = ("periodic", "neumann", "dirichlet")
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
ALL = [True] * 7


@pytest.fixture(autouse=True, scope="module")
def _uninitialised_memory_is_nan():
    """Fills `torch.empty` with NaN, so that unwritten outputs and scratch are seen."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


class Solve(torch.autograd.Function):
    """The two launchers as one differentiable function."""

    @staticmethod
    def forward(ctx, options, *fields):
        ctx.options = options
        ctx.save_for_backward(*fields)
        return triton.forward(*fields, *options)

    @staticmethod
    def backward(ctx, grad):
        needs = list(ctx.needs_input_grad[1:])
        gradients = triton.backward(grad, *ctx.saved_tensors, *ctx.options, needs)
        assert all((g.numel() == 0 and g.ndim == 1) != need for g, need in zip(gradients, needs, strict=True))
        return None, *(g if need else None for g, need in zip(gradients, needs, strict=True))


def compare(fields, K=3, dt=0.2, dx=1.3, dy=0.8, boundary="periodic"):
    def reference(h, h_prev, u, v, D_x, D_y, f):
        return advection_diffusion(
            h, u, v, D_x, D_y, f, h_prev=h_prev, K=K, dt=dt, dx=dx, dy=dy, boundary=boundary
        )  # fmt: skip

    before = [None if q is None else q.clone() for q in fields]
    options = (K, dt, dx, dy, boundary)
    assert_matches_reference(lambda *q: Solve.apply(options, *q), reference, *fields, steps=K, scale=1.0)
    for q, copy in zip(fields, before, strict=True):
        assert q is None or torch.equal(q, copy), "an input was modified"


def with_layout(q, layout):
    """The same values with other strides."""
    N, C, H, W = q.shape
    if layout == "channels_last":
        return q.contiguous(memory_format=torch.channels_last)
    if layout == "sliced":
        big = torch.full((N, C + 1, H + 2, 2 * W), torch.nan, dtype=q.dtype)
        big[:, 1:, 1:-1, ::2] = q
        return big[:, 1:, 1:-1, ::2]
    if layout == "transposed":
        return q.transpose(2, 3).contiguous().transpose(2, 3)
    if layout == "expanded":
        return q[:, :1, :, :1].expand(N, C, H, W)
    return q


def field(shape, dtype, seed, layout="contiguous", form="map", positive=False):
    generator = torch.Generator().manual_seed(seed)
    size = {"map": shape, "channel": (1, shape[1], 1, 1), "number": ()}[form]
    q = torch.randn(size, generator=generator, dtype=torch.float64)
    q = (q.abs() if positive else q).to(dtype)
    return with_layout(q, layout) if form == "map" else q


@st.composite
def problems(draw):
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 5)), draw(st.integers(1, 6)))
    dtype = draw(st.sampled_from(DTYPES))
    layouts = st.sampled_from(("contiguous", "channels_last", "sliced", "transposed", "expanded"))
    forms = st.sampled_from(("map", "channel", "number"))
    h, h_prev, f = (field(shape, dtype, seed, draw(layouts)) for seed in range(3))
    u, v = (field(shape, dtype, seed, draw(layouts), draw(forms)) for seed in (3, 4))
    D_x, D_y = (field(shape, dtype, seed, draw(layouts), draw(forms), positive=True) for seed in (5, 6))
    return [h, draw(st.sampled_from((h_prev, None))), u, v, D_x, D_y, draw(st.sampled_from((f, None)))]


@given(fields=problems(), K=st.integers(1, 3), boundary=st.sampled_from(BOUNDARIES))
@settings(
    max_examples=24,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # shrinking takes minutes in the interpreter
    suppress_health_check=list(HealthCheck),
)
def test_values_and_gradients_match_the_reference(fields, K, boundary):
    compare(fields, K=K, boundary=boundary)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(1, 1, 5, 7), (1, 1, 1, 9), (1, 1, 9, 1), (1, 1, 1, 1), (1, 1, 2, 2)])
def test_planes_of_one_tile(boundary, shape):
    compare([field(shape, torch.float64, seed, positive=seed in (4, 5)) for seed in range(7)], boundary=boundary)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_planes_larger_than_a_tile(boundary, monkeypatch):
    monkeypatch.setattr(triton, "TILE_ELEMENTS", 8)
    shape = (1, 1, 3, 9)  # tiles of 1 x 8: rows and columns are both cut
    fields = [field(shape, torch.float64, seed) for seed in range(7)]
    forms = ("map", "number", "channel", "map")
    fields[2:6] = [field(shape, torch.float64, 2 + i, form=form, positive=i > 1) for i, form in enumerate(forms)]
    compare(fields, K=2, boundary=boundary)


def test_programs_share_planes_and_reuse_their_scratch(monkeypatch):
    shape, K = (2, 2, 2, 3), 2
    fields = [field(shape, torch.float64, seed, positive=seed in (4, 5)) for seed in range(7)]
    monkeypatch.setattr(triton, "SCRATCH_BYTES", 1)  # one program for all four planes
    assert triton._programs(fields[0], 1, 2 * (K + 2) * 6 * 8) == 1
    compare(fields, K=K)


def test_scratch_stays_within_its_bound():
    h = torch.empty(64, 64, 1, 1)
    assert triton._programs(h, 1, triton.SCRATCH_BYTES) == 1
    assert triton._programs(h, 1, 10 * triton.SCRATCH_BYTES) == 1  # a plane must be solved all the same
    assert triton._programs(h, 1, 1) == 2


def test_nan_stays_within_its_reach():
    h = torch.zeros(1, 1, 1, 9)
    h[..., 4] = torch.nan
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    out = triton.forward(h, None, zero, zero, one, one, None, 2, 0.2, 1.0, 1.0, "neumann")
    assert out.isnan().flatten().tolist() == [False, False, True, True, True, True, True, False, False]


def test_each_gradient_can_be_asked_for_alone():
    shape = (1, 1, 2, 3)
    fields = [field(shape, torch.float64, seed, positive=seed in (4, 5)) for seed in range(7)]
    grad = field(shape, torch.float64, 7)
    options = (2, 0.2, 1.0, 1.0, "neumann")
    together = triton.backward(grad, *fields, *options, ALL)
    for needed in range(7):
        alone = triton.backward(grad, *fields, *options, [i == needed for i in range(7)])
        for i in range(7):
            assert torch.equal(alone[i], together[i] if i == needed else fields[0].new_empty(0))


def test_without_h_prev_its_gradient_belongs_to_h():
    h, u, v, D_x, D_y, grad = (field((1, 1, 3, 2), torch.float64, s, positive=s in (3, 4)) for s in range(6))
    options = (3, 0.2, 1.0, 1.0, "periodic")
    merged = triton.backward(grad, h, None, u, v, D_x, D_y, None, *options, ALL)
    apart = triton.backward(grad, h, h, u, v, D_x, D_y, None, *options, ALL)
    torch.testing.assert_close(merged[0], apart[0] + apart[1], rtol=1e-14, atol=1e-14)
    assert merged[1].shape == (0,)
    assert merged[6].shape == (0,)
