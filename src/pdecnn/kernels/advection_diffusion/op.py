"""`pdecnn::advection_diffusion`: schema, reference, fake, autograd and flop formula, once for all devices.

The reference is registered as the default; `cpu.py` and `triton.py` replace it on their device. The backward pass is an
operator too: it computes the trajectory again, so that nothing is saved but the inputs and memory does not grow with K.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pdecnn.kernels.library import (
    BOUNDARIES,
    LIBRARY,
    differentiate,
    like,
    refuse_second_derivative,
    register,
    save_inputs,
)
from pdecnn.reference import advection_diffusion as reference
from pdecnn.reference.advection_diffusion import MAX_STEPS, check_arguments

_ARGUMENTS = (
    "Tensor h, Tensor? h_prev, Tensor u, Tensor v, Tensor D_x, Tensor D_y, Tensor? f, "
    "int K, float dt, float dx, float dy, str boundary"
)


class Problem(NamedTuple):
    """The operator's arguments, in the order of its schema.

    `h_prev=None` means `h_prev = h`, `f=None` no source. The coefficients are tensors of the shape of `h`, of
    `(1, C, 1, 1)` or of no dimension.
    """

    h: Tensor
    h_prev: Tensor | None
    u: Tensor
    v: Tensor
    D_x: Tensor
    D_y: Tensor
    f: Tensor | None
    K: int
    dt: float
    dx: float
    dy: float
    boundary: str

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Those that may have a gradient."""
        return self[:7]

    def is_right(self, grad: Tensor | None = None) -> bool:
        """Whether `check` has nothing to say, in a few microseconds: what a small map takes counts in calls of it."""
        h, h_prev, u, v, D_x, D_y, f, K, dt, dx, dy, boundary = self
        shape, dtype, device = h.shape, h.dtype, h.device
        good = len(shape) == 4 and shape[2] > 0 and shape[3] > 0 and 1 <= K <= MAX_STEPS and boundary in BOUNDARIES
        for q in (h_prev, f, grad):
            good = good and (q is None or (q.shape == shape and q.dtype is dtype and q.device == device))
        for c in (u, v, D_x, D_y):
            good = good and c.dtype is dtype and c.device == device
            good = good and (c.shape == shape or c.ndim == 0 or c.shape == (1, shape[1], 1, 1))
        for step in (dx, dy):
            good = good and 0 < step < math.inf and step * step > 0 and dt / (step * step) < math.inf
        return good and dt > 0 and dtype.is_floating_point

    def check(self, grad: Tensor | None = None) -> None:
        """Raises what the front door raises: the operator may be called by anyone."""
        if not self.is_right(grad):
            h, h_prev, u, v, D_x, D_y, f, K, dt, dx, dy, boundary = self
            check_arguments(h, (u, v), (D_x, D_y), f, h_prev, K, dt, (dx, dy), boundary)
            raise ValueError(f"advection_diffusion_backward: expected grad like h {tuple(h.shape)}, {h.dtype}.")

    def solve(self) -> Tensor:
        """`h^K` by the definition; bfloat16 is storage, here as in every kernel."""
        wide: Any = [q if q is None else q.to(torch.promote_types(q.dtype, torch.float32)) for q in self.tensors]
        h, h_prev, u, v, D_x, D_y, f = wide
        *_, K, dt, dx, dy, boundary = self
        return reference(h, u, v, D_x, D_y, f, h_prev=h_prev, K=K, dt=dt, dx=dx, dy=dy, boundary=boundary)

    def room(self, needs: Sequence[bool], sums: torch.dtype | None = None) -> list[Tensor]:
        """Empty gradients, each of its argument's shape, or of no element where it is not needed.

        Maps are in the memory format of `h`. With a dtype for `sums`, smaller coefficients have one number for each
        plane instead, as kernels leave them to `gather`.
        """
        h = self.h
        grads = []
        for q, need in zip(self.tensors, needs, strict=True):
            if q is None or not need:
                grads.append(h.new_empty(0))
            elif q.shape == h.shape:
                grads.append(like(h))
            else:
                grads.append(h.new_empty(q.shape) if sums is None else h.new_empty(h.shape[:2], dtype=sums))
        return grads

    def gather(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """The gradients, where those of smaller coefficients are given for each plane."""
        pairs = zip(grads, self.tensors, strict=True)
        return [_total(g, q) if q is not None and g.ndim == 2 else g for g, q in pairs]


def _total(sums: Tensor, c: Tensor) -> Tensor:
    per_channel = sums.sum(0)  # torch splits a sum over all among threads, not one over a dimension
    return (per_channel if c.ndim == 4 else per_channel.sum()).view(c.shape).to(c.dtype)


def forward_default(*arguments: Any) -> Tensor:
    """`h^K` by the definition, in the memory format of h, as every kernel answers."""
    problem = Problem(*arguments)
    return like(problem.h).copy_(problem.solve())


def backward_default(grad: Tensor, *arguments: Any) -> list[Tensor]:
    """The gradients by autograd of the definition."""
    *given, needs = arguments
    problem = Problem(*given)
    problem.check(grad)

    def solve(*tensors: Any) -> Tensor:
        return Problem(*tensors, *given[7:]).solve().to(grad.dtype)

    grads = iter(differentiate(solve, problem.tensors, needs, grad))
    return [g.copy_(next(grads)) if need else g for g, need in zip(problem.room(needs), needs, strict=True)]


def _forward_fake(h: Tensor, *_: Any) -> Tensor:
    return like(h)


def _backward_fake(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *given, needs = arguments
    return Problem(*given).room(needs)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    inputs = ctx.saved_tensors
    needs = [q is not None and need for q, need in zip(inputs, ctx.needs_input_grad, strict=False)]
    grads = torch.ops.pdecnn.advection_diffusion_backward(grad, *inputs, *ctx.options, needs)
    return (*(g if need else None for g, need in zip(grads, needs, strict=True)), *[None] * len(ctx.options))


def macs(h_shape: Sequence[int], K: int, *, learned_diffusion: bool) -> int:
    """Multiply-adds of the solver: 6 per element and step, and the set-up of its coefficients."""
    return torch.Size(h_shape).numel() * (6 * K + (14 if learned_diffusion else 4))


def backward_macs(h_shape: Sequence[int], K: int) -> int:
    """Those of its gradient: the trajectory again, the adjoint steps and the six sums."""
    return torch.Size(h_shape).numel() * (18 * K + 20)


def _forward_flops(*arguments: Any, **_: Any) -> int:
    shapes: Any = Problem(*arguments)
    learned = tuple(shapes.h) in (tuple(shapes.D_x), tuple(shapes.D_y))
    return 2 * macs(shapes.h, shapes.K, learned_diffusion=learned)


def _backward_flops(grad: Any, *arguments: Any, **_: Any) -> int:
    *given, _needs = arguments
    return 2 * backward_macs(grad, Problem(*given).K)


register(
    f"advection_diffusion({_ARGUMENTS}) -> Tensor",
    forward_default,
    _forward_fake,
    _forward_flops,
    gradient=_gradient,
    save=save_inputs,
)
register(
    f"advection_diffusion_backward(Tensor grad, {_ARGUMENTS}, bool[7] needs) -> Tensor[]",
    backward_default,
    _backward_fake,
    _backward_flops,
    gradient=refuse_second_derivative("advection_diffusion", "pdecnn.reference.advection_diffusion"),
)
for _device in ("cpu", "cuda"):
    # 1/L and the recursion lose too much in half precision: autocast runs the solver in float32.
    torch.library.register_autocast("pdecnn::advection_diffusion", _device, torch.float32, lib=LIBRARY)
