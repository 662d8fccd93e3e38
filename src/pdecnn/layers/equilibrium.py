"""A layer whose output is the fixed point of another: `z = g(z, x)`, with the gradient of the implicit function."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pdecnn.reference.fixed_point import anderson


class Equilibrium(nn.Module):
    r"""Solves `z = g(z, x)` by Anderson acceleration and differentiates the solution, not the iteration.

    With `J = dg/dz` at the solution, the implicit function theorem gives

    .. math:: \partial_\theta z = (I - J)^{-1} \partial_\theta g, \qquad y = J^T y + \bar z

    so the backward pass solves a second fixed-point problem, for y, by the same method. No iterate is stored: memory
    does not grow with the number of iterations.

    Args:
        g: A module called as `g(z, x)`, of the shape of z. It must be a function of its arguments alone during one
            pass: no batch norm in training mode, no fresh dropout.
        max_evaluations: Limit of the calls of g in the forward solve.
        max_backward_evaluations: Limit of the products with `J^T` in the backward solve.
        tol: Relative residual at which either solve stops.
        m: Number of iterates that are combined.

    Attributes:
        residual: Relative residual of the last forward solve.
        evaluations: Calls of g in it.
        backward_residual: Relative residual of the last backward solve.
        backward_evaluations: Products with `J^T` in it.

    Example:
        >>> class Tanh(nn.Module):
        ...     def forward(self, z, x):
        ...         return torch.tanh(0.5 * z + x)
        >>> z = Equilibrium(Tanh(), tol=1e-6)(torch.zeros(1, 3), torch.ones(1, 3))
        >>> torch.allclose(z, torch.tanh(0.5 * z + 1), atol=1e-5)
        True
    """

    def __init__(
        self,
        g: nn.Module,
        *,
        max_evaluations: int = 18,
        max_backward_evaluations: int = 20,
        tol: float = 1e-3,
        m: int = 5,
        **solver: Any,
    ) -> None:
        super().__init__()
        self.g = g
        self.max_evaluations, self.max_backward_evaluations = max_evaluations, max_backward_evaluations
        self.solver = {"tol": tol, "m": m, **solver}
        self.residual = self.backward_residual = float("nan")
        self.evaluations = self.backward_evaluations = 0

    def forward(self, z0: Tensor, x: Any) -> Tensor:
        """The fixed point near `z0`, given the input `x` (a tensor or any tree of tensors that g takes)."""
        with torch.no_grad(), parametrize.cached():
            found = anderson(lambda z: self.g(z, x), z0, max_evaluations=self.max_evaluations, **self.solver)
        self.residual, self.evaluations = found.residual, found.evaluations
        z = found.z
        if not torch.is_grad_enabled():
            return z
        out: Tensor = self.g(z, x)  # equal to z up to the residual; carries the gradient to x and the parameters
        if out.requires_grad:
            at = z.clone().requires_grad_()
            image = self.g(at, x)
            out.register_hook(self._implicit(at, image))  # type: ignore[no-untyped-call]
        return out

    def _implicit(self, at: Tensor, image: Tensor) -> Callable[[Tensor], Tensor]:
        """Maps the gradient of the output to the solution y of `y = J^T y + gradient`."""

        def solve(grad: Tensor) -> Tensor:
            def step(y: Tensor) -> Tensor:
                return torch.autograd.grad(image, at, y, retain_graph=True)[0] + grad

            found = anderson(step, grad, max_evaluations=self.max_backward_evaluations, **self.solver)
            self.backward_residual, self.backward_evaluations = found.residual, found.evaluations
            return found.z

        return solve
