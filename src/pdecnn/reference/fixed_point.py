r"""Anderson acceleration for `z = g(z)`, sample by sample [Anderson 1965; Walker & Ni 2011].

From the last m pairs `(z_i, g(z_i))` the next iterate is the affine combination of the `g(z_i)` whose residuals
cancel best:

.. math::

    z^{k+1} = \sum_i \alpha_i\, \big((1 - \beta) z_i + \beta\, g(z_i)\big), \qquad
    \alpha = \arg\min_{\sum \alpha = 1} \Big\| \sum_i \alpha_i\, (g(z_i) - z_i) \Big\|^2 + \lambda \|\alpha\|^2

For a linear g in D dimensions and m > D it finds the solution in D + 1 steps, as GMRES does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FixedPoint:
    """What `anderson` found.

    Attributes:
        z: The iterate with the smallest residual, of the shape of `z0`.
        residual: `max over samples of |g(z) - z| / |g(z)|` there; nan in a traced solve.
        evaluations: How often g was called.
    """

    z: Tensor
    residual: float
    evaluations: int


def anderson(
    g: Callable[[Tensor], Tensor],
    z0: Tensor,
    *,
    m: int = 5,
    max_evaluations: int = 30,
    tol: float = 1e-3,
    beta: float = 1.0,
    ridge: float = 1e-4,
) -> FixedPoint:
    """Solves `z = g(z)` from `z0`; each sample (first dimension) has its own combination.

    A traced solve (`torch.compile`, `torch.export`, the meta device) cannot stop early: it makes all `max_evaluations`
    and gives the same z, but the residual is not known (nan).

    Args:
        g: Any function of tensors of the shape of `z0`.
        z0: The first guess, `(N, ...)`.
        m: Number of past iterates that are combined.
        max_evaluations: Limit of calls of g.
        tol: Relative residual at which to stop.
        beta: Damping; 1 is none.
        ridge: Regularisation of the least squares, relative to its matrix.

    Example:
        >>> solution = anderson(torch.cos, torch.zeros(1, 1, dtype=torch.float64), tol=1e-10, ridge=1e-12)
        >>> round(float(solution.z), 8), solution.evaluations < 20
        (0.73908513, True)
    """
    if m < 1 or max_evaluations < 1:
        raise ValueError(f"anderson: m and max_evaluations must be at least 1, got {m} and {max_evaluations}.")
    traced = z0.is_meta or torch.compiler.is_compiling()
    z = best = z0
    least = z0.new_full((), float("inf"))
    done = torch.zeros((), dtype=torch.bool, device=z0.device)
    states: list[Tensor] = []
    images: list[Tensor] = []
    for k in range(1, max_evaluations + 1):
        states, images = [*states, z.flatten(1)][-m:], [*images, g(z).flatten(1)][-m:]
        residual = _relative_residual(states[-1], images[-1])
        better = (residual < least) & ~done
        best, least = torch.where(better, z, best), torch.where(better, residual, least)
        done = done | (residual <= tol)
        if k == max_evaluations or (not traced and bool(done)):
            break
        z = _combine(torch.stack(states, 1), torch.stack(images, 1), beta, ridge).view_as(z0)
    return FixedPoint(best, float("nan") if traced else float(least), k)


def _combine(states: Tensor, images: Tensor, beta: float, ridge: float) -> Tensor:
    """The affine combination above, from the pairs `(N, m, D)`."""
    residuals = images - states
    gram = residuals @ residuals.mT  # (N, m, m)
    scale = gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=torch.finfo(gram.dtype).tiny)
    gram = gram / scale[:, None, None] + ridge * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    alpha = torch.linalg.solve(gram, gram.new_ones(*gram.shape[:2], 1))  # (N, m, 1), up to its sum
    alpha = alpha / alpha.sum(1, keepdim=True)
    z: Tensor = (alpha * (states + beta * residuals)).sum(1)
    return z


def _relative_residual(z: Tensor, image: Tensor) -> Tensor:
    """The largest of the samples, 0 if there are none."""
    scale = image.norm(dim=1).clamp(min=torch.finfo(z.dtype).tiny)
    residuals = (image - z).norm(dim=1) / scale
    return torch.cat([residuals, residuals.new_zeros(1)]).max()
