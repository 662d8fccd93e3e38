"""`pdecnn::global_layer` for CUDA, in Triton: one launch for stencils, K steps and output.

A program takes one plane at a time and keeps its coefficients and states in scratch of its own, as the solver does
(`advection_diffusion/triton.py`): of a map, the state and the input are read once and the output is written once.
Single precision, side 1, 3 or 5; all else goes operator by operator.
"""

from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion import triton as solver
from pdecnn.kernels.global_layer import op
from pdecnn.kernels.global_layer.arguments import SIDES, Steps, check_maps, check_one_of
from pdecnn.kernels.global_layer.triton_kernels import layer_kernel
from pdecnn.kernels.library import ACTIVATIONS, BOUNDARIES, in_order

PLANES = 6
"""Planes of scratch per program: two states, four coefficients."""


def global_layer(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor,
    residual: bool, output_act: str, *options: Any,
) -> Tensor:  # fmt: skip
    """The layer in one launch, in the memory format of `h`."""
    steps = Steps(*options)
    check_maps("global_layer", h, weight, bias=bias, scale=scale, shift=shift)
    steps.check("global_layer", h, x, weight)
    check_one_of("global_layer", "output_act", output_act, ACTIVATIONS)
    if h.dtype != torch.float32 or weight.shape[-1] not in SIDES:
        return op.default(h, x, weight, bias, scale, shift, residual, output_act, *options)
    given, source = h.contiguous(), x.contiguous()
    parameters = [q.contiguous() for q in (weight, bias, scale, shift)]
    out = torch.empty_like(given)
    N, C, H, W = h.shape
    if N * C == 0:
        return in_order(out, h)
    block_h, block_w, num_warps = solver._tiling(H, W)
    programs = solver._programs(h, num_warps, PLANES * H * W * 4)
    # x and y against the index are negative distances
    dt, dx, dy = steps.dt, steps.flow_sign * steps.dx, steps.flow_sign * steps.dy
    with torch.cuda.device_of(h):  # type: ignore[no-untyped-call]
        layer_kernel[(programs,)](
            out, given, source, *parameters, h.new_empty(programs * PLANES * H * W),
            N * C, C, H, W, steps.K, steps.D_x, steps.D_y, dt, dt / dx, dt / dy, dt / dx**2, dt / dy**2,
            MAPS=len(weight), SIDE=weight.shape[-1], COEFFICIENT_ACT=ACTIVATIONS[steps.coefficient_act],
            OUTPUT_ACT=ACTIVATIONS[output_act], BOUNDARY=BOUNDARIES[steps.boundary], HAS_F=steps.has_source,
            PREVIOUS_IS_INPUT=steps.previous_is_input, RESIDUAL=residual,
            ONE_TILE=block_h >= H and block_w >= W, BLOCK_H=block_h, BLOCK_W=block_w,
            num_warps=num_warps, **solver.OPTIONS,
        )  # fmt: skip
    return in_order(out, h)
