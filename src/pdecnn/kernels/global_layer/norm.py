"""`pdecnn::depthwise_norm`: M depth-wise stencils of one state, each with batch norm in training mode and activation.

Map m is `act(gamma[m] (q - mean) / sqrt(var + eps[m]) + beta[m])`, where `q` is the depth-wise correlation of `h`,
`(N, C, H, W)`, with `weight[m]`, `(M, C, k, k)`, zeros beyond the border, plus `bias[m]`; without a weight `q = h` and
`M = 1`. Mean and variance are those of q over samples and pixels, and differentiated as such; the norm takes the bias
away with the mean. Backward is an operator too: it applies the stencils again, so that nothing is saved but the state
and the statistics.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d
from torch.utils.flop_counter import register_flop_formula

from pdecnn.kernels.advection_diffusion.op import _autograd_kernels
from pdecnn.kernels.global_layer.arguments import ACTIVATIONS, check_act, check_maps, in_order
from pdecnn.kernels.global_layer.op import stencil_macs
from pdecnn.kernels.library import LIBRARY, TAGS, like

_ARGUMENTS = "Tensor h, Tensor? weight, Tensor? bias, Tensor gamma, Tensor beta, float[] eps, str act"
LIBRARY.define(f"depthwise_norm({_ARGUMENTS}) -> (Tensor[] maps, Tensor mean, Tensor var)", tags=TAGS)
LIBRARY.define(
    f"depthwise_norm_backward(Tensor[] grads, Tensor mean, Tensor var, {_ARGUMENTS}) -> "
    "(Tensor grad_h, Tensor grad_weight, Tensor grad_gamma, Tensor grad_beta)",
    tags=TAGS,
)

Maps = tuple[list[Tensor], Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


class Norms(NamedTuple):
    """The operator's arguments, in the order of its schema."""

    h: Tensor
    weight: Tensor | None
    bias: Tensor | None
    gamma: Tensor
    beta: Tensor
    eps: Sequence[float]
    act: str

    def check(self, name: str = "depthwise_norm") -> None:
        """A ValueError if they do not fit together."""
        check_maps(name, self.h, self.weight, bias=self.bias, gamma=self.gamma, beta=self.beta)
        check_act(name, "act", self.act)
        if self.weight is None and self.bias is not None:
            raise ValueError(f"{name}: a bias needs a weight; without one the map is h itself.")
        if len(self.eps) != len(self.gamma):
            raise ValueError(f"{name}: expected {len(self.gamma)} eps, got {len(self.eps)}.")
        if self.h.numel() <= self.h.shape[1]:
            raise ValueError(f"{name}: expected several values per channel, got h of shape {tuple(self.h.shape)}.")

    def before(self) -> list[Tensor]:
        """What the norms get."""
        if self.weight is None:
            return [self.h]
        biases = [None] * len(self.weight) if self.bias is None else self.bias
        return [
            conv2d(self.h, w[:, None], b, padding=w.shape[-1] // 2, groups=self.h.shape[1])
            for w, b in zip(self.weight, biases, strict=True)
        ]

    def maps(self) -> list[Tensor]:
        """The maps by torch's own operators, which are differentiable."""
        act = ACTIVATIONS[self.act]
        parameters = zip(self.gamma, self.beta, self.eps, strict=True)
        return [
            act(batch_norm(q, None, None, gamma, beta, training=True, eps=eps))
            for q, (gamma, beta, eps) in zip(self.before(), parameters, strict=True)
        ]


def forward_default(*arguments: Any) -> Maps:
    """The maps and their statistics by torch's own operators."""
    norms = Norms(*arguments)
    norms.check()
    moments = [torch.var_mean(q, (0, 2, 3), correction=0) for q in norms.before()]
    maps = [in_order(q, norms.h) for q in norms.maps()]
    return maps, torch.stack([mean for _, mean in moments]), torch.stack([var for var, _ in moments])


def backward_default(grads: Sequence[Tensor], mean: Tensor, var: Tensor, *arguments: Any) -> Gradients:
    """The gradients by torch's own."""
    norms = Norms(*arguments)
    with torch.enable_grad(), _autograd_kernels():
        h, gamma, beta = (q.detach().requires_grad_() for q in (norms.h, norms.gamma, norms.beta))
        weight = None if norms.weight is None else norms.weight.detach().requires_grad_()
        maps = norms._replace(h=h, weight=weight, gamma=gamma, beta=beta).maps()
        leaves = [h, gamma, beta] if weight is None else [h, gamma, beta, weight]
        grad_h, grad_gamma, grad_beta, *rest = torch.autograd.grad(maps, leaves, list(grads))
    grad_weight = rest[0].contiguous() if rest else h.new_empty(0)
    return in_order(grad_h, h), grad_weight, grad_gamma, grad_beta


LIBRARY.impl("depthwise_norm", forward_default, "CompositeExplicitAutograd")
LIBRARY.impl("depthwise_norm_backward", backward_default, "CompositeExplicitAutograd")


@torch.library.register_fake("pdecnn::depthwise_norm", lib=LIBRARY)
def _forward_fake(*arguments: Any) -> Maps:
    norms = Norms(*arguments)
    maps = [like(norms.h) for _ in range(len(norms.gamma))]
    return maps, norms.gamma.new_empty(norms.gamma.shape), norms.gamma.new_empty(norms.gamma.shape)


@torch.library.register_fake("pdecnn::depthwise_norm_backward", lib=LIBRARY)
def _backward_fake(grads: Any, mean: Any, var: Any, *arguments: Any) -> Gradients:
    h, weight, _, gamma, *_ = Norms(*arguments)
    grad_weight = h.new_empty(0 if weight is None else weight.shape)
    grad_h = like(h)
    return grad_h, grad_weight, gamma.new_empty(gamma.shape), gamma.new_empty(gamma.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.eps, ctx.act = inputs
    _, mean, var = output
    ctx.mark_non_differentiable(mean, var)
    ctx.save_for_backward(mean, var, *tensors)


def _backward(ctx: Any, grads: Sequence[Tensor | None], *_: Any) -> tuple[Any, ...]:
    mean, var, *tensors = ctx.saved_tensors
    h, weight, bias, _, _ = tensors
    given = [torch.zeros_like(h) if g is None else g for g in grads]
    grad_h, grad_weight, grad_gamma, grad_beta = torch.ops.pdecnn.depthwise_norm_backward(
        given, mean, var, *tensors, ctx.eps, ctx.act
    )
    return grad_h, None if weight is None else grad_weight, zeros_like(bias), grad_gamma, grad_beta, None, None


def zeros_like(bias: Tensor | None) -> Tensor | None:
    """The gradient of a bias that the norm takes away with the mean."""
    return None if bias is None else torch.zeros_like(bias)


def refuse_double_backward(name: str) -> Any:
    """What stands for the gradient of a backward operator."""

    def refuse(ctx: Any, *grads: Any) -> None:
        raise RuntimeError(
            f"{name}: its gradient cannot be differentiated again by the fused kernel. Use torch's convolution, batch "
            "norm and activation and pdecnn.reference.advection_diffusion where second derivatives are needed."
        )

    return refuse


torch.library.register_autograd("pdecnn::depthwise_norm", _backward, setup_context=_setup_context, lib=LIBRARY)
torch.library.register_autograd(
    "pdecnn::depthwise_norm_backward", refuse_double_backward("depthwise_norm"), lib=LIBRARY
)


@register_flop_formula(torch.ops.pdecnn.depthwise_norm)
def _forward_flops(h: Sequence[int], weight: Sequence[int] | None, *_: Any, **__: Any) -> int:
    return 2 * stencil_macs(h, weight)


@register_flop_formula(torch.ops.pdecnn.depthwise_norm_backward)
def _backward_flops(grads: Any, mean: Any, var: Any, h: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 4 * stencil_macs(h, weight)
