"""Symmetry as a law: a function commutes with a group action, or two networks compute the same function."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Action = Callable[[Tensor], Tensor]


def equivariance_error(function: Callable[[Tensor], Tensor], x: Tensor, before: Action, after: Action) -> float:
    """`max |function(before(x)) - after(function(x))|`, relative to the largest value; infinity if it is not finite."""
    with torch.no_grad():
        turned_first, turned_last = function(before(x)), after(function(x))
    if turned_first.shape != turned_last.shape:
        raise ValueError(
            f"equivariance_error: acting before gives shape {tuple(turned_first.shape)}, acting after "
            f"{tuple(turned_last.shape)}; the two actions do not fit the function."
        )
    scale = turned_last.abs().max().clamp_min(torch.finfo(x.dtype).tiny)
    error = ((turned_first - turned_last).abs().max() / scale).item()
    return error if error == error else float("inf")


def assert_equivariant(
    function: Callable[[Tensor], Tensor], x: Tensor, before: Action, after: Action | None = None, *, rtol: float = 1e-12
) -> None:
    """Raises an AssertionError unless `function(before(x)) = after(function(x))` up to `rtol`.

    Args:
        function: A function or module.
        x: Where to test it.
        before: The action on the input.
        after: The action on the output; that on the input by default. For an invariant function it is the identity.
        rtol: Largest difference, relative to the largest value.

    Example:
        >>> assert_equivariant(torch.relu, torch.randn(2, 4), lambda x: 3 * x)
        >>> assert_equivariant(torch.relu, torch.ones(2, 4), lambda x: -x)
        Traceback (most recent call last):
        AssertionError: not equivariant: relative error 1.0e+00 > 1.0e-12.
    """
    error = equivariance_error(function, x, before, before if after is None else after)
    if not error <= rtol:
        raise AssertionError(f"not equivariant: relative error {error:.1e} > {rtol:.1e}.")


def assert_same_function(model: nn.Module, other: nn.Module, x: Tensor, *, rtol: float = 1e-10) -> None:
    """Raises an AssertionError unless both networks, in inference mode and float64, have the same outputs on `x`.

    The networks are copied; neither is changed.
    """
    from pdecnn.symmetry.transform import verify

    error = verify(model, other, x)
    if not error <= rtol:
        raise AssertionError(f"not the same function: relative output error {error:.1e} > {rtol:.1e}.")


def mixing(T: Tensor) -> Action:
    """The action of a matrix on the channels: `(N, C, ...) -> (N, C', ...)`.

    Example:
        >>> mixing(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))(torch.tensor([[3.0, 4.0]]))
        tensor([[4., 3.]])
    """
    return lambda x: torch.einsum("ij,nj...->ni...", T, x)
