import pytest
import torch
from torch import nn

from pdecnn.testing import assert_equivariant, assert_same_function, equivariance_error, mixing

x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_accepts_a_law_and_rejects_its_breach():
    quarter = lambda q: q.rot90(1, (2, 3))  # noqa: E731
    assert_equivariant(torch.relu, x, quarter)
    assert_equivariant(lambda q: q.sum((2, 3)), x, quarter, lambda s: s)
    with pytest.raises(AssertionError, match=r"not equivariant: relative error .* > 1.0e-12"):
        assert_equivariant(lambda q: q.cumsum(3), x, quarter)


def test_what_is_not_finite_is_not_equivariant():
    assert equivariance_error(lambda q: q / 0 * 0, x, lambda q: q, lambda q: q) == float("inf")


def test_mixing_is_a_matrix_product_over_channels():
    T = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(mixing(T)(x)[1, :, 2, 3], T @ x[1, :, 2, 3])


def test_same_function():
    a, b = nn.Linear(4, 2), nn.Linear(4, 2)
    b.load_state_dict(a.state_dict())
    assert_same_function(a, b, x)
    with torch.no_grad():
        b.bias += 1
    with pytest.raises(AssertionError, match="not the same function: relative output error"):
        assert_same_function(a, b, x)
    assert a.weight.dtype == torch.float32


def test_actions_must_fit():
    with pytest.raises(ValueError, match=r"acting before gives shape \(2, 5, 4, 4\), acting after \(2, 3, 4, 4\)"):
        equivariance_error(torch.relu, x, mixing(torch.ones(5, 3, dtype=torch.float64)), lambda q: q)
