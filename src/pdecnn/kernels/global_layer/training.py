"""`pdecnn::global_training`: a Global layer in training mode, from its first guess to the state before its output norm.

`pdecnn::depthwise_norm` gives the coefficients and `pdecnn::advection_diffusion` the steps. The default runs these two;
the native kernel does both plane by plane, so that the coefficients are neither written nor saved. Without `x` the
layer's input is the first guess.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from pdecnn.kernels.advection_diffusion import op as solver
from pdecnn.kernels.global_layer.arguments import STEPS, Steps, check_steps, in_order
from pdecnn.kernels.global_layer.norm import Norms, refuse_double_backward, zeros_like
from pdecnn.kernels.global_layer.op import stencil_macs
from pdecnn.kernels.library import LIBRARY, TAGS, like

_ARGUMENTS = f"Tensor h, Tensor? x, Tensor weight, Tensor? bias, Tensor gamma, Tensor beta, float[] eps, {STEPS}"
LIBRARY.define(f"global_training({_ARGUMENTS}) -> (Tensor out, Tensor mean, Tensor var)", tags=TAGS)
LIBRARY.define(
    f"global_training_backward(Tensor grad, Tensor mean, Tensor var, {_ARGUMENTS}) -> "
    "(Tensor grad_h, Tensor grad_x, Tensor grad_weight, Tensor grad_gamma, Tensor grad_beta)",
    tags=TAGS,
)

Result = tuple[Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Arguments(NamedTuple):
    """The operator's arguments: maps, what makes the coefficients, and the steps."""

    h: Tensor
    x: Tensor | None
    norms: Norms
    steps: Steps

    @classmethod
    def of(cls, h: Tensor, x: Tensor | None, *others: Any) -> "Arguments":
        """From the arguments in the order of the schema."""
        steps = Steps(*others[5:])
        weight, bias, gamma, beta, eps = others[:5]
        return cls(h, x, Norms(h, weight, bias, gamma, beta, eps, steps.coefficient_act), steps)

    def check(self) -> None:
        """A ValueError if they do not fit together."""
        assert self.norms.weight is not None
        check_steps("global_training", self.h, self.x, self.norms.weight, self.steps)
        self.norms.check("global_training")

    def problem(self, maps: Sequence[Tensor]) -> tuple[Any, ...]:
        """What `advection_diffusion` takes, with these learned coefficients."""
        is_other = self.x is not None
        return self.steps._replace(previous_is_input=self.steps.previous_is_input and is_other).solve(
            self.h, self.h if self.x is None else self.x, maps
        )


def forward_default(*arguments: Any) -> Result:
    """The state after K steps, and mean and variance of what each norm got, operator by operator."""
    call = Arguments.of(*arguments)
    call.check()
    maps, mean, var = torch.ops.pdecnn.depthwise_norm(*call.norms)
    out = torch.ops.pdecnn.advection_diffusion(*call.problem(maps))
    return in_order(out, call.h), mean, var


def backward_default(grad: Tensor, mean: Tensor, var: Tensor, *arguments: Any) -> Gradients:
    """The gradients, operator by operator."""
    call = Arguments.of(*arguments)
    h, x, norms, steps = call
    maps, _, _ = torch.ops.pdecnn.depthwise_norm(*norms)
    problem = call.problem(maps)
    _, h_prev, *_, f, _, _, _, _, _ = problem
    needs = [True, h_prev is not None, True, True, len(maps) > 2, len(maps) > 2, f is not None]
    to_h, to_previous, to_u, to_v, *to_D, to_f = torch.ops.pdecnn.advection_diffusion_backward(grad, *problem, needs)
    to_maps = [steps.flow_sign * to_u, steps.flow_sign * to_v, *to_D][: len(maps)]
    through, *to_norms = torch.ops.pdecnn.depthwise_norm_backward(to_maps, mean, var, *norms)
    to_x = torch.zeros_like(to_h)
    if h_prev is not None:
        to_x += to_previous
    if f is not None:
        to_x += to_f
    grad_h = to_h + through if x is not None else to_h + through + to_x
    grad_x = h.new_empty(0) if x is None else in_order(to_x, h)
    grad_weight, grad_gamma, grad_beta = to_norms
    return in_order(grad_h, h), grad_x, grad_weight, grad_gamma, grad_beta


LIBRARY.impl("global_training", forward_default, "CompositeExplicitAutograd")
LIBRARY.impl("global_training_backward", backward_default, "CompositeExplicitAutograd")


@torch.library.register_fake("pdecnn::global_training", lib=LIBRARY)
def _forward_fake(h: Tensor, x: Any, weight: Any, bias: Any, gamma: Tensor, *_: Any) -> Result:
    return like(h), gamma.new_empty(gamma.shape), gamma.new_empty(gamma.shape)


@torch.library.register_fake("pdecnn::global_training_backward", lib=LIBRARY)
def _backward_fake(
    grad: Any, mean: Any, var: Any, h: Tensor, x: Tensor | None, weight: Tensor, bias: Any, gamma: Tensor, *_: Any
) -> Gradients:
    grad_x = h.new_empty(0) if x is None else like(h)
    to_norms = (gamma.new_empty(gamma.shape), gamma.new_empty(gamma.shape))
    return like(h), grad_x, h.new_empty(weight.shape), *to_norms


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, mean, var = output
    ctx.mark_non_differentiable(mean, var)
    ctx.save_for_backward(mean, var, *inputs[:6])
    ctx.options = inputs[6:]


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    mean, var, *tensors = ctx.saved_tensors
    _, x, _, bias, _, _ = tensors
    grad_h, grad_x, grad_weight, grad_gamma, grad_beta = torch.ops.pdecnn.global_training_backward(
        grad, mean, var, *tensors, *ctx.options
    )
    grad_x = None if x is None else grad_x
    return grad_h, grad_x, grad_weight, zeros_like(bias), grad_gamma, grad_beta, *[None] * len(ctx.options)


torch.library.register_autograd("pdecnn::global_training", _backward, setup_context=_setup_context, lib=LIBRARY)
torch.library.register_autograd(
    "pdecnn::global_training_backward", refuse_double_backward("global_training"), lib=LIBRARY
)


@register_flop_formula(torch.ops.pdecnn.global_training)
def _forward_flops(h: Any, x: Any, weight: Any, *others: Any, **_: Any) -> int:
    K = Steps(*others[4:]).K
    return 2 * (stencil_macs(h, weight) + solver.macs(h, K, learned_diffusion=weight[0] > 2))


@register_flop_formula(torch.ops.pdecnn.global_training_backward)
def _backward_flops(grad: Any, mean: Any, var: Any, h: Any, x: Any, weight: Any, *others: Any, **_: Any) -> int:
    K = Steps(*others[4:]).K
    return 4 * stencil_macs(h, weight) + solver._backward_flops(grad, h, None, None, None, None, None, None, K)
