import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.reference.fixed_point import anderson


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), D=st.integers(1, 4), N=st.integers(1, 4))
def test_a_linear_problem_is_solved_in_one_more_step_than_it_has_dimensions(seed, D, N):
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(N, D, D, generator=g, dtype=torch.float64)
    A = 0.9 * A / torch.linalg.matrix_norm(A, 2)[:, None, None]
    b = torch.randn(N, D, 1, generator=g, dtype=torch.float64)
    exact = torch.linalg.solve(torch.eye(D, dtype=torch.float64) - A, b)[..., 0]
    found = anderson(
        lambda z: (A @ z[..., None] + b)[..., 0], torch.zeros(N, D).double(), m=D + 2, tol=1e-9, ridge=1e-15
    )
    torch.testing.assert_close(found.z, exact, rtol=1e-6, atol=1e-6)
    assert found.evaluations <= D + 4  # D + 1 in exact arithmetic, then the evaluation that notices


def test_it_beats_plain_iteration_and_each_sample_is_on_its_own():
    def cos(z):
        return torch.cos(z)

    z0 = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    both = anderson(cos, z0, tol=1e-10, ridge=1e-12)
    assert both.z[0].item() == pytest.approx(0.7390851332151607, abs=1e-9)
    plain = z0
    for _ in range(both.evaluations):
        plain = torch.cos(plain)
    assert abs(plain[0] - 0.7390851332151607) > 1e-4 > both.residual
    alone = anderson(cos, z0[:1], tol=1e-10, ridge=1e-12, max_evaluations=4)
    together = anderson(cos, z0, tol=1e-10, ridge=1e-12, max_evaluations=4)
    assert torch.equal(alone.z, together.z[:1])


def test_the_best_iterate_is_returned_when_nothing_converges():
    found = anderson(lambda z: 2 / z, torch.tensor([[1.0]]), m=1, max_evaluations=6)  # 1, 2, 1, 2, ...
    assert found.z.item() == 1.0
    assert found.residual == 0.5
    assert found.evaluations == 6


@pytest.mark.parametrize("tol", [1e-12, 1e-3])
def test_a_compiled_solve_gives_the_same_point_without_stopping_early(tol):
    def solve(z):
        return anderson(torch.cos, z, tol=tol, max_evaluations=9).z

    z0 = torch.zeros(2, 3, dtype=torch.float64)
    assert torch.equal(torch.compile(solve, fullgraph=True, backend="eager")(z0), solve(z0))


def test_a_diverging_solve_does_not_return_nan():
    found = anderson(lambda z: torch.exp(50 * z * z), torch.full((1, 1), 0.1), max_evaluations=20)
    assert found.z.isfinite().all()


def test_meta_and_empty_batches():
    found = anderson(torch.cos, torch.zeros(2, 3, device="meta"), max_evaluations=4)
    assert (found.z.device.type, found.evaluations) == ("meta", 4)
    assert math.isnan(found.residual)
    assert anderson(torch.cos, torch.zeros(0, 3), max_evaluations=2).z.shape == (0, 3)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="at least 1, got 0 and 30"):
        anderson(torch.cos, torch.zeros(1, 1), m=0)
