"""`pdecnn::global_layer`: a whole Global layer after its first guess, for inference.

With batch norms folded into them, the coefficient convolutions, the K steps and the output affine are all depth-wise:
one kernel reads a plane once and writes it once. The default implementation is the same operator by operator. There is
no gradient and no autograd kernel before the operator: `FusedGlobalLayer` refuses inputs that need one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import macs
from pdecnn.kernels.global_layer.arguments import ACTIVATIONS, STEPS, Steps, check_maps, check_one_of
from pdecnn.kernels.library import in_order, like, register


def default(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor,
    residual: bool, output_act: str, *options: Any,
) -> Tensor:  # fmt: skip
    """The layer operator by operator."""
    steps = Steps(*options)
    check_maps("global_layer", h, weight, bias=bias, scale=scale, shift=shift)
    steps.check("global_layer", h, x, weight)
    check_one_of("global_layer", "output_act", output_act, ACTIVATIONS)
    maps = [ACTIVATIONS[steps.coefficient_act](q) for q in stencils(h, weight, bias)]
    h_K = torch.ops.pdecnn.advection_diffusion(*steps.solve(h, x, maps))
    out = ACTIVATIONS[output_act](h_K * scale.view(-1, 1, 1) + shift.view(-1, 1, 1))
    return in_order(out + x if residual else out, h)


def stencils(h: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """The correlations of every channel with its own stencil, one map for each stencil."""
    biases = [None] * len(weight) if bias is None else bias
    pairs = zip(weight.unsqueeze(2), biases, strict=True)
    return [torch.conv2d(h, w, b, padding=w.shape[-1] // 2, groups=h.shape[1]) for w, b in pairs]


def stencil_macs(h: Sequence[int], weight: Sequence[int] | None) -> int:
    """Multiply-adds of the stencils, as a convolution counts them; the norm has none."""
    return 0 if weight is None else int(torch.Size(h).numel() * weight[0] * weight[-1] ** 2)


def _fake(h: Tensor, *_: Any) -> Tensor:
    return like(h)


def _flops(h: Any, x: Any, weight: Any, *others: Any, **_: Any) -> int:
    steps = Steps(*others[-len(Steps._fields) :])
    return 2 * (stencil_macs(h, weight) + macs(h, steps.K, learned_diffusion=weight[0] == 4))


register(
    "global_layer(Tensor h, Tensor x, Tensor weight, Tensor bias, Tensor scale, Tensor shift, "
    f"bool residual, str output_act, {STEPS}) -> Tensor",
    default,
    _fake,
    _flops,
)
