"""`pdecnn::spectral_filter` and its adjoint: schema, default implementation, fake, autograd and flop formula.

The filter is linear in `v` and in `g`, and its own adjoint in `v`. The derivative of the adjoint is made of the same
two operators, so both can be differentiated any number of times. Half precision is computed in float32.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.library import register, save_inputs
from pdecnn.kernels.spectral_filter.choice import fastest
from pdecnn.kernels.spectral_filter.methods import COSINE, METHODS, Method
from pdecnn.reference.spectral import check_filter


def arithmetic(v: Tensor) -> torch.dtype:
    """The dtype that a filter of `v` is computed in: float32 or wider."""
    return torch.promote_types(v.dtype, torch.float32)


def _method(v: Tensor, boundary: str) -> Method:
    if boundary == "neumann":
        return COSINE
    return METHODS[fastest(v.shape[2:], native=False)]


def check_adjoint(grad: Tensor, v: Tensor, g: Tensor, boundary: str) -> None:
    """Raises unless the arguments of the adjoint fit; whoever calls the operator itself is told, too."""
    check_filter(v, g, boundary)
    if grad.shape != v.shape or not grad.is_floating_point():
        raise ValueError(f"spectral_filter: expected a gradient like v {tuple(v.shape)}, got {tuple(grad.shape)}.")


def _filter(v: Tensor, g: Tensor, boundary: str) -> Tensor:
    check_filter(v, g, boundary)
    wide = arithmetic(v)
    out = _method(v, boundary).filter(v.to(wide).contiguous(), g.to(wide))
    return out.to(v.dtype).contiguous()


def _adjoint(grad: Tensor, v: Tensor, g: Tensor, boundary: str) -> tuple[Tensor, Tensor]:
    check_adjoint(grad, v, g, boundary)
    wide = arithmetic(v)
    adjoint = _method(v, boundary).adjoint
    grad_v, grad_g = adjoint(grad.to(wide).contiguous(), v.to(wide).contiguous(), g.to(wide))
    return grad_v.to(v.dtype).contiguous(), grad_g.to(g.dtype).contiguous()


def _filter_fake(v: Tensor, g: Tensor, boundary: str) -> Tensor:
    return v.new_empty(v.shape)


def _adjoint_fake(grad: Tensor, v: Tensor, g: Tensor, boundary: str) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), g.new_empty(g.shape)


def run_filter(v: Tensor, g: Tensor, boundary: str) -> Tensor:
    """The operator `pdecnn::spectral_filter`."""
    out: Tensor = torch.ops.pdecnn.spectral_filter.default(v, g, boundary)
    return out


def _run_adjoint(grad: Tensor, v: Tensor, g: Tensor, boundary: str) -> tuple[Tensor, Tensor]:
    out: tuple[Tensor, Tensor] = torch.ops.pdecnn.spectral_filter_backward.default(grad, v, g, boundary)
    return out


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    v, g, ctx.boundary = inputs
    ctx.save_for_backward(v if ctx.needs_input_grad[1] else None, g)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    v, g = ctx.saved_tensors
    if v is None:
        return run_filter(grad, g, ctx.boundary), None, None
    grad_v, grad_g = _run_adjoint(grad, v, g, ctx.boundary)
    return grad_v, grad_g, None


def _adjoint_backward(ctx: Any, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    # of (filter(grad, g), product(grad, v)) along (alpha, beta)
    (grad, v, g), (boundary,) = ctx.saved_tensors, ctx.options
    to_grad, to_g = _run_adjoint(alpha, grad, g, boundary)
    return to_grad + run_filter(v, beta, boundary), run_filter(grad, beta, boundary), to_g, None


def macs(v_shape: Sequence[int]) -> int:
    """Multiply-adds of a filter as it is computed at this size, there and back, and the factors.

    By the matrices of each axis it is the sum of the axes per pixel and way; by real FFTs `log2 n`.
    """
    shape = torch.Size(v_shape)
    size = shape[2:]
    by_fft = fastest(size, native=True) == "fft"
    per_pixel = math.log2(max(2, size.numel())) if by_fft else sum(size)
    return math.ceil(shape.numel() * (2 * per_pixel + 2))


def _filter_flops(v: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * macs(v)


def _adjoint_flops(grad: Sequence[int], *_: Any, **__: Any) -> int:
    return 3 * macs(grad)  # two transforms there, one back


register(
    "spectral_filter(Tensor v, Tensor g, str boundary) -> Tensor",
    _filter,
    _filter_fake,
    _filter_flops,
    gradient=_backward,
    save=_setup_context,
)
register(
    "spectral_filter_backward(Tensor grad, Tensor v, Tensor g, str boundary) -> (Tensor, Tensor)",
    _adjoint,
    _adjoint_fake,
    _adjoint_flops,
    gradient=_adjoint_backward,
    save=save_inputs,
)
