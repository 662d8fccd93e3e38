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
    "Tensor h, Tensor? f, Tensor weight, Tensor? bias, Tensor gamma, Tensor beta, float[] eps, str act, "
    "int K, float dt, float dx, float dy, bool h_is_source"
)
_TAGS = (torch.Tag.pt2_compliant_tag,)
LIBRARY.define(f"global_training({_ARGUMENTS}) -> (Tensor out, Tensor mean, Tensor var)", tags=_TAGS)
LIBRARY.define(
    f"global_training_backward(Tensor grad, Tensor mean, Tensor var, {_ARGUMENTS}) -> "
    "(Tensor grad_h, Tensor grad_f, Tensor grad_weight, Tensor grad_gamma, Tensor grad_beta)",
    tags=_TAGS,
)

Result = tuple[Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward_default(
    h: Tensor,
    f: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: Sequence[float],
    act: str,
    K: int,
    dt: float,
    dx: float,
    dy: float,
    h_is_source: bool,
) -> Result:
    maps, mean, var = torch.ops.pdecnn.depthwise_norm(h, weight, bias, gamma, beta, eps, act)
    source = h if h_is_source else f
    out = torch.ops.pdecnn.advection_diffusion(h, None, *maps, source, K, dt, dx, dy, "periodic")
    return out, mean, var


def _backward_default(
    grad: Tensor,
    mean: Tensor,
    var: Tensor,
    h: Tensor,
    f: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: Sequence[float],
    act: str,
    K: int,
    dt: float,
    dx: float,
    dy: float,
    h_is_source: bool,
) -> Gradients:
    parameters = (weight, bias, gamma, beta, eps, act)
    maps, _, _ = torch.ops.pdecnn.depthwise_norm(h, *parameters)
    source = h if h_is_source else f
    needs = [True, False, True, True, True, True, source is not None]
    to_h, _, *to_maps, grad_f = torch.ops.pdecnn.advection_diffusion_backward(
        grad, h, None, *maps, source, K, dt, dx, dy, "periodic", needs
    )
    through, grad_weight, grad_gamma, grad_beta = torch.ops.pdecnn.depthwise_norm_backward(
        to_maps, mean, var, h, *parameters
    )
    if h_is_source:
        to_h, grad_f = to_h + grad_f, h.new_empty(0)
    return torch.empty_like(h).copy_(to_h + through), grad_f, grad_weight, grad_gamma, grad_beta


LIBRARY.impl("global_training", _forward_default, "CompositeExplicitAutograd")
LIBRARY.impl("global_training_backward", _backward_default, "CompositeExplicitAutograd")


@torch.library.register_fake("pdecnn::global_training", lib=LIBRARY)
def _forward_fake(h: Tensor, f: Any, weight: Any, bias: Any, gamma: Tensor, *_: Any) -> Result:
    return torch.empty_like(h), gamma.new_empty(gamma.shape), gamma.new_empty(gamma.shape)


@torch.library.register_fake("pdecnn::global_training_backward", lib=LIBRARY)
def _backward_fake(
    grad: Any, mean: Any, var: Any, h: Tensor, f: Tensor | None, weight: Tensor, bias: Any, gamma: Tensor, *_: Any
) -> Gradients:
    grad_f = h.new_empty(0) if f is None else torch.empty_like(h)
    return (
        torch.empty_like(h),
        grad_f,
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
    grad_h, grad_f, grad_weight, grad_gamma, grad_beta = torch.ops.pdecnn.global_training_backward(
        grad, mean, var, *inputs, *ctx.parameters
    )
    _, f, _, bias, _, _ = inputs
    # the norm takes the bias away with the mean
    grad_bias = None if bias is None else torch.zeros_like(bias)
    return grad_h, None if f is None else grad_f, grad_weight, grad_bias, grad_gamma, grad_beta, *[None] * 7


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
    f: Any,
    weight: Sequence[int],
    bias: Any,
    gamma: Any,
    beta: Any,
    eps: Any,
    act: Any,
    K: int,
    *_: Any,
    **__: Any,
) -> int:
    return 2 * (norm._macs(h, weight) + solver.macs(h, K, learned_diffusion=True))


@register_flop_formula(torch.ops.pdecnn.global_training_backward)
def _backward_flops(
    grad: Any,
    mean: Any,
    var: Any,
    h: Sequence[int],
    f: Any,
    weight: Sequence[int],
    bias: Any,
    gamma: Any,
    beta: Any,
    eps: Any,
    act: Any,
    K: int,
    *_: Any,
    **__: Any,
) -> int:
    adjoint = solver._backward_flops(grad, h, None, None, None, None, None, f, K)
    return 4 * norm._macs(h, weight) + adjoint
