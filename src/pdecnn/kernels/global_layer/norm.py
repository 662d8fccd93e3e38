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
from torch.nn.functional import batch_norm

from pdecnn.kernels.global_layer.arguments import ACTIVATIONS, check_maps, check_one_of
from pdecnn.kernels.global_layer.op import stencil_macs, stencils
from pdecnn.kernels.library import differentiate, in_order, like, refuse_second_derivative, register, save_inputs

_ARGUMENTS = "Tensor h, Tensor? weight, Tensor? bias, Tensor gamma, Tensor beta, float[] eps, str act"

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
        check_one_of(name, "act", self.act, ACTIVATIONS)
        if self.weight is None and self.bias is not None:
            raise ValueError(f"{name}: a bias needs a weight; without one the map is h itself.")
        if len(self.eps) != len(self.gamma):
            raise ValueError(f"{name}: expected {len(self.gamma)} eps, got {len(self.eps)}.")
        if self.h.numel() <= self.h.shape[1]:
            raise ValueError(f"{name}: expected several values per channel, got h of shape {tuple(self.h.shape)}.")

    def before(self) -> list[Tensor]:
        """What the norms get."""
        return [self.h] if self.weight is None else stencils(self.h, self.weight, self.bias)

    def maps(self) -> list[Tensor]:
        """The maps by torch's own operators, which are differentiable."""
        act = ACTIVATIONS[self.act]
        parameters = zip(self.before(), self.gamma, self.beta, self.eps, strict=True)
        return [act(batch_norm(q, None, None, gamma, beta, True, eps=eps)) for q, gamma, beta, eps in parameters]

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Room for means and variances."""
        return self.gamma.new_empty(self.gamma.shape), self.gamma.new_empty(self.gamma.shape)

    def room(self) -> Gradients:
        """Room for the gradients of h, weight, gamma and beta; none for a weight that is absent."""
        h, weight = self.h, self.weight
        return like(h), h.new_empty(0 if weight is None else weight.shape), *self.statistics()


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

    def maps(h: Tensor, weight: Tensor | None, gamma: Tensor, beta: Tensor) -> list[Tensor]:
        return norms._replace(h=h, weight=weight, gamma=gamma, beta=beta).maps()

    tensors = (norms.h, norms.weight, norms.gamma, norms.beta)
    grad_h, *to_weight, grad_gamma, grad_beta = differentiate(
        maps, tensors, [q is not None for q in tensors], list(grads)
    )
    grad_weight = to_weight[0].contiguous() if to_weight else norms.h.new_empty(0)
    return in_order(grad_h, norms.h), grad_weight, grad_gamma, grad_beta


def _forward_fake(*arguments: Any) -> Maps:
    norms = Norms(*arguments)
    return [like(norms.h) for _ in range(len(norms.gamma))], *norms.statistics()


def _backward_fake(grads: Any, mean: Any, var: Any, *arguments: Any) -> Gradients:
    return Norms(*arguments).room()


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps the arguments after the statistics, which have no gradient of their own."""
    _, mean, var = output
    ctx.mark_non_differentiable(mean, var)
    save_inputs(ctx, (mean, var, *inputs), output)


def _gradient(ctx: Any, grads: Sequence[Tensor | None], *_: Any) -> tuple[Any, ...]:
    mean, var, *tensors = ctx.saved_tensors
    h, weight, bias, _, _ = tensors
    given = [torch.zeros_like(h) if g is None else g for g in grads]
    backward = torch.ops.pdecnn.depthwise_norm_backward
    grad_h, grad_weight, grad_gamma, grad_beta = backward(given, mean, var, *tensors, *ctx.options)
    return grad_h, None if weight is None else grad_weight, zeros_like(bias), grad_gamma, grad_beta, None, None


def zeros_like(bias: Tensor | None) -> Tensor | None:
    """The gradient of a bias that the norm takes away with the mean."""
    return None if bias is None else torch.zeros_like(bias)


def _forward_flops(h: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 2 * stencil_macs(h, weight)


def _backward_flops(grads: Any, mean: Any, var: Any, h: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 4 * stencil_macs(h, weight)


register(
    f"depthwise_norm({_ARGUMENTS}) -> (Tensor[] maps, Tensor mean, Tensor var)",
    forward_default,
    _forward_fake,
    _forward_flops,
    gradient=_gradient,
    save=save,
)
register(
    f"depthwise_norm_backward(Tensor[] grads, Tensor mean, Tensor var, {_ARGUMENTS}) -> "
    "(Tensor grad_h, Tensor grad_weight, Tensor grad_gamma, Tensor grad_beta)",
    backward_default,
    _backward_fake,
    _backward_flops,
    gradient=refuse_second_derivative("depthwise_norm", "torch's convolution, batch norm and activation"),
)
