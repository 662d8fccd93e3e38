"""`pdecnn::global_training`: a Global layer in training mode, from its first guess to the state before its output norm.

`pdecnn::depthwise_norm` gives the coefficients and `pdecnn::advection_diffusion` the steps. The default runs these two;
the native kernel does both plane by plane, so that the coefficients are neither written nor saved. Without `x` the
layer's input is the first guess.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import backward_macs, macs
from pdecnn.kernels.global_layer.arguments import STEPS, Steps
from pdecnn.kernels.global_layer.norm import Norms, save, zeros_like
from pdecnn.kernels.global_layer.op import stencil_macs
from pdecnn.kernels.library import in_order, like, refuse_second_derivative, register

_ARGUMENTS = f"Tensor h, Tensor? x, Tensor weight, Tensor? bias, Tensor gamma, Tensor beta, float[] eps, {STEPS}"

Result = tuple[Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Layer(NamedTuple):
    """The operator's arguments: the input, what makes the coefficients of the first guess `norms.h`, and the steps."""

    x: Tensor | None
    norms: Norms
    steps: Steps

    @classmethod
    def of(cls, h: Tensor, x: Tensor | None, *others: Any) -> "Layer":
        """From the arguments in the order of the schema."""
        weight, bias, gamma, beta, eps, *options = others
        steps = Steps(*options)
        return cls(x, Norms(h, weight, bias, gamma, beta, eps, steps.coefficient_act), steps)

    def check(self) -> None:
        """A ValueError if they do not fit together."""
        assert self.norms.weight is not None
        self.steps.check("global_training", self.norms.h, self.x, self.norms.weight)
        self.norms.check("global_training")

    def room(self) -> Gradients:
        """Room for the gradients of h, x, weight, gamma and beta; none for an input that is absent."""
        grad_h, grad_weight, grad_gamma, grad_beta = self.norms.room()
        grad_x = grad_h.new_empty(0) if self.x is None else like(grad_h)
        return grad_h, grad_x, grad_weight, grad_gamma, grad_beta


def forward_default(*arguments: Any) -> Result:
    """The state and the statistics of the norms, operator by operator."""
    layer = Layer.of(*arguments)
    layer.check()
    h = layer.norms.h
    maps, mean, var = torch.ops.pdecnn.depthwise_norm(*layer.norms)
    out = torch.ops.pdecnn.advection_diffusion(*layer.steps.solve(h, layer.x, maps))
    return in_order(out, h), mean, var


def backward_default(grad: Tensor, mean: Tensor, var: Tensor, *arguments: Any) -> Gradients:
    """The gradients, operator by operator."""
    x, norms, steps = Layer.of(*arguments)
    h = norms.h
    maps, _, _ = torch.ops.pdecnn.depthwise_norm(*norms)
    problem, learned = steps.solve(h, x, maps), len(maps) > 2
    needs = [True, problem.h_prev is not None, True, True, learned, learned, problem.f is not None]
    to_h, to_previous, to_u, to_v, *to_D, to_f = torch.ops.pdecnn.advection_diffusion_backward(grad, *problem, needs)
    to_maps = [steps.flow_sign * to_u, steps.flow_sign * to_v, *to_D][: len(maps)]
    through, *to_norms = torch.ops.pdecnn.depthwise_norm_backward(to_maps, mean, var, *norms)
    to_h = to_h + through
    to_x = sum((q for q in (to_previous, to_f) if q.shape == h.shape), torch.zeros_like(to_h))
    if x is None:
        to_h, to_x = to_h + to_x, h.new_empty(0)
    return in_order(to_h, h), in_order(to_x, h) if x is not None else to_x, *to_norms


def _forward_fake(*arguments: Any) -> Result:
    norms = Layer.of(*arguments).norms
    return like(norms.h), *norms.statistics()


def _backward_fake(grad: Any, mean: Any, var: Any, *arguments: Any) -> Gradients:
    return Layer.of(*arguments).room()


def _gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    mean, var, *tensors = ctx.saved_tensors
    _, x, _, bias, _, _ = tensors
    backward = torch.ops.pdecnn.global_training_backward
    grad_h, grad_x, grad_weight, grad_gamma, grad_beta = backward(grad, mean, var, *tensors, *ctx.options)
    grad_x = None if x is None else grad_x
    return grad_h, grad_x, grad_weight, zeros_like(bias), grad_gamma, grad_beta, *[None] * len(ctx.options)


def _forward_flops(*arguments: Any, **_: Any) -> int:
    shapes: Any
    _, shapes, steps = Layer.of(*arguments)
    learned = shapes.weight[0] > 2
    return 2 * (stencil_macs(shapes.h, shapes.weight) + macs(shapes.h, steps.K, learned_diffusion=learned))


def _backward_flops(grad: Any, mean: Any, var: Any, *arguments: Any, **_: Any) -> int:
    shapes: Any
    _, shapes, steps = Layer.of(*arguments)
    return 4 * stencil_macs(shapes.h, shapes.weight) + 2 * backward_macs(shapes.h, steps.K)


register(
    f"global_training({_ARGUMENTS}) -> (Tensor out, Tensor mean, Tensor var)",
    forward_default,
    _forward_fake,
    _forward_flops,
    gradient=_gradient,
    save=save,
)
register(
    f"global_training_backward(Tensor grad, Tensor mean, Tensor var, {_ARGUMENTS}) -> "
    "(Tensor grad_h, Tensor grad_x, Tensor grad_weight, Tensor grad_gamma, Tensor grad_beta)",
    backward_default,
    _backward_fake,
    _backward_flops,
    gradient=refuse_second_derivative(
        "global_training", "torch's convolution, batch norm and activation with pdecnn.reference.advection_diffusion"
    ),
)
