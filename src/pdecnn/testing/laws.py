"""Laws that a solver or a fast kernel must obey, as assertions that say by how much they fail."""

from collections.abc import Callable

import torch
from torch import Tensor


def assert_conserves(
    solve: Callable[[Tensor], Tensor], h: Tensor, *, dims: tuple[int, ...] = (-2, -1), tolerance: float | None = None
) -> None:
    """Asserts that the sum of the state over `dims` (its mass) is the same before and after `solve`.

    Args:
        solve: Maps a state to a state of the same shape.
        h: The state to start from.
        dims: The dimensions that hold the grid.
        tolerance: Allowed change relative to the sum of `abs(h)`; by default 64 roundings of the dtype.

    Example:
        >>> h = torch.arange(6.0).view(1, 1, 2, 3)
        >>> assert_conserves(lambda h: h.roll(1, -1), h)
    """
    after = solve(h)
    if after.shape != h.shape:
        raise ValueError(
            f"assert_conserves: solve must keep the shape, got {tuple(h.shape)} before and {tuple(after.shape)} after."
        )
    tolerance = 64 * torch.finfo(h.dtype).eps if tolerance is None else tolerance
    change = (after.double().sum(dims) - h.double().sum(dims)).abs()
    allowed = tolerance * torch.maximum(h.double().abs().sum(dims), after.double().abs().sum(dims))
    if not bool((change <= allowed).all()):
        worst = int((change - allowed).nan_to_num(torch.inf).argmax())
        raise AssertionError(
            f"assert_conserves: the sum over dims {dims} changes by {change.flatten()[worst]:.3e}, "
            f"allowed {allowed.flatten()[worst]:.3e}."
        )


def assert_matches_reference(
    fast: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    *inputs: Tensor | None,
    steps: int = 1,
    scale: float = 0.0,
    slack: float = 32.0,
) -> None:
    """Asserts that `fast` gives the values and gradients of `reference`, which is run in float64.

    Both are called with `inputs`; every input that is a tensor is differentiated, `None` is passed through. Allowed is
    one rounding to the dtype of the inputs, plus `slack * steps` roundings of the arithmetic (float64 for float64, else
    float32) of the largest magnitude of the compared tensor.

    Args:
        fast: The implementation on trial.
        reference: The definition.
        inputs: Arguments of both; strides reach `fast` as they are.
        steps: Number of steps in sequence, each of which may add roundings.
        scale: A floor for the largest magnitude: the size of the terms where sums may cancel.
        slack: Roundings per step.

    Example:
        >>> assert_matches_reference(lambda q: q * 0.5 + q * 0.5, lambda q: q, torch.randn(3))
    """
    mine = [q if q is None else q.detach().requires_grad_() for q in inputs]
    exact = [q if q is None else q.detach().double().requires_grad_() for q in inputs]
    got, expected = fast(*mine), reference(*exact)
    dtype = next(q.dtype for q in inputs if q is not None)
    if got.dtype != dtype:
        raise AssertionError(f"assert_matches_reference: expected an output of {dtype}, got {got.dtype}.")
    rounding = slack * steps * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    _assert_close("the output", got, expected, rounding, scale)

    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(expected.shape, generator=generator, dtype=torch.float64).to(dtype)
    leaves = [(i, q) for i, q in enumerate(mine) if q is not None]
    gradients = torch.autograd.grad(got, [q for _, q in leaves], cotangent.to(got.device))
    exact_gradients = torch.autograd.grad(expected, [q for q in exact if q is not None], cotangent.double())
    for (i, q), gradient, exact_gradient in zip(leaves, gradients, exact_gradients, strict=True):
        if gradient.dtype != q.dtype:
            raise AssertionError(f"assert_matches_reference: the gradient of input {i} is {gradient.dtype}.")
        _assert_close(f"the gradient of input {i}", gradient, exact_gradient, rounding, scale)


def _assert_close(what: str, got: Tensor, expected: Tensor, rounding: float, scale: float) -> None:
    if got.shape != expected.shape:
        raise AssertionError(
            f"assert_matches_reference: {what} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}."
        )
    if expected.numel() == 0:
        return
    expected = expected.detach().to(got.device)
    magnitude = expected.abs()
    allowed = torch.finfo(got.dtype).eps * magnitude + rounding * magnitude.max().clamp(min=scale)
    distance = (got.detach().double() - expected).abs()
    if not bool((distance <= allowed).all()):
        worst = int((distance - allowed).nan_to_num(torch.inf).argmax())
        raise AssertionError(
            f"assert_matches_reference: {what} is off by {distance.flatten()[worst]:.3e} at flat index {worst} "
            f"(value {expected.flatten()[worst]:.3e}), allowed {allowed.flatten()[worst]:.3e}."
        )
