"""`pdecnn::depthwise` and the gradient of its stencil: schema, reference, fake, autograd and flop formula.

Both are linear in each argument, and the derivative of either is made of the same two, so they can be differentiated
any number of times.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.library import BOUNDARIES, in_transform, register, save_inputs
from pdecnn.reference.boundary import Boundary
from pdecnn.reference.depthwise import check_stencil, extend, extend_adjoint
from pdecnn.reference.depthwise import depthwise as reference


def check(y: Tensor, k: Tensor, boundary: str) -> None:
    """Raises what the front door raises, at little cost: the operator may be called by anyone."""
    channels, *size = k.shape
    good = y.ndim == k.ndim + 1 and y.shape[1] == channels and 0 not in y.shape[1:] and boundary in BOUNDARIES
    if not (good and y.ndim <= 5 and all(m % 2 for m in size)):
        check_stencil(y, k, boundary, "depthwise")
    if not (y.is_floating_point() and k.is_floating_point()):
        raise TypeError(f"depthwise: expected floating-point tensors, got y of {y.dtype} and k of {k.dtype}.")


def check_gradient(grad: Tensor, y: Tensor, size: Sequence[int], boundary: str) -> None:
    """The same for the gradient of stencils of `size`."""
    check(y, y.new_empty((y.shape[1] if y.ndim > 1 else 0, *size), device="meta"), boundary)
    if grad.shape != y.shape or grad.dtype != y.dtype:
        raise ValueError(
            f"depthwise_stencil_gradient: expected grad like y {tuple(y.shape)}, {y.dtype}, "
            f"got {tuple(grad.shape)}, {grad.dtype}."
        )


def _forward_reference(y: Tensor, k: Tensor, boundary: str) -> Tensor:
    check(y, k, boundary)
    wide = torch.promote_types(y.dtype, torch.float32)  # bfloat16 is storage, here as in every kernel
    return reference(y.to(wide), k.to(wide), boundary).to(y.dtype).contiguous()


def _stencil_gradient_reference(grad: Tensor, y: Tensor, size: Sequence[int], boundary: str) -> Tensor:
    """`sum grad[r] y[r + t]` over samples and pixels, for every tap t."""
    check_gradient(grad, y, size, boundary)
    wide = torch.promote_types(y.dtype, torch.float32)
    grad, y = grad.to(wide), extend(y.to(wide), [m // 2 for m in size], Boundary(boundary))
    axes = [0, *range(2, y.ndim)]
    taps = []
    for tap in itertools.product(*(range(m) for m in size)):
        shifted = y
        for axis, t in enumerate(tap, start=2):
            shifted = shifted.narrow(axis, t, grad.shape[axis])
        taps.append((grad * shifted).sum(axes))
    return torch.stack(taps, 1).view(-1, *size)


def _forward_fake(y: Tensor, k: Tensor, boundary: str) -> Tensor:
    return y.new_empty(y.shape)


def _stencil_gradient_fake(grad: Tensor, y: Tensor, size: Sequence[int], boundary: str) -> Tensor:
    return y.new_empty((y.shape[1], *size), dtype=torch.promote_types(y.dtype, torch.float32))


def correlate(y: Tensor, k: Tensor, boundary: str) -> Tensor:
    """The operator `pdecnn::depthwise`; under transforms the reference, which is plain torch."""
    if in_transform():
        return reference(y, k.to(y.dtype), boundary)
    out: Tensor = torch.ops.pdecnn.depthwise.default(y, k, boundary)
    return out


def adjoint(z: Tensor, k: Tensor, boundary: str) -> Tensor:
    """`K^T z`: the operator of the turned stencil; where borders are mirrored it goes beyond and is folded back."""
    turned = k.flip(list(range(1, k.ndim)))
    if boundary != "neumann":
        return correlate(z, turned, boundary)
    radius = [m // 2 for m in k.shape[1:]]
    return extend_adjoint(
        correlate(extend(z, radius, Boundary.DIRICHLET), turned, "dirichlet"), radius, Boundary.NEUMANN
    )


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    (y, k), (boundary,) = ctx.saved_tensors, ctx.options
    grad_y = adjoint(grad, k, boundary) if ctx.needs_input_grad[0] else None
    grad_k = None
    if ctx.needs_input_grad[1]:
        grad_k = torch.ops.pdecnn.depthwise_stencil_gradient.default(grad, y, list(k.shape[1:]), boundary)
        grad_k = grad_k.to(k.dtype)
    return grad_y, grad_k, None


def _second_gradient(ctx: Any, k: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    (grad, y), (_, boundary) = ctx.saved_tensors, ctx.options
    to_grad = correlate(y, k, boundary) if ctx.needs_input_grad[0] else None
    to_y = adjoint(grad, k, boundary) if ctx.needs_input_grad[1] else None
    return to_grad, to_y, None, None


def macs(y_shape: Sequence[int], size: Sequence[int]) -> int:
    """Multiply-adds: one per pixel and tap."""
    return int(torch.Size(y_shape).numel() * torch.Size(size).numel())


def _forward_flops(y: Sequence[int], k: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * macs(y, k[1:])


def _stencil_gradient_flops(grad: Sequence[int], y: Sequence[int], size: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * macs(y, size)


register(
    "depthwise(Tensor y, Tensor k, str boundary) -> Tensor",
    _forward_reference,
    _forward_fake,
    _forward_flops,
    gradient=_gradient,
    save=save_inputs,
)
register(
    "depthwise_stencil_gradient(Tensor grad, Tensor y, int[] size, str boundary) -> Tensor",
    _stencil_gradient_reference,
    _stencil_gradient_fake,
    _stencil_gradient_flops,
    gradient=_second_gradient,
    save=save_inputs,
)
