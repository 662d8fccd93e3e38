"""The law-checkers accept what holds and name what does not."""

import pytest
import torch

from pdecnn.testing import assert_conserves, assert_matches_reference, assert_order, measured_orders


def test_order_is_measured_and_a_lower_one_refused():
    assert measured_orders([8.0, 1.0], [2.0, 1.0]) == pytest.approx([3.0])
    assert assert_order(lambda s: s**2, [0.4, 0.2, 0.1], 2) == pytest.approx([2.0, 2.0])
    assert assert_order(lambda s: s**3, [0.4, 0.2], 2) == pytest.approx([3.0])
    with pytest.raises(
        AssertionError, match=r"expected order 2 \(tolerance 0\.1\), measured 1\.000 on the finest pair"
    ):
        assert_order(lambda s: s, [0.4, 0.2, 0.1], 2)
    with pytest.raises(AssertionError, match="measured nan"):
        assert_order(lambda s: float("nan"), [0.4, 0.2], 2)
    with pytest.raises(ValueError, match="at least two, got 1 errors and 1 spacings"):
        measured_orders([1.0], [1.0])


def test_conservation_sees_a_leak():
    h = torch.rand(2, 3, 4, 5)
    assert_conserves(lambda h: h.roll((1, 2), (-2, -1)), h)
    with pytest.raises(AssertionError, match=r"assert_conserves: the sum over dims \(-2, -1\) changes by"):
        assert_conserves(lambda h: 0.999 * h, h)
    with pytest.raises(AssertionError, match="assert_conserves"):
        assert_conserves(lambda h: h * float("nan"), h)
    with pytest.raises(ValueError, match="solve must keep the shape"):
        assert_conserves(lambda h: h[..., :1], h)


def square(q, r=None):
    return q * q


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_reference_is_matched_up_to_roundings(dtype):
    q = torch.linspace(-2, 2, 9, dtype=dtype)
    assert_matches_reference(lambda q: q.pow(2), square, q)
    off = 1 + 100 * torch.finfo(dtype).eps
    with pytest.raises(AssertionError, match="the output is off by"):
        assert_matches_reference(lambda q: q * q * off, square, q)


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q):
        ctx.save_for_backward(q)
        return q * q

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]  # the factor 2 is missing


def test_wrong_gradient_shape_dtype_and_nan_are_seen():
    q = torch.ones(3)
    assert_matches_reference(square, square, q, None)  # None is passed through
    with pytest.raises(AssertionError, match="the gradient of input 0 is off by"):
        assert_matches_reference(WrongGradient.apply, square, q)
    with pytest.raises(AssertionError, match=r"the output has shape \(1, 3\), expected \(3,\)"):
        assert_matches_reference(lambda q: square(q)[None], square, q)
    with pytest.raises(AssertionError, match=r"expected an output of torch\.float32, got torch\.float64"):
        assert_matches_reference(lambda q: square(q).double(), square, q)
    with pytest.raises(AssertionError, match="the output is off by nan"):
        assert_matches_reference(lambda q: square(q) * float("nan"), square, q)
