"""`pdecnn::global_training`: schema, default, fake, autograd and flop formula.

A Global layer in training mode, from its first guess to the state before its output norm: `pdecnn::depthwise_norm`
gives the coefficients and `pdecnn::advection_diffusion` the steps. The default runs these two; the native kernel does
both plane by plane, so that the coefficients are neither written nor saved.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from pdecnn.kernels.advection_diffusion import op as solver
from pdecnn.kernels.depthwise_norm import op as norm

LIBRARY = solver.LIBRARY
_ARGUMENTS = (
    "Tensor h, Tensor? x, Tensor weight, Tensor? bias, Tensor gamma, Tensor beta, float[] eps, str act, float[] D, "
    "int K, float dt, float dx, float dy, bool has_source, bool previous_is_input"
)
_TAGS = (torch.Tag.pt2_compliant_tag,)
LIBRARY.define(f"global_training({_ARGUMENTS}) -> (Tensor out, Tensor mean, Tensor var)", tags=_TAGS)
LIBRARY.define(
    f"global_training_backward(Tensor grad, Tensor mean, Tensor var, {_ARGUMENTS}) -> "
    "(Tensor grad_h, Tensor grad_x, Tensor grad_weight, Tensor grad_gamma, Tensor grad_beta)",
    tags=_TAGS,
)

Result = tuple[Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward_default(
    h: Tensor,
    x: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: Sequence[float],
    act: str,
    D: Sequence[float],
    K: int,
    dt: float,
    dx: float,
    dy: float,
    has_source: bool,
    previous_is_input: bool,
) -> Result:
    maps, mean, var = torch.ops.pdecnn.depthwise_norm(h, weight, bias, gamma, beta, eps, act)
    h_prev, f = _roles(h, x, has_source, previous_is_input)
    coefficients = (*maps, *(h.new_tensor(d) for d in D))
    out = torch.ops.pdecnn.advection_diffusion(h, h_prev, *coefficients, f, K, dt, dx, dy, "periodic")
    return out, mean, var


def _roles(
    h: Tensor, x: Tensor | None, has_source: bool, previous_is_input: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The state before the first, None for `h`, and the source, None if there is none."""
    return (x if previous_is_input else None), (None if not has_source else h if x is None else x)


def _backward_default(
    grad: Tensor,
    mean: Tensor,
    var: Tensor,
    h: Tensor,
    x: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: Sequence[float],
    act: str,
    D: Sequence[float],
    K: int,
    dt: float,
    dx: float,
    dy: float,
    has_source: bool,
    previous_is_input: bool,
) -> Gradients:
    parameters = (weight, bias, gamma, beta, eps, act)
    maps, _, _ = torch.ops.pdecnn.depthwise_norm(h, *parameters)
    h_prev, f = _roles(h, x, has_source, previous_is_input)
    coefficients = (*maps, *(h.new_tensor(d) for d in D))
    needs = [True, h_prev is not None, True, True, len(maps) > 2, len(maps) > 2, f is not None]
    to_h, to_previous, *to_maps, to_f = torch.ops.pdecnn.advection_diffusion_backward(
        grad, h, h_prev, *coefficients, f, K, dt, dx, dy, "periodic", needs
    )
    through, grad_weight, grad_gamma, grad_beta = torch.ops.pdecnn.depthwise_norm_backward(
        to_maps[: len(maps)], mean, var, h, *parameters
    )
    to_x = torch.empty_like(h).zero_()
    if h_prev is not None:
        to_x += to_previous
    if f is not None:
        to_x += to_f
    grad_h = to_h + through if x is not None else to_h + through + to_x
    grad_x = h.new_empty(0) if x is None else to_x
    return torch.empty_like(h).copy_(grad_h), grad_x, grad_weight, grad_gamma, grad_beta


LIBRARY.impl("global_training", _forward_default, "CompositeExplicitAutograd")
LIBRARY.impl("global_training_backward", _backward_default, "CompositeExplicitAutograd")


@torch.library.register_fake("pdecnn::global_training", lib=LIBRARY)
def _forward_fake(h: Tensor, x: Any, weight: Any, bias: Any, gamma: Tensor, *_: Any) -> Result:
    return torch.empty_like(h), gamma.new_empty(gamma.shape), gamma.new_empty(gamma.shape)


@torch.library.register_fake("pdecnn::global_training_backward", lib=LIBRARY)
def _backward_fake(
    grad: Any, mean: Any, var: Any, h: Tensor, x: Tensor | None, weight: Tensor, bias: Any, gamma: Tensor, *_: Any
) -> Gradients:
    grad_x = h.new_empty(0) if x is None else torch.empty_like(h)
    return (
        torch.empty_like(h),
        grad_x,
        h.new_empty(weight.shape),
        gamma.new_empty(gamma.shape),
        gamma.new_empty(gamma.shape),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, mean, var = output
    ctx.mark_non_differentiable(mean, var)
    ctx.save_for_backward(*inputs[:6], mean, var)
    ctx.parameters = inputs[6:]


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    *inputs, mean, var = ctx.saved_tensors
    grad_h, grad_x, grad_weight, grad_gamma, grad_beta = torch.ops.pdecnn.global_training_backward(
        grad, mean, var, *inputs, *ctx.parameters
    )
    _, x, _, bias, _, _ = inputs
    # the norm takes the bias away with the mean
    grad_bias = None if bias is None else torch.zeros_like(bias)
    return grad_h, None if x is None else grad_x, grad_weight, grad_bias, grad_gamma, grad_beta, *[None] * 9


def _no_double_backward(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "global_training: its gradient cannot be differentiated again by the fused kernel. "
        "Use torch's convolution and batch norm and pdecnn.functional.advection_diffusion where second derivatives "
        "are needed."
    )


torch.library.register_autograd("pdecnn::global_training", _backward, setup_context=_setup_context, lib=LIBRARY)
torch.library.register_autograd("pdecnn::global_training_backward", _no_double_backward, lib=LIBRARY)


@register_flop_formula(torch.ops.pdecnn.global_training)
def _forward_flops(
    h: Sequence[int],
    x: Any,
    weight: Sequence[int],
    bias: Any,
    gamma: Any,
    beta: Any,
    eps: Any,
    act: Any,
    D: Any,
    K: int,
    *_: Any,
    **__: Any,
) -> int:
    return 2 * (norm._macs(h, weight) + solver.macs(h, K, learned_diffusion=weight[0] > 2))


@register_flop_formula(torch.ops.pdecnn.global_training_backward)
def _backward_flops(
    grad: Any,
    mean: Any,
    var: Any,
    h: Sequence[int],
    x: Any,
    weight: Sequence[int],
    bias: Any,
    gamma: Any,
    beta: Any,
    eps: Any,
    act: Any,
    D: Any,
    K: int,
    *_: Any,
    **__: Any,
) -> int:
    adjoint = solver._backward_flops(grad, h, None, None, None, None, None, None, K)
    return 4 * norm._macs(h, weight) + adjoint
