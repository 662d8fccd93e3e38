"""`pdecnn::advection_diffusion`: schema, reference, fake, autograd and flop formula, once for all devices.

The reference is registered as the default; `cpu.py` and `triton.py` replace it on their device. The backward pass is an
operator too: it computes the trajectory again, so that nothing is saved but the inputs and memory does not grow with K.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from pdecnn.kernels.library import BOUNDARIES, TAGS, like
from pdecnn.kernels.library import LIBRARY as LIBRARY
from pdecnn.reference import advection_diffusion as reference
from pdecnn.reference.advection_diffusion import MAX_STEPS, check_arguments

_ARGUMENTS = (
    "Tensor h, Tensor? h_prev, Tensor u, Tensor v, Tensor D_x, Tensor D_y, Tensor? f, "
    "int K, float dt, float dx, float dy, str boundary"
)
LIBRARY.define(f"advection_diffusion({_ARGUMENTS}) -> Tensor", tags=TAGS)
LIBRARY.define(f"advection_diffusion_backward(Tensor grad, {_ARGUMENTS}, bool[7] needs) -> Tensor[]", tags=TAGS)

Inputs = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor | None]


def check(inputs: Inputs, K: int, dt: float, dx: float, dy: float, boundary: str, grad: Tensor | None = None) -> None:
    """Raises what the front door raises, at little cost: the operator may be called by anyone."""
    h, h_prev, u, v, D_x, D_y, f = inputs
    shape, dtype = h.shape, h.dtype
    good = len(shape) == 4 and shape[2] > 0 and shape[3] > 0 and 1 <= K <= MAX_STEPS and boundary in BOUNDARIES
    for q in (h_prev, f, grad):
        good = good and (q is None or (q.shape == shape and q.dtype is dtype))
    for c in (u, v, D_x, D_y):
        good = good and c.dtype is dtype and (c.shape == shape or c.ndim == 0 or c.shape == (1, shape[1], 1, 1))
    if not (good and dt > 0 and dx > 0 and dy > 0):
        check_arguments(h, (u, v), (D_x, D_y), f, h_prev, K, dt, (dx, dy), boundary)
        raise ValueError(f"advection_diffusion_backward: expected grad like h {tuple(shape)}, {dtype}.")


def _solve(inputs: Inputs, K: int, dt: float, dx: float, dy: float, boundary: str) -> Tensor:
    # bfloat16 is storage, here as in every kernel
    wide: Any = [q if q is None else q.to(torch.promote_types(q.dtype, torch.float32)) for q in inputs]
    h, h_prev, u, v, D_x, D_y, f = wide
    return reference(h, u, v, D_x, D_y, f, h_prev=h_prev, K=K, dt=dt, dx=dx, dy=dy, boundary=boundary)


def _forward_reference(
    h: Tensor,
    h_prev: Tensor | None,
    u: Tensor,
    v: Tensor,
    D_x: Tensor,
    D_y: Tensor,
    f: Tensor | None,
    K: int,
    dt: float,
    dx: float,
    dy: float,
    boundary: str,
) -> Tensor:
    out = _solve((h, h_prev, u, v, D_x, D_y, f), K, dt, dx, dy, boundary)
    return like(h).copy_(out)  # in the memory format of h, as every kernel answers


def _backward_reference(
    grad: Tensor,
    h: Tensor,
    h_prev: Tensor | None,
    u: Tensor,
    v: Tensor,
    D_x: Tensor,
    D_y: Tensor,
    f: Tensor | None,
    K: int,
    dt: float,
    dx: float,
    dy: float,
    boundary: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    inputs: Any = (h, h_prev, u, v, D_x, D_y, f)
    check(inputs, K, dt, dx, dy, boundary, grad)
    with torch.enable_grad(), _autograd_kernels():
        leaves: Any = tuple(
            q if q is None else q.detach().clone().requires_grad_(need) for q, need in zip(inputs, needs, strict=True)
        )
        out = _solve(leaves, K, dt, dx, dy, boundary).to(h.dtype)
        wanted = [q for q, need in zip(leaves, needs, strict=True) if need]
        grads = iter(torch.autograd.grad(out, wanted, grad))
    pairs = zip(inputs, needs, strict=True)  # in the strides that the fake promises
    return [_like(q, h).copy_(next(grads)) if need else h.new_empty(0) for q, need in pairs]


def _autograd_kernels() -> Any:
    """Switches on the autograd kernels, which are off inside an operator: the reference differentiates itself."""
    keys = torch._C.DispatchKeySet
    functionality = keys(torch._C.DispatchKey.AutogradFunctionality)
    included = torch._C._dispatch_tls_local_include_set()
    return torch._C._ForceDispatchKeyGuard(included, torch._C._dispatch_tls_local_exclude_set() - functionality)


LIBRARY.impl("advection_diffusion", _forward_reference, "CompositeExplicitAutograd")
LIBRARY.impl("advection_diffusion_backward", _backward_reference, "CompositeExplicitAutograd")


@torch.library.register_fake("pdecnn::advection_diffusion", lib=LIBRARY)
def _forward_fake(h: Tensor, *_: Any) -> Tensor:
    return like(h)


@torch.library.register_fake("pdecnn::advection_diffusion_backward", lib=LIBRARY)
def _backward_fake(grad: Tensor, *arguments: Any) -> list[Tensor]:
    inputs, needs = arguments[:7], arguments[-1]
    h = inputs[0]
    return [_like(q, h) if need else h.new_empty(0) for q, need in zip(inputs, needs, strict=True)]


def _like(q: Tensor, h: Tensor) -> Tensor:
    """An empty gradient for `q`: maps in the memory format of `h`, smaller coefficients contiguous."""
    return like(h) if q.shape == h.shape else h.new_empty(q.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:7])
    ctx.parameters = inputs[7:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    inputs = ctx.saved_tensors
    needs = [q is not None and need for q, need in zip(inputs, ctx.needs_input_grad, strict=False)]
    grads = torch.ops.pdecnn.advection_diffusion_backward(grad, *inputs, *ctx.parameters, needs)
    return (*(g if need else None for g, need in zip(grads, needs, strict=True)), *[None] * 5)


def _no_double_backward(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "advection_diffusion: its gradient cannot be differentiated again by the fused kernel. "
        "Use pdecnn.reference.advection_diffusion, which is plain torch, where second derivatives are needed."
    )


torch.library.register_autograd("pdecnn::advection_diffusion", _backward, setup_context=_setup_context, lib=LIBRARY)
torch.library.register_autograd("pdecnn::advection_diffusion_backward", _no_double_backward, lib=LIBRARY)
for _device in ("cpu", "cuda"):
    # 1/L and the recursion lose too much in half precision: autocast runs the solver in float32.
    torch.library.register_autocast("pdecnn::advection_diffusion", _device, torch.float32, lib=LIBRARY)


def macs(h_shape: Sequence[int], K: int, *, learned_diffusion: bool) -> int:
    """Multiply-adds of the solver: 6 per element and step, and the set-up of its coefficients."""
    N, C, H, W = h_shape
    return N * C * H * W * (6 * K + (14 if learned_diffusion else 4))


@register_flop_formula(torch.ops.pdecnn.advection_diffusion)
def _forward_flops(
    h: Sequence[int],
    h_prev: Any,
    u: Any,
    v: Any,
    D_x: Sequence[int],
    D_y: Sequence[int],
    f: Any,
    K: int,
    *_: Any,
    **__: Any,
) -> int:
    learned = tuple(h) in (tuple(D_x), tuple(D_y))
    return 2 * macs(h, K, learned_diffusion=learned)


@register_flop_formula(torch.ops.pdecnn.advection_diffusion_backward)
def _backward_flops(
    grad: Any, h: Sequence[int], h_prev: Any, u: Any, v: Any, D_x: Any, D_y: Any, f: Any, K: int, *_: Any, **__: Any
) -> int:
    # the trajectory again, the adjoint steps and the six sums
    N, C, H, W = h
    return 2 * N * C * H * W * (18 * K + 20)
