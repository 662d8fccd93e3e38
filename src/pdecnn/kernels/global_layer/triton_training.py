"""`pdecnn::global_training` for CUDA, in Triton: a Global layer in training mode, up to its output norm.

Forward is two launches: the moments of the stencils on each plane and, with the norms folded into the stencils, the
kernel of inference. Backward is two more: the adjoint of the steps, which leaves the gradients of the coefficients, and
the norms' gradient through the stencils. In between torch adds up a few numbers per plane, in double. Limits are those
of `triton.py`; all else goes operator by operator.
"""

from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.advection_diffusion import triton as solver
from pdecnn.kernels.global_layer import training, triton
from pdecnn.kernels.global_layer.arguments import SIDES
from pdecnn.kernels.global_layer.norm import Norms
from pdecnn.kernels.global_layer.training import Layer
from pdecnn.kernels.global_layer.triton_training_kernels import adjoint_kernel, moments_kernel, turned_kernel
from pdecnn.kernels.library import ACTIVATIONS, BOUNDARIES, in_order


def forward(*arguments: Any) -> training.Result:
    """The state and the statistics of the norms."""
    layer = Layer.of(*arguments)
    layer.check()
    if not _fits(layer):
        return training.forward_default(*arguments)
    x, norms, steps = layer
    mean, var = _statistics(norms)
    _, _, folded, shift = _fold(norms, mean, var)
    one, zero = norms.h.new_ones(norms.h.shape[1]), norms.h.new_zeros(norms.h.shape[1])
    x = norms.h if x is None else x
    return triton.global_layer(norms.h, x, folded, shift, one, zero, False, "identity", *steps), mean, var


def backward(grad: Tensor, mean: Tensor, var: Tensor, *arguments: Any) -> training.Gradients:
    """The gradients of h, x, weight, gamma and beta, in the memory format of `h`."""
    layer = Layer.of(*arguments)
    layer.check()
    if not _fits(layer, grad):
        return training.backward_default(grad, mean, var, *arguments)
    x, norms, _ = layer
    h, weight = norms.h.contiguous(), norms.weight
    assert weight is not None
    start, rate, folded, shift = _fold(norms, mean, var)
    to_h, to_x, grad_maps, sums = _adjoint(layer, grad, folded, shift, start)
    s, r = sums.sum(2).float()
    r = r * rate
    a = norms.gamma * rate
    c = a * (-h.shape[1] / h.numel())
    grad_taps = h.new_empty(len(weight), *h.shape[:2], *weight.shape[2:], dtype=torch.float64)
    maps = (to_h, grad_taps, grad_maps, h, weight, start, a, c * rate * r, c * s)
    _launch(turned_kernel, h, len(weight), maps, (), MAPS=len(weight), SIDE=weight.shape[-1])
    if x is None:
        to_h, grad_x = sum(to_x, to_h), h.new_empty(0)
    else:
        grad_x = in_order(sum(to_x[1:], to_x[0]) if to_x else torch.zeros_like(h), norms.h)
    return in_order(to_h, norms.h), grad_x, grad_taps.sum(1).float(), r, s


def _adjoint(
    layer: Layer, grad: Tensor, folded: Tensor, shift: Tensor, start: Tensor
) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
    """The steps' gradients of the state, and of the input in each of its roles; those of the maps, and their sums."""
    x, norms, steps = layer
    h, weight = norms.h.contiguous(), norms.weight
    assert weight is not None
    grad_maps = h.new_empty(len(weight), *h.shape)
    sums = h.new_empty(2, len(weight), *h.shape[:2], dtype=torch.float64)
    has_h_prev = x is not None and steps.previous_is_input
    to_h = torch.empty_like(h)
    to_previous, to_f = (torch.empty_like(h) if q else h.new_empty(0) for q in (has_h_prev, steps.has_source))
    block_h, block_w, _ = solver._tiling(*h.shape[2:])
    # x and y against the index are negative distances
    dt, dx, dy = steps.dt, steps.flow_sign * steps.dx, steps.flow_sign * steps.dy
    _launch(
        adjoint_kernel, h, 2 * (steps.K + 2) + 4,
        (grad, to_h, to_previous, to_f, grad_maps, sums, h, h if x is None else x, folded, shift, weight, start),
        (steps.K, steps.D_x, steps.D_y, dt, dt / dx, dt / dy, dt / dx**2, dt / dy**2),
        MAPS=len(weight), SIDE=weight.shape[-1], ACT=ACTIVATIONS[norms.act], BOUNDARY=BOUNDARIES[steps.boundary],
        HAS_F=steps.has_source, HAS_H_PREV=has_h_prev, ONE_TILE=block_h >= h.shape[2] and block_w >= h.shape[3],
    )  # fmt: skip
    return to_h, [q for q in (to_previous, to_f) if q.shape == h.shape], grad_maps, sums


def _fits(layer: Layer, *others: Tensor) -> bool:
    """Whether the kernels take a layer: single precision and stencils of a side that they are written for."""
    h, weight = layer.norms.h, layer.norms.weight
    return (
        weight is not None
        and weight.shape[-1] in SIDES
        and all(q.dtype == torch.float32 and q.shape == h.shape for q in (h, *others))
    )


def _statistics(norms: Norms) -> tuple[Tensor, Tensor]:
    """Mean and variance of what the norms get, from those of every plane: no difference of large numbers."""
    h, weight = norms.h.contiguous(), norms.weight
    assert weight is not None
    moments = h.new_empty(2, len(weight), *h.shape[:2], dtype=torch.float64)
    _launch(moments_kernel, h, 0, (moments, h, weight), (), MAPS=len(weight), SIDE=weight.shape[-1])
    means, squares = moments  # (maps, N, C)
    var, mean = torch.var_mean(means, 1, correction=0)
    var = var.add(squares.mean(1), alpha=1 / h[0, 0].numel())
    return (mean if norms.bias is None else mean + norms.bias).float(), var.float()


def _fold(norms: Norms, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`start, rate, folded, shift`: of mean zero is `q = stencil + start`, of variance one `rate q`.

    The norm's result is `gamma rate q + beta`, or the stencil of the folded taps plus `shift`.
    """
    assert norms.weight is not None
    start = -mean if norms.bias is None else norms.bias - mean
    # not a tensor of eps: to bring one to the device would wait for it
    eps = norms.eps
    wider = var + eps[0] if len(set(eps)) == 1 else torch.stack([v + e for v, e in zip(var, eps, strict=True)])
    rate = wider.rsqrt()
    a = norms.gamma * rate
    return start, rate, norms.weight * a[:, :, None, None], torch.addcmul(norms.beta, a, start)


def _launch(
    kernel: Any, h: Tensor, planes: int, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], **constants: Any
) -> None:
    """Runs a kernel on the planes of h, with so many planes of scratch per program; results are contiguous as given."""
    N, C, H, W = h.shape
    block_h, block_w, num_warps = solver._tiling(H, W)
    programs = solver._programs(h, num_warps, max(1, planes * H * W * 4))
    scratch = (h.new_empty(programs * planes * H * W),) if planes else ()
    with torch.cuda.device_of(h):  # type: ignore[no-untyped-call]
        kernel[(programs,)](
            *(q.contiguous() for q in tensors), *scratch, N * C, C, H, W, *numbers,
            BLOCK_H=block_h, BLOCK_W=block_w, num_warps=num_warps, **constants, **solver.OPTIONS,
        )  # fmt: skip
