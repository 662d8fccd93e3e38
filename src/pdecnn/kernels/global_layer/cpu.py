"""The native twin of `pdecnn::global_layer`: packs pointers, sizes and strides and calls `cpu.cpp`."""

from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.global_layer.op import SIDES, _default
from pdecnn.kernels.library import ACTIVATIONS, BOUNDARIES, LIBRARY
from pdecnn.kernels.native import Library


def fields(
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
) -> tuple[int | float, ...]:
    """The fields of `LayerCall`; every tensor must outlive the call."""
    maps, _, side, _ = weight.shape
    return (
        *h.shape,
        K,
        BOUNDARIES[boundary],
        maps,
        side,
        previous_is_input,
        True,
        False,
        ACTIVATIONS[coefficient_act],
        ACTIVATIONS[output_act],
        flow_sign,
        dt,
        dx,
        dy,
        D_x,
        D_y,
        h.data_ptr(),
        *h.stride(),
        x.data_ptr(),
        *x.stride(),
        out.data_ptr(),
        *out.stride(),
        weight.data_ptr(),
        bias.data_ptr(),
        scale.data_ptr(),
        shift.data_ptr(),
    )


def _has_neighbours(q: Tensor) -> bool:
    """Whether columns lie side by side, or else channels; columns that are all one (stride 0) are not covered."""
    _, channel, _, column = q.stride()
    return column == 1 or (channel == 1 and column > 1)


def _covered(h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> bool:
    # written out, for at batch 1 a generator over six tensors costs as much as a small layer
    f32 = torch.float32
    return (
        weight.shape[-1] in SIDES
        and (h.dtype is f32 and x.dtype is f32 and weight.dtype is f32)
        and (bias.dtype is f32 and scale.dtype is f32 and shift.dtype is f32)
        and (weight.is_contiguous() and bias.is_contiguous() and scale.is_contiguous() and shift.is_contiguous())
        and _has_neighbours(h)
        and (x is h or _has_neighbours(x))
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
        run(*fields(out, h, x, weight, bias, scale, shift, *options))
        return out

    LIBRARY.impl("global_layer", global_layer, "CPU")
