"""The native twin of `pdecnn::global_training`: packs pointers, sizes and limits and calls `cpu.cpp`."""

import struct
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import LIBRARY
from pdecnn.kernels.depthwise_norm.cpu import _PROBLEM, _in_order, _layout, _pointers, _problem
from pdecnn.kernels.global_training.op import Gradients, Result, _backward_default, _forward_default
from pdecnn.kernels.native import Library, Missing, load

# as `struct Layer`, `ForwardCall` and `BackwardCall` in cpu.cpp
_LAYER = f"{_PROBLEM} q 3d 2q"
_FORWARD = struct.Struct(f"={_LAYER} 3q")
_BACKWARD = struct.Struct(f"={_LAYER} 3q 5q")


@cache
def covers_planes(H: int, W: int, side: int, K: int) -> bool:
    """Whether the loaded kernel solves planes of this size for K steps, with stencils of this side."""
    library = load()
    if isinstance(library, Missing):
        return False
    try:
        function = library.function("pdecnn_global_training_covers")
    except AttributeError:  # an older build
        return False
    problem = (1, 1, H, W, 4, side, 0, *[0.0] * 6, *[0] * 5)
    return bool(function.address(struct.pack(f"={_LAYER}", *problem, K, 1.0, 1.0, 1.0, 0, 0)) == 0)


def _covered(h: Tensor, weight: Tensor, K: int, *others: Tensor | None) -> bool:
    given = [q for q in (h, weight, *others) if q is not None]
    return (
        all(q.dtype == torch.float32 for q in given)
        and h.numel() > 0
        and len(weight) == 4
        and covers_planes(*h.shape[2:], weight.shape[-1], K)
    )


def register(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU; what it does not cover goes operator by operator."""
    run_forward = library.function("pdecnn_global_training_forward")
    run_backward = library.function("pdecnn_global_training_backward")

    def forward(
        h: Tensor,
        f: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        gamma: Tensor,
        beta: Tensor,
        eps: Sequence[float],
        act: str,
        K: int,
        dt: float,
        dx: float,
        dy: float,
        h_is_source: bool,
    ) -> Result:
        if not _covered(h, weight, K, f, bias, gamma, beta):
            return _forward_default(h, f, weight, bias, gamma, beta, eps, act, K, dt, dx, dy, h_is_source)
        layout = _layout(h)
        ordered, f = _in_order(h, layout), None if f is None else _in_order(f, layout)
        weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
        gamma, beta = gamma.contiguous(), beta.contiguous()
        out, mean, var = torch.empty_like(ordered), torch.empty_like(gamma), torch.empty_like(gamma)
        problem = _problem(ordered, weight, bias, gamma, beta, eps, act)
        source = (*_pointers(f), h_is_source)
        run_forward(_FORWARD.pack(*problem, K, dt, dx, dy, *source, *_pointers(out, mean, var)))
        return out if ordered is h else torch.empty_like(h).copy_(out), mean, var

    def backward(
        grad: Tensor,
        mean: Tensor,
        var: Tensor,
        h: Tensor,
        f: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        gamma: Tensor,
        beta: Tensor,
        eps: Sequence[float],
        act: str,
        K: int,
        dt: float,
        dx: float,
        dy: float,
        h_is_source: bool,
    ) -> Gradients:
        if not _covered(h, weight, K, f, bias, gamma, beta, grad):
            return _backward_default(
                grad, mean, var, h, f, weight, bias, gamma, beta, eps, act, K, dt, dx, dy, h_is_source
            )
        layout = _layout(h)
        ordered, f = _in_order(h, layout), None if f is None else _in_order(f, layout)
        grad = _in_order(grad, layout)
        weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
        gamma, beta = gamma.contiguous(), beta.contiguous()
        grad_h, grad_f = torch.empty_like(ordered), None if f is None else torch.empty_like(ordered)
        of_parameters = [torch.empty_like(q) for q in (weight, gamma, beta)]
        problem = _problem(ordered, weight, bias, gamma, beta, eps, act)
        source = (*_pointers(f), h_is_source)
        addresses = _pointers(grad, mean, var, grad_h, grad_f, *of_parameters)
        run_backward(_BACKWARD.pack(*problem, K, dt, dx, dy, *source, *addresses))
        if ordered is not h:  # as every kernel answers, in the memory format of h
            grad_h = torch.empty_like(h).copy_(grad_h)
            grad_f = None if grad_f is None else torch.empty_like(h).copy_(grad_f)
        grad_weight, grad_gamma, grad_beta = of_parameters
        return grad_h, h.new_empty(0) if grad_f is None else grad_f, grad_weight, grad_gamma, grad_beta

    LIBRARY.impl("global_training", forward, "CPU")
    LIBRARY.impl("global_training_backward", backward, "CPU")
