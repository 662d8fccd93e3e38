"""`pdecnn::global_layer`: a whole Global layer after its first guess, for inference.

With batch norms folded into them, the coefficient convolutions, the K steps and the output affine are all depth-wise:
one kernel reads a plane once and writes it once. The default implementation is the same operator by operator. There is
no gradient and no autograd kernel before the operator: `FusedGlobalLayer` refuses inputs that need one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.utils.flop_counter import register_flop_formula

from pdecnn.kernels.advection_diffusion.op import macs
from pdecnn.kernels.global_layer.arguments import (
    ACTIVATIONS,
    STEPS,
    Steps,
    check_act,
    check_maps,
    check_steps,
    in_order,
)
from pdecnn.kernels.library import LIBRARY, TAGS, like

LIBRARY.define(
    f"global_layer(Tensor h, Tensor x, Tensor weight, Tensor bias, Tensor scale, Tensor shift, {STEPS}, bool residual, "
    "str output_act) -> Tensor",
    tags=TAGS,
)


def default(h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, *options: Any) -> Tensor:
    """The layer operator by operator."""
    steps, residual, output_act = Steps(*options[:-2]), *options[-2:]
    check_maps("global_layer", h, weight, bias=bias, scale=scale, shift=shift)
    check_steps("global_layer", h, x, weight, steps)
    check_act("global_layer", "output_act", output_act)
    act, pad = ACTIVATIONS[steps.coefficient_act], weight.shape[-1] // 2
    maps = [act(conv2d(h, w[:, None], b, padding=pad, groups=h.shape[1])) for w, b in zip(weight, bias, strict=True)]
    h_K = torch.ops.pdecnn.advection_diffusion(*steps.solve(h, x, maps))
    out = ACTIVATIONS[output_act](h_K * scale.view(-1, 1, 1) + shift.view(-1, 1, 1))
    return in_order(out + x if residual else out, h)


LIBRARY.impl("global_layer", default, "CompositeExplicitAutograd")


@torch.library.register_fake("pdecnn::global_layer", lib=LIBRARY)
def _fake(h: Tensor, *_: Any) -> Tensor:
    return like(h)


@register_flop_formula(torch.ops.pdecnn.global_layer)
def _flops(
    h: Sequence[int], x: Any, weight: Sequence[int], bias: Any, scale: Any, shift: Any, *options: Any, **_: Any
) -> int:
    K = Steps(*options[:-2]).K
    return 2 * (stencil_macs(h, weight) + macs(h, K, learned_diffusion=weight[0] == 4))


def stencil_macs(h: Sequence[int], weight: Sequence[int] | None) -> int:
    """Multiply-adds of the stencils, as a convolution counts them; the norm has none."""
    return 0 if weight is None else int(torch.Size(h).numel() * weight[0] * weight[-1] ** 2)
