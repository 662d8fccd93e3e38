"""The native twin of `pdecnn::global_layer`: packs pointers, sizes and strides and calls `cpu.cpp`."""

import struct
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.cpu import BOUNDARIES
from pdecnn.kernels.advection_diffusion.op import LIBRARY
from pdecnn.kernels.global_layer.op import SIDES, _default
from pdecnn.kernels.native import Library

_ACTIVATIONS = {"relu": 1, "relu6": 2}
_CALL = struct.Struct("=12q 5d 15q 4q")  # as `struct LayerCall` in cpu.cpp


def pack(
    out: Tensor,
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
) -> bytes:
    """The arguments as the native function takes them; every tensor must outlive the call."""
    return _CALL.pack(
        *h.shape,
        K,
        BOUNDARIES[boundary],
        weight.shape[0],
        weight.shape[-1],
        previous_is_input,
        _ACTIVATIONS[coefficient_act],
        _ACTIVATIONS[output_act],
        flow_sign,
        dt,
        dx,
        dy,
        D_x,
        D_y,
        *(n for q in (h, x, out) for n in (q.data_ptr(), *q.stride())),
        *(q.data_ptr() for q in (weight, bias, scale, shift)),
    )


def _has_neighbours(q: Tensor) -> bool:
    """Whether columns lie side by side, or else channels; columns that are all one (stride 0) are not covered."""
    return q.stride(3) == 1 or (q.stride(1) == 1 and q.stride(3) > 1)


def _covered(h: Tensor, x: Tensor, weight: Tensor, *others: Tensor) -> bool:
    return (
        weight.shape[-1] in SIDES
        and all(_has_neighbours(q) for q in (h, x))
        and all(q.dtype == torch.float32 for q in (h, x, weight, *others))
        and all(q.is_contiguous() for q in (weight, *others))
    )


def register(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU; what it does not cover goes operator by operator."""
    run = library.function("pdecnn_global_layer")

    def global_layer(
        h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, *options: Any
    ) -> Tensor:
        if not _covered(h, x, weight, bias, scale, shift):
            return _default(h, x, weight, bias, scale, shift, *options)
        out = torch.empty_like(h)
        run(pack(out, h, x, weight, bias, scale, shift, *options))
        return out

    LIBRARY.impl("global_layer", global_layer, "CPU")
