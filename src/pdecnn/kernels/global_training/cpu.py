"""The native twin of `pdecnn::global_training`: packs pointers, sizes and limits and calls `cpu.cpp`."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import LIBRARY
from pdecnn.kernels.depthwise_norm.cpu import _in_order, _layout, _pointers, _problem
from pdecnn.kernels.global_training.op import Arguments, Gradients, Result, _backward_default, _forward_default
from pdecnn.kernels.native import Library, Missing, load


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
    return function.status(*problem, K, *[1.0] * 5, 0, 0, 0) == 0


def _covered(call: Arguments, *others: Tensor) -> bool:
    tensors = [q for q in (call.h, call.x, call.weight, call.bias, call.gamma, call.beta, *others) if q is not None]
    return (
        all(q.dtype == torch.float32 for q in tensors)
        and call.h.numel() > 0
        and covers_planes(*call.h.shape[2:], len(call.weight), call.weight.shape[-1], call.K)
    )


def _ordered(call: Arguments) -> Arguments:
    """The same with tensors as the kernel takes them; they must outlive its call."""
    layout = _layout(call.h)
    return call._replace(
        h=_in_order(call.h, layout),
        x=None if call.x is None else _in_order(call.x, layout),
        weight=call.weight.contiguous(),
        bias=None if call.bias is None else call.bias.contiguous(),
        gamma=call.gamma.contiguous(),
        beta=call.beta.contiguous(),
    )


def _layer(call: Arguments) -> tuple[int | float, ...]:
    """`struct Layer` of arguments in order."""
    D_x, D_y = call.D or (0.0, 0.0)
    roles = (call.has_source, call.previous_is_input and call.x is not None)
    steps = (call.K, call.dt, call.dx, call.dy, D_x, D_y)
    return (*_problem(call.h, *call.stencils), *steps, *_pointers(call.x), *roles)


def _answer(q: Tensor, h: Tensor, ordered: Tensor) -> Tensor:
    """`q` in the memory format of the state that was given, as every kernel answers."""
    return q if ordered is h else torch.empty_like(h).copy_(q)


def register(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU; what it does not cover goes operator by operator."""
    run_forward = library.function("pdecnn_global_training_forward")
    run_backward = library.function("pdecnn_global_training_backward")

    def forward(*arguments: Any) -> Result:
        given = Arguments(*arguments)
        if not _covered(given):
            return _forward_default(*given)
        call = _ordered(given)
        out, mean, var = torch.empty_like(call.h), torch.empty_like(call.gamma), torch.empty_like(call.gamma)
        run_forward(*_layer(call), *_pointers(out, mean, var))
        return _answer(out, given.h, call.h), mean, var

    def backward(grad: Tensor, mean: Tensor, var: Tensor, *arguments: Any) -> Gradients:
        given = Arguments(*arguments)
        unused = given.x is not None and not (given.has_source or given.previous_is_input)
        if unused or not _covered(given, grad):
            return _backward_default(grad, mean, var, *given)
        call = _ordered(given)
        grad, mean, var = _in_order(grad, _layout(given.h)), mean.contiguous(), var.contiguous()
        grad_h, grad_x = torch.empty_like(call.h), None if call.x is None else torch.empty_like(call.h)
        grad_weight, grad_gamma, grad_beta = (torch.empty_like(q) for q in (call.weight, call.gamma, call.beta))
        addresses = _pointers(grad, mean, var, grad_h, grad_x, grad_weight, grad_gamma, grad_beta)
        run_backward(*_layer(call), *addresses)
        to_x = given.h.new_empty(0) if grad_x is None else _answer(grad_x, given.h, call.h)
        return _answer(grad_h, given.h, call.h), to_x, grad_weight, grad_gamma, grad_beta

    LIBRARY.impl("global_training", forward, "CPU")
    LIBRARY.impl("global_training_backward", backward, "CPU")
