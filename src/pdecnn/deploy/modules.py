"""Modules that a tracer cannot follow, in a form that it can: iterations of fixed length, equations solved by hand."""

from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.deploy.check import CannotExportError
from pdecnn.deploy.ode import is_adaptive
from pdecnn.layers.equilibrium import Equilibrium
from pdecnn.layers.global_fusion import fused
from pdecnn.layers.global_layer import GlobalLayer
from pdecnn.shared.modules import replace


class UnrolledEquilibrium(nn.Module):
    """`Equilibrium` in a fixed number of operators: all evaluations are written out, and the best state so far is kept.

    Once the residual is below the tolerance, no later state replaces it, so that the answer is that of the loop which
    stops there. The few linear equations of each step are solved by elimination.
    """

    def __init__(self, layer: Equilibrium) -> None:
        super().__init__()
        self.g, self.max_evaluations = layer.g, layer.max_evaluations
        self.tol, self.m = layer.solver["tol"], layer.solver["m"]
        self.beta, self.ridge = layer.solver.get("beta", 1.0), layer.solver.get("ridge", 1e-4)

    def forward(self, z0: Tensor, x: Any) -> Tensor:
        """The fixed point near `z0`."""
        z, best = z0, z0
        least: Tensor | None = None
        states: list[Tensor] = []
        images: list[Tensor] = []
        for k in range(self.max_evaluations):
            image = self.g(z, x)
            states, images = [*states, z.flatten(1)][-self.m :], [*images, image.flatten(1)][-self.m :]
            residual = _relative_residual(states[-1], images[-1])
            if least is None:
                best, least = z, residual
            else:
                better = (least > self.tol) & (residual < least)
                best, least = torch.where(better, z, best), torch.where(better, residual, least)
            if k + 1 < self.max_evaluations:
                z = self._combine(torch.stack(states, 1), torch.stack(images, 1)).view_as(z0)
        return best

    def _combine(self, states: Tensor, images: Tensor) -> Tensor:
        residuals = images - states
        gram = residuals @ residuals.mT  # (N, m, m)
        m = gram.shape[1]
        identity = torch.eye(m, dtype=gram.dtype)
        scale = (gram * identity).sum((1, 2), keepdim=True) / m
        gram = gram / scale.clamp(min=torch.finfo(gram.dtype).tiny) + self.ridge * identity
        alpha = solve_positive(gram)
        alpha = alpha / alpha.sum(1, keepdim=True)
        z: Tensor = (alpha * (states + self.beta * residuals)).sum(1)
        return z


def _relative_residual(z: Tensor, image: Tensor) -> Tensor:
    scale = image.square().sum(1).sqrt().clamp(min=torch.finfo(z.dtype).tiny)
    return ((image - z).square().sum(1).sqrt() / scale).max()


def solve_positive(A: Tensor) -> Tensor:
    """`A^{-1} 1` for symmetric positive matrices `(N, m, m)`, as `(N, m, 1)`, by elimination without pivots.

    Example:
        >>> solve_positive(torch.tensor([[[4.0, 2.0], [2.0, 2.0]]])).flatten()
        tensor([0.0000, 0.5000])
    """
    m = A.shape[1]
    rows = torch.cat([A, torch.ones_like(A[:, :, :1])], 2)  # (N, m, m + 1)
    identity = torch.eye(m, dtype=A.dtype)
    for i in range(m):
        unit = identity[:, i].view(1, m, 1)
        pivot = rows[:, i : i + 1] / rows[:, i : i + 1, i : i + 1]
        rows = (1 - unit) * (rows - rows[:, :, i : i + 1] * pivot) + unit * pivot
    return rows[:, :, m:]


def prepare(model: nn.Module, *, whole_layers: bool = True) -> nn.Module:
    """Replaces, in `model` itself, the modules above and, with `whole_layers`, covered Global layers by one operator.

    Refuses what cannot be traced.
    """
    for name, module in list(model.named_modules()):
        if is_adaptive(module):
            raise CannotExportError(
                f"export: {name or 'the model'} is an ODEBlock with the adaptive method {module.method!r}, whose "
                "number of steps depends on the input. Export it with equal steps instead: pdecnn export --ode-steps "
                "8, or in Python `from pdecnn.deploy import fix_steps` and export fix_steps(model, 8). A new model "
                "takes them as create_model(..., gradient='anode', method='rk4', steps=8)."
            )

    def traceable(module: nn.Module) -> nn.Module:
        if isinstance(module, Equilibrium):
            return UnrolledEquilibrium(module)
        return fused(module) if whole_layers and isinstance(module, GlobalLayer) else module

    return replace(model, traceable)
