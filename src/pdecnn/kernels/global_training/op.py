"""`pdecnn::global_training`: schema, default, fake, autograd and flop formula.

A Global layer in training mode, from its first guess to the state before its output norm: `pdecnn::depthwise_norm`
gives the coefficients and `pdecnn::advection_diffusion` the steps. The default runs these two; the native kernel does
both plane by plane, so that the coefficients are neither written nor saved.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

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


class Arguments(NamedTuple):
    """The operator's arguments, in the order of its schema."""

    h: Tensor
    x: Tensor | None
    weight: Tensor
    bias: Tensor | None
    gamma: Tensor
    beta: Tensor
    eps: Sequence[float]
    act: str
    D: Sequence[float]
    K: int
    dt: float
    dx: float
    dy: float
    has_source: bool
    previous_is_input: bool

    def maps(self) -> tuple[list[Tensor], Tensor, Tensor]:
        """The learned coefficients, and mean and variance of what their norms got."""
        return torch.ops.pdecnn.depthwise_norm(self.h, *self.stencils)  # type: ignore[no-any-return]

    @property
    def stencils(self) -> tuple[Any, ...]:
        """What `depthwise_norm` takes after the state."""
        return self[2:8]

    def problem(self, maps: Sequence[Tensor]) -> tuple[Any, ...]:
        """What `advection_diffusion` takes, with these learned coefficients."""
        h_prev = self.x if self.previous_is_input else None
        f = None if not self.has_source else self.h if self.x is None else self.x
        constants = (self.h.new_tensor(d) for d in self.D)
        return self.h, h_prev, *maps, *constants, f, self.K, self.dt, self.dx, self.dy, "periodic"


def _forward_default(*arguments: Any) -> Result:
    call = Arguments(*arguments)
    maps, mean, var = call.maps()
    return torch.ops.pdecnn.advection_diffusion(*call.problem(maps)), mean, var


def _backward_default(grad: Tensor, mean: Tensor, var: Tensor, *arguments: Any) -> Gradients:
    call = Arguments(*arguments)
    h, x = call.h, call.x
    maps, _, _ = call.maps()
    problem = call.problem(maps)
    _, h_prev, *_, f, _, _, _, _, _ = problem
    needs = [True, h_prev is not None, True, True, len(maps) > 2, len(maps) > 2, f is not None]
    to_h, to_previous, *to_maps, to_f = torch.ops.pdecnn.advection_diffusion_backward(grad, *problem, needs)
    through, grad_weight, grad_gamma, grad_beta = torch.ops.pdecnn.depthwise_norm_backward(
        to_maps[: len(maps)], mean, var, h, *call.stencils
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
        "Use torch's convolution and batch norm and pdecnn.reference.advection_diffusion where second derivatives "
        "are needed."
    )


torch.library.register_autograd("pdecnn::global_training", _backward, setup_context=_setup_context, lib=LIBRARY)
torch.library.register_autograd("pdecnn::global_training_backward", _no_double_backward, lib=LIBRARY)


@register_flop_formula(torch.ops.pdecnn.global_training)
def _forward_flops(*shapes: Any, **_: Any) -> int:
    call: Any = Arguments(*shapes)  # shapes in place of tensors
    solving = solver.macs(call.h, call.K, learned_diffusion=call.weight[0] > 2)
    return 2 * (norm._macs(call.h, call.weight) + solving)


@register_flop_formula(torch.ops.pdecnn.global_training_backward)
def _backward_flops(grad: Any, mean: Any, var: Any, *shapes: Any, **_: Any) -> int:
    call: Any = Arguments(*shapes)
    adjoint = solver._backward_flops(grad, call.h, None, None, None, None, None, None, call.K)
    return 4 * norm._macs(call.h, call.weight) + adjoint
