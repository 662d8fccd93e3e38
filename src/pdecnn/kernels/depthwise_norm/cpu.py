"""The native twin of `pdecnn::depthwise_norm`: packs pointers, sizes and limits and calls `cpu.cpp`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion.op import LIBRARY
from pdecnn.kernels.depthwise_norm.op import LIMITS, Gradients, Maps, _backward_reference, _forward_reference
from pdecnn.kernels.native import Library

SHAPES = ((1, 1), (3, 2), (3, 4), (5, 2), (5, 4))  # sides of the stencils and numbers of maps that are compiled


def covered(h: Tensor, weight: Tensor | None, *others: Tensor | None) -> bool:
    """Whether the kernel takes these arguments: single precision and sizes that are compiled."""
    given = [q for q in (h, weight, *others) if q is not None]
    return (
        all(q.dtype == torch.float32 for q in given)
        and h.numel() > 0
        and (weight is None or (weight.shape[-1], len(weight)) in SHAPES)
    )


def _layout(h: Tensor) -> torch.memory_format:
    """The order of all maps: that of `h`, or planes one after another where `h` has neither."""
    interleaved = not h.is_contiguous() and h.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if interleaved else torch.contiguous_format


def _in_order(q: Tensor, layout: torch.memory_format) -> Tensor:
    return q.contiguous(memory_format=layout)


def _pointers(*tensors: Tensor | None) -> list[int]:
    return [0 if q is None else q.data_ptr() for q in tensors]


def _four(tensors: Sequence[Tensor]) -> list[int]:
    return [*_pointers(*tensors), 0, 0, 0, 0][:4]


def _problem(
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: Sequence[float],
    act: str,
) -> tuple[int | float, ...]:
    N, C, H, W = h.shape
    # without stencils a plane is one long row
    size = (1, H * W, 1, 1) if weight is None else (H, W, len(weight), weight.shape[-1])
    interleaved = _layout(h) == torch.channels_last
    four_eps = [*eps, 1.0, 1.0, 1.0, 1.0][:4]
    return (N, C, *size, interleaved, *LIMITS[act], *four_eps, *_pointers(h, weight, bias, gamma, beta))


def register(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU; what it does not cover goes to the reference."""
    run_forward = library.function("pdecnn_depthwise_norm_forward")
    run_backward = library.function("pdecnn_depthwise_norm_backward")

    def forward(
        h: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        gamma: Tensor,
        beta: Tensor,
        eps: Sequence[float],
        act: str,
    ) -> Maps:
        if not covered(h, weight, bias, gamma, beta):
            return _forward_reference(h, weight, bias, gamma, beta, eps, act)
        layout = _layout(h)
        ordered = _in_order(h, layout)
        weight, bias = (None if q is None else q.contiguous() for q in (weight, bias))
        gamma, beta = gamma.contiguous(), beta.contiguous()
        maps = [torch.empty_like(ordered) for _ in range(len(gamma))]
        mean, var = torch.empty_like(gamma), torch.empty_like(gamma)
        problem = _problem(ordered, weight, bias, gamma, beta, eps, act)
        run_forward(*problem, *_four(maps), *_pointers(mean, var))
        if ordered is not h:  # as every kernel answers, in the memory format of h
            maps = [torch.empty_like(h).copy_(q) for q in maps]
        return maps, mean, var

    def backward(
        grads: Sequence[Tensor],
        mean: Tensor,
        var: Tensor,
        h: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        gamma: Tensor,
        beta: Tensor,
        eps: Sequence[float],
        act: str,
    ) -> Gradients:
        if not covered(h, weight, bias, gamma, beta, *grads):
            return _backward_reference(grads, mean, var, h, weight, bias, gamma, beta, eps, act)
        layout = _layout(h)
        ordered = _in_order(h, layout)
        grads = [_in_order(g, layout) for g in grads]
        weight, bias = (None if q is None else q.contiguous() for q in (weight, bias))
        gamma, beta, mean, var = (q.contiguous() for q in (gamma, beta, mean, var))
        grad_h, grad_gamma, grad_beta = torch.empty_like(ordered), torch.empty_like(gamma), torch.empty_like(beta)
        grad_weight = h.new_empty(0) if weight is None else torch.empty_like(weight)
        problem = _problem(ordered, weight, bias, gamma, beta, eps, act)
        results = (grad_h, None if weight is None else grad_weight, grad_gamma, grad_beta)
        run_backward(*problem, *_four(grads), *_pointers(mean, var), *_pointers(*results))
        if ordered is not h:
            grad_h = torch.empty_like(h).copy_(grad_h)
        return grad_h, grad_weight, grad_gamma, grad_beta

    LIBRARY.impl("depthwise_norm", forward, "CPU")
    LIBRARY.impl("depthwise_norm_backward", backward, "CPU")
