r"""A layer that is the time-one map of an ordinary differential equation `dh/dt = f(t, h)`.

Three ways to its gradient, by name:

- `"direct"`: torchdiffeq's solver is differentiated step by step [Chen et al. 2018 call this RK-Net];
- `"adjoint"`: the adjoint equation is solved backwards in time by torchdiffeq, in memory that does not grow with the
  steps [Chen et al. 2018]; its gradient is that of the continuous problem, not of the discrete one;
- `"anode"`: fixed steps, differentiated exactly, with only the layer's input stored and the steps computed again in the
  backward pass [Gholami, Keutzer, Biros 2019: ANODE]. It needs no torchdiffeq.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from pdecnn.shared.extras import require
from pdecnn.shared.modules import with_momentum

GRADIENTS = ("anode", "direct", "adjoint")

# explicit Runge-Kutta tableaus: the rows of a (below the diagonal), then the weights b; the nodes are the row sums
TABLEAUS: dict[str, tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]] = {
    "euler": (((),), (1.0,)),
    "midpoint": (((), (0.5,)), (0.0, 1.0)),
    "heun": (((), (1.0,)), (0.5, 0.5)),
    "rk4": (((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}


def runge_kutta(f: Callable[[Tensor, Tensor], Tensor], h: Tensor, steps: int, method: str, t1: float = 1.0) -> Tensor:
    """`steps` equal explicit steps of `dh/dt = f(t, h)` from 0 to `t1`.

    Example:
        >>> class Growth(nn.Module):
        ...     def forward(self, t, h):
        ...         return h
        >>> runge_kutta(Growth(), torch.ones(1), steps=4, method="euler") == 1.25**4
        tensor([True])
    """
    rows, weights = TABLEAUS[method]
    dt = t1 / steps
    for n in range(steps):
        slopes: list[Tensor] = []
        for row in rows:
            t = torch.tensor((n + sum(row)) * dt, dtype=h.dtype, device=h.device)
            slopes.append(f(t, _advance(h, dt, row, slopes)))
        h = _advance(h, dt, weights, slopes)
    return h


def _advance(h: Tensor, dt: float, weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    for weight, slope in zip(weights, slopes, strict=True):
        h = h + (dt * weight) * slope if weight else h
    return h


class ODEBlock(nn.Module):
    """The state at time `t1` of `dh/dt = f(t, h)` that starts from the input.

    Args:
        f: A module called as `f(t, h)`, of the shape of h.
        gradient: `"anode"`, `"direct"` or `"adjoint"`, see above.
        method: A method of torchdiffeq (`"dopri5"`, ...), or with `steps` one of `"euler"`, `"midpoint"`, `"heun"`
            (not in torchdiffeq's list: with `"anode"` only) and `"rk4"`.
        steps: Number of equal steps; None for the adaptive methods of torchdiffeq.
        rtol: Relative tolerance of adaptive methods.
        atol: Absolute tolerance of adaptive methods.
        t1: Final time.

    Attributes:
        evaluations: How often f was called in the last forward pass.
    """

    def __init__(
        self,
        f: nn.Module,
        *,
        gradient: str = "anode",
        method: str = "euler",
        steps: int | None = 2,
        rtol: float = 1e-3,
        atol: float = 1e-3,
        t1: float = 1.0,
    ) -> None:
        super().__init__()
        if gradient not in GRADIENTS:
            raise ValueError(f"ODEBlock: gradient must be one of {', '.join(GRADIENTS)}, got {gradient!r}.")
        if gradient == "anode" and (method not in TABLEAUS or not steps):
            raise ValueError(
                f"ODEBlock: gradient='anode' takes equal steps of one of {', '.join(TABLEAUS)}, got method={method!r} "
                f"and steps={steps}. Use gradient='direct' or 'adjoint' for adaptive methods."
            )
        if steps is not None and steps < 1:
            raise ValueError(f"ODEBlock: steps must be at least 1, got steps={steps}.")
        self.f, self.gradient, self.method, self.steps = f, gradient, method, steps
        self.rtol, self.atol, self.t1 = rtol, atol, t1
        self.evaluations = 0

    def forward(self, h: Tensor) -> Tensor:
        """The state at time `t1`, of the shape of `h`."""
        self.evaluations = 0
        if self.gradient != "anode":
            return self._torchdiffeq(h)
        assert self.steps is not None
        if not (torch.is_grad_enabled() and self.training):
            return runge_kutta(self._slope, h, self.steps, self.method, self.t1)
        out: Tensor = checkpoint(
            runge_kutta,
            self._slope,
            h,
            self.steps,
            self.method,
            self.t1,
            use_reentrant=False,
            context_fn=self._contexts,
        )
        return out

    def extra_repr(self) -> str:
        """The options that can be seen."""
        steps = f"steps={self.steps}" if self.steps else f"rtol={self.rtol:g}, atol={self.atol:g}"
        return f"gradient={self.gradient!r}, method={self.method!r}, {steps}, t1={self.t1:g}"

    def _torchdiffeq(self, h: Tensor) -> Tensor:
        torchdiffeq = require("torchdiffeq", "ode")
        times = torch.tensor([0.0, self.t1], dtype=h.dtype, device=h.device)
        options: dict[str, Any] = {"rtol": self.rtol, "atol": self.atol, "method": self.method}
        if self.steps is not None:
            options["options"] = {"step_size": self.t1 / self.steps}
        if self.gradient == "direct":
            out: Tensor = torchdiffeq.odeint(self._slope, h, times, **options)[1]
        else:
            parameters = tuple(self.f.parameters())
            out = torchdiffeq.odeint_adjoint(self._slope, h, times, adjoint_params=parameters, **options)[1]
        return out

    def _slope(self, t: Tensor, h: Tensor) -> Tensor:
        self.evaluations += 1
        slope: Tensor = self.f(t, h)
        return slope

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """While the steps are computed again, the statistics of batch norms stay as the first pass left them."""
        return nullcontext(), with_momentum([m for m in self.f.modules() if isinstance(m, _BatchNorm)], 0.0)
