"""The native twin of `pdecnn::global_training`: packs pointers, sizes and limits and calls `cpu.cpp`."""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import LIBRARY
from pdecnn.kernels.depthwise_norm.cpu import _PROBLEM, _in_order, _layout, _pointers, _problem
from pdecnn.kernels.global_training.op import Gradients, Result, _backward_default, _forward_default
from pdecnn.kernels.native import Library, Missing, load

# as `struct Layer`, `ForwardCall` and `BackwardCall` in cpu.cpp
_LAYER = f"{_PROBLEM} q 5d 3q"
_FORWARD = struct.Struct(f"={_LAYER} 3q")
_BACKWARD = struct.Struct(f"={_LAYER} 3q 5q")


@cache
def covers_planes(H: int, W: int, maps: int, side: int, K: int) -> bool:
    """Whether the loaded kernel solves planes of this size for K steps, with so many stencils of this side."""
    library = load()
    if isinstance(library, Missing):
        return False
    try:
        function = library.function("pdecnn_global_training_covers")
    except AttributeError:  # an older build
        return False
    problem = (1, 1, H, W, maps, side, 0, *[0.0] * 6, *[0] * 5)
    return bool(function.address(struct.pack(f"={_LAYER}", *problem, K, *[1.0] * 5, 0, 0, 0)) == 0)


def _covered(h: Tensor, weight: Tensor, K: int, *others: Tensor | None) -> bool:
    given = [q for q in (h, weight, *others) if q is not None]
    return (
        all(q.dtype == torch.float32 for q in given)
        and h.numel() > 0
        and covers_planes(*h.shape[2:], len(weight), weight.shape[-1], K)
    )


class _Call:
    """Tensors in the order that the kernel takes, which must outlive the call, and `struct Layer` made of them."""

    def __init__(
        self,
        h: Tensor,
        x: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        gamma: Tensor,
        beta: Tensor,
        eps: Sequence[float],
        act: str,
        D: Sequence[float],
        K: int,
        dt: float,
        dx: float,
        dy: float,
        has_source: bool,
        previous_is_input: bool,
    ) -> None:
        layout = _layout(h)
        self.given, self.h = h, _in_order(h, layout)
        self.x = None if x is None else _in_order(x, layout)
        self.weight, self.gamma, self.beta = (q.contiguous() for q in (weight, gamma, beta))
        self.bias = None if bias is None else bias.contiguous()
        problem = _problem(self.h, self.weight, self.bias, self.gamma, self.beta, eps, act)
        D_x, D_y = D or (0.0, 0.0)
        input_and_roles = (*_pointers(self.x), has_source, previous_is_input and x is not None)
        self.layer = (*problem, K, dt, dx, dy, D_x, D_y, *input_and_roles)

    def answer(self, q: Tensor) -> Tensor:
        """`q` in the memory format of the state that was given, as every kernel answers."""
        return q if self.h is self.given else torch.empty_like(self.given).copy_(q)


def register(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU; what it does not cover goes operator by operator."""
    run_forward = library.function("pdecnn_global_training_forward")
    run_backward = library.function("pdecnn_global_training_backward")

    def forward(
        h: Tensor,
        x: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        gamma: Tensor,
        beta: Tensor,
        eps: Sequence[float],
        act: str,
        D: Sequence[float],
        K: int,
        *others: Any,
    ) -> Result:
        if not _covered(h, weight, K, x, bias, gamma, beta):
            return _forward_default(h, x, weight, bias, gamma, beta, eps, act, D, K, *others)
        call = _Call(h, x, weight, bias, gamma, beta, eps, act, D, K, *others)
        out, mean, var = torch.empty_like(call.h), torch.empty_like(call.gamma), torch.empty_like(call.gamma)
        run_forward(_FORWARD.pack(*call.layer, *_pointers(out, mean, var)))
        return call.answer(out), mean, var

    def backward(
        grad: Tensor,
        mean: Tensor,
        var: Tensor,
        h: Tensor,
        x: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        gamma: Tensor,
        beta: Tensor,
        eps: Sequence[float],
        act: str,
        D: Sequence[float],
        K: int,
        *others: Any,
    ) -> Gradients:
        *_, has_source, previous_is_input = others
        unused = x is not None and not (has_source or previous_is_input)
        if unused or not _covered(h, weight, K, x, bias, gamma, beta, grad):
            return _backward_default(grad, mean, var, h, x, weight, bias, gamma, beta, eps, act, D, K, *others)
        call = _Call(h, x, weight, bias, gamma, beta, eps, act, D, K, *others)
        grad, mean, var = _in_order(grad, _layout(h)), mean.contiguous(), var.contiguous()
        grad_h, grad_x = torch.empty_like(call.h), None if x is None else torch.empty_like(call.h)
        grad_weight, grad_gamma, grad_beta = (torch.empty_like(q) for q in (call.weight, call.gamma, call.beta))
        addresses = _pointers(grad, mean, var, grad_h, grad_x, grad_weight, grad_gamma, grad_beta)
        run_backward(_BACKWARD.pack(*call.layer, *addresses))
        to_x = h.new_empty(0) if grad_x is None else call.answer(grad_x)
        return call.answer(grad_h), to_x, grad_weight, grad_gamma, grad_beta

    LIBRARY.impl("global_training", forward, "CPU")
    LIBRARY.impl("global_training_backward", backward, "CPU")
