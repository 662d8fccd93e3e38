"""`pdecnn::global_layer`: a whole Global layer after its first guess, for inference.

With batch norms folded into them, the coefficient convolutions, the K steps and the output affine are all depth-wise:
one kernel reads a plane once and writes it once. The default implementation is the same operator by operator. There is
no gradient and no autograd kernel before the operator: `FusedGlobalLayer` refuses inputs that need one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, relu, relu6
from torch.utils.flop_counter import register_flop_formula

from pdecnn.kernels.advection_diffusion.op import LIBRARY, macs

ACTIVATIONS = {"relu": relu, "relu6": relu6}
SIDES = (1, 3, 5)  # of the convolutions that the native kernel has

LIBRARY.define(
    "global_layer(Tensor h, Tensor x, Tensor weight, Tensor bias, Tensor scale, Tensor shift, float D_x, float D_y, "
    "int K, float dt, float dx, float dy, str boundary, int flow_sign, bool previous_is_input, "
    "str coefficient_act, str output_act) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _default(
    h: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    D_x: float,
    D_y: float,
    K: int,
    dt: float,
    dx: float,
    dy: float,
    boundary: str,
    flow_sign: int,
    previous_is_input: bool,
    coefficient_act: str,
    output_act: str,
) -> Tensor:
    act = ACTIVATIONS[coefficient_act]
    C, pad = h.shape[1], weight.shape[-1] // 2
    maps = [act(conv2d(h, w[:, None], b, padding=pad, groups=C)) for w, b in zip(weight, bias, strict=True)]
    u, v = (flow_sign * q for q in maps[:2])
    D = maps[2:] if len(maps) == 4 else [h.new_full((), D_x), h.new_full((), D_y)]
    h_prev = x if previous_is_input else None
    h_K = torch.ops.pdecnn.advection_diffusion(h, h_prev, u, v, *D, x, K, dt, dx, dy, boundary)
    out = ACTIVATIONS[output_act](h_K * scale.view(-1, 1, 1) + shift.view(-1, 1, 1))
    return torch.empty_like(h).copy_(out)


LIBRARY.impl("global_layer", _default, "CompositeExplicitAutograd")


@torch.library.register_fake("pdecnn::global_layer", lib=LIBRARY)
def _fake(h: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(h)


@register_flop_formula(torch.ops.pdecnn.global_layer)
def _flops(
    h: Sequence[int],
    x: Any,
    weight: Sequence[int],
    bias: Any,
    scale: Any,
    shift: Any,
    D_x: Any,
    D_y: Any,
    K: int,
    *_: Any,
    **__: Any,
) -> int:
    N, C, H, W = h
    maps, _, side, _ = weight
    return 2 * (N * C * H * W * maps * side * side + macs(h, K, learned_diffusion=maps == 4))
