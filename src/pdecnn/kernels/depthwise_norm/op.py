"""`pdecnn::depthwise_norm`: schema, reference, fake, autograd and flop formula.

`M` depth-wise stencils of one state, each followed by batch norm in training mode and an activation. Backward is an
operator too: it applies the stencils again, so that nothing is saved but the state and the statistics.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.utils.flop_counter import register_flop_formula

from pdecnn.kernels.advection_diffusion.op import LIBRARY, _autograd_kernels

# activation -> its lower and upper limit
LIMITS = {"identity": (float("-inf"), float("inf")), "relu": (0.0, float("inf")), "relu6": (0.0, 6.0)}

_ARGUMENTS = "Tensor h, Tensor? weight, Tensor? bias, Tensor gamma, Tensor beta, float[] eps, str act"
_TAGS = (torch.Tag.pt2_compliant_tag,)
LIBRARY.define(f"depthwise_norm({_ARGUMENTS}) -> (Tensor[] maps, Tensor mean, Tensor var)", tags=_TAGS)
LIBRARY.define(
    f"depthwise_norm_backward(Tensor[] grads, Tensor mean, Tensor var, {_ARGUMENTS}) -> "
    "(Tensor grad_h, Tensor grad_weight, Tensor grad_gamma, Tensor grad_beta)",
    tags=_TAGS,
)

Maps = tuple[list[Tensor], Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


def _before_norm(h: Tensor, weight: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """What the norms get."""
    if weight is None:
        return [h]
    biases = [None] * len(weight) if bias is None else bias
    return [
        conv2d(h, w[:, None], b, padding=w.shape[-1] // 2, groups=h.shape[1])
        for w, b in zip(weight, biases, strict=True)
    ]


def _forward_reference(
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: Sequence[float],
    act: str,
) -> Maps:
    low, high = LIMITS[act]
    maps, means, variances = [], [], []
    for m, q in enumerate(_before_norm(h, weight, bias)):
        var, mean = torch.var_mean(q, (0, 2, 3), correction=0)
        scale = gamma[m] * (var + eps[m]).rsqrt()
        y = (q - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + beta[m].view(-1, 1, 1)
        maps.append(torch.empty_like(h).copy_(y.clamp(low, high)))
        means.append(mean)
        variances.append(var)
    return maps, torch.stack(means), torch.stack(variances)


def _backward_reference(
    grads: Sequence[Tensor],
    mean: Tensor,
    var: Tensor,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: Sequence[float],
    act: str,
) -> Gradients:
    low, high = LIMITS[act]
    with torch.enable_grad(), _autograd_kernels():
        h, gamma, beta = (q.detach().requires_grad_() for q in (h, gamma, beta))
        weight = None if weight is None else weight.detach().requires_grad_()
        maps = []
        for m, q in enumerate(_before_norm(h, weight, bias)):
            y = torch.nn.functional.batch_norm(q, None, None, gamma[m], beta[m], training=True, eps=eps[m])
            maps.append(y.clamp(low, high))
        leaves = [h, gamma, beta] if weight is None else [h, gamma, beta, weight]
        grad_h, grad_gamma, grad_beta, *rest = torch.autograd.grad(maps, leaves, list(grads))
    grad_weight = rest[0].contiguous() if rest else h.new_empty(0)
    return torch.empty_like(h).copy_(grad_h), grad_weight, grad_gamma, grad_beta


LIBRARY.impl("depthwise_norm", _forward_reference, "CompositeExplicitAutograd")
LIBRARY.impl("depthwise_norm_backward", _backward_reference, "CompositeExplicitAutograd")


@torch.library.register_fake("pdecnn::depthwise_norm", lib=LIBRARY)
def _forward_fake(h: Tensor, weight: Any, bias: Any, gamma: Tensor, *_: Any) -> Maps:
    return [torch.empty_like(h) for _ in range(len(gamma))], gamma.new_empty(gamma.shape), gamma.new_empty(gamma.shape)


@torch.library.register_fake("pdecnn::depthwise_norm_backward", lib=LIBRARY)
def _backward_fake(
    grads: Any, mean: Any, var: Any, h: Tensor, weight: Tensor | None, bias: Any, gamma: Tensor, *_: Any
) -> Gradients:
    grad_weight = h.new_empty(0 if weight is None else weight.shape)
    return torch.empty_like(h), grad_weight, gamma.new_empty(gamma.shape), gamma.new_empty(gamma.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    h, weight, bias, gamma, beta, ctx.eps, ctx.act = inputs
    _, mean, var = output
    ctx.mark_non_differentiable(mean, var)
    ctx.save_for_backward(h, weight, bias, gamma, beta, mean, var)


def _backward(ctx: Any, grads: Sequence[Tensor | None], *_: Any) -> tuple[Any, ...]:
    h, weight, bias, gamma, beta, mean, var = ctx.saved_tensors
    given = [torch.zeros_like(h) if g is None else g for g in grads]
    grad_h, grad_weight, grad_gamma, grad_beta = torch.ops.pdecnn.depthwise_norm_backward(
        given, mean, var, h, weight, bias, gamma, beta, ctx.eps, ctx.act
    )
    # the norm takes the bias away with the mean
    grad_bias = None if bias is None else torch.zeros_like(bias)
    return grad_h, None if weight is None else grad_weight, grad_bias, grad_gamma, grad_beta, None, None


def _no_double_backward(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "depthwise_norm: its gradient cannot be differentiated again by the fused kernel. "
        "Use torch's convolution, batch norm and activation where second derivatives are needed."
    )


torch.library.register_autograd("pdecnn::depthwise_norm", _backward, setup_context=_setup_context, lib=LIBRARY)
torch.library.register_autograd("pdecnn::depthwise_norm_backward", _no_double_backward, lib=LIBRARY)


def _macs(h: Sequence[int], weight: Sequence[int] | None) -> int:
    """Multiply-adds of the stencils, as a convolution counts them; the norm has none."""
    return 0 if weight is None else int(torch.Size(h).numel() * weight[0] * weight[-1] ** 2)


@register_flop_formula(torch.ops.pdecnn.depthwise_norm)
def _forward_flops(h: Sequence[int], weight: Sequence[int] | None, *_: Any, **__: Any) -> int:
    return 2 * _macs(h, weight)


@register_flop_formula(torch.ops.pdecnn.depthwise_norm_backward)
def _backward_flops(
    grads: Any, mean: Any, var: Any, h: Sequence[int], weight: Sequence[int] | None, *_: Any, **__: Any
) -> int:
    return 4 * _macs(h, weight)
