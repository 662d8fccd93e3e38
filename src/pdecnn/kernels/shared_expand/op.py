"""`pdecnn::shared_expand` and what is fused with it: schemas, references, fakes, autograd and flop formulas.

The expansion `d = D u` to f times the channels is an intermediate that none of the fused operators stores: they compute
it again from `u` in the backward pass, where it is cheaper than reading it from memory.

With `g` the gradient of the result, the gradient of `d` is

- `g` for the expansion,
- `g_mean / M + 2 g_var (d - mean) / M` for the moments over M pixels: an affine function of `d`,
- `g c scale` for the product `c (scale d + shift)`,

and from it follow `grad_u` by the transposed stencils and `grad_stencils` by correlation with `u`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input
from torch.utils.flop_counter import register_flop_formula

from pdecnn.kernels.library import LIBRARY, TAGS, refuse_second_derivative
from pdecnn.reference import shared_stencils as reference
from pdecnn.reference.shared_stencils import check_expand, check_product

_PRODUCT = "Tensor u, Tensor stencils, Tensor scale, Tensor shift, Tensor c, int stride"
SCHEMAS = (
    "shared_expand(Tensor u, Tensor stencils, int stride) -> Tensor",
    "shared_expand_backward(Tensor grad, Tensor u, Tensor stencils, int stride) -> (Tensor, Tensor)",
    "shared_expand_moments(Tensor u, Tensor stencils, int stride) -> (Tensor, Tensor)",
    "shared_expand_affine_backward(Tensor slope, Tensor offset, Tensor u, Tensor stencils, int stride) "
    "-> (Tensor, Tensor)",
    f"shared_expand_product({_PRODUCT}) -> Tensor",
    f"shared_expand_product_backward(Tensor grad, {_PRODUCT}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
for _schema in SCHEMAS:
    LIBRARY.define(_schema, tags=TAGS)

output_shape = reference.expanded_shape


def expand_reference(u: Tensor, stencils: Tensor, stride: int) -> Tensor:
    """`D u`."""
    return reference.shared_expand(u, stencils, stride).contiguous()


def expand_backward_reference(grad: Tensor, u: Tensor, stencils: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """The gradients of `u` and of the stencils, for the gradient of `D u`."""
    check_gradient(grad, u, stencils, stride)
    C, f = u.shape[1], len(stencils)
    weight = stencils.repeat(C, 1, 1, 1)
    grad_u: Tensor = conv2d_input(u.shape, weight, grad, stride, 1, groups=C)
    padded = torch.nn.functional.pad(u, (1, 1, 1, 1))
    grad = grad.reshape(grad.shape[0], C, f, *grad.shape[2:])
    Ho, Wo = grad.shape[3:]
    taps = [
        torch.einsum("ncfyx,ncyx->f", grad, padded[:, :, i : i + stride * Ho : stride, j : j + stride * Wo : stride])
        for i in range(3)
        for j in range(3)
    ]
    return grad_u.contiguous(), torch.stack(taps, 1).view(f, 1, 3, 3)


def moments_reference(u: Tensor, stencils: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel of `D u`."""
    return reference.shared_expand_moments(u, stencils, stride)


def affine_backward_reference(
    slope: Tensor, offset: Tensor, u: Tensor, stencils: Tensor, stride: int
) -> tuple[Tensor, Tensor]:
    """The gradients of `u` and of the stencils, if that of `d = D u` is `slope d + offset`."""
    check_affine(slope, offset, u, stencils, stride)
    d = expand_reference(u, stencils, stride)
    return expand_backward_reference(d * _channels(slope) + _channels(offset), u, stencils, stride)


def product_reference(u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int) -> Tensor:
    """`c (scale D u + shift)`."""
    return reference.shared_expand_product(u, stencils, scale, shift, c, stride).contiguous()


def product_backward_reference(
    grad: Tensor, u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of `u`, stencils, scale, shift and c."""
    check_product(u, stencils, scale, shift, c, stride)
    check_gradient(grad, u, stencils, stride)
    d, gc = expand_reference(u, stencils, stride), grad * c
    grad_u, grad_stencils = expand_backward_reference(gc * _channels(scale), u, stencils, stride)
    grad_c = grad * (d * _channels(scale) + _channels(shift))
    return grad_u, grad_stencils, (gc * d).sum((0, 2, 3)), gc.sum((0, 2, 3)), grad_c.contiguous()


def check_gradient(grad: Tensor, u: Tensor, stencils: Tensor, stride: int) -> None:
    """Raises unless `grad` is that of an expansion of `u`."""
    check_expand("shared_expand_backward", u, stencils, stride)
    expected = output_shape(u, stencils, stride)
    if tuple(grad.shape) != expected or grad.dtype != u.dtype:
        raise ValueError(
            f"shared_expand_backward: expected a gradient {u.dtype} {expected}, got {grad.dtype} {tuple(grad.shape)}."
        )


def check_affine(slope: Tensor, offset: Tensor, u: Tensor, stencils: Tensor, stride: int) -> None:
    """Raises unless `slope` and `offset` have a number for each channel of the expansion of `u`."""
    check_expand("shared_expand_affine_backward", u, stencils, stride)
    expected = (u.shape[1] * stencils.shape[0],)
    for name, q in (("slope", slope), ("offset", offset)):
        if tuple(q.shape) != expected or q.dtype != u.dtype:
            raise ValueError(
                f"shared_expand_affine_backward: expected {name} {u.dtype} {expected}, got {q.dtype} {tuple(q.shape)}."
            )


def _channels(q: Tensor) -> Tensor:
    return q.view(1, -1, 1, 1)


REFERENCES: dict[str, Callable[..., Any]] = {
    "shared_expand": expand_reference,
    "shared_expand_backward": expand_backward_reference,
    "shared_expand_moments": moments_reference,
    "shared_expand_affine_backward": affine_backward_reference,
    "shared_expand_product": product_reference,
    "shared_expand_product_backward": product_backward_reference,
}
for _name, _reference in REFERENCES.items():
    LIBRARY.impl(_name, _reference, "CompositeExplicitAutograd")


def _empty_channels(u: Tensor, stencils: Tensor) -> Tensor:
    return u.new_empty(u.shape[1] * stencils.shape[0])


@torch.library.register_fake("pdecnn::shared_expand", lib=LIBRARY)
def _expand_fake(u: Tensor, stencils: Tensor, stride: int) -> Tensor:
    return u.new_empty(output_shape(u, stencils, stride))


@torch.library.register_fake("pdecnn::shared_expand_backward", lib=LIBRARY)
def _expand_backward_fake(grad: Tensor, u: Tensor, stencils: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), stencils.new_empty(stencils.shape)


@torch.library.register_fake("pdecnn::shared_expand_moments", lib=LIBRARY)
def _moments_fake(u: Tensor, stencils: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    return _empty_channels(u, stencils), _empty_channels(u, stencils)


@torch.library.register_fake("pdecnn::shared_expand_affine_backward", lib=LIBRARY)
def _affine_backward_fake(slope: Tensor, offset: Tensor, u: Tensor, stencils: Tensor, stride: int) -> Any:
    return u.new_empty(u.shape), stencils.new_empty(stencils.shape)


@torch.library.register_fake("pdecnn::shared_expand_product", lib=LIBRARY)
def _product_fake(u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int) -> Tensor:
    return u.new_empty(output_shape(u, stencils, stride))


@torch.library.register_fake("pdecnn::shared_expand_product_backward", lib=LIBRARY)
def _product_backward_fake(grad: Tensor, u: Tensor, stencils: Tensor, *_: Any) -> Any:
    sums = (_empty_channels(u, stencils), _empty_channels(u, stencils))
    return u.new_empty(u.shape), stencils.new_empty(stencils.shape), *sums, grad.new_empty(grad.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.stride = inputs
    if isinstance(output, tuple):  # the mean is needed by the gradient of the variance
        tensors.append(output[0])
    ctx.save_for_backward(*tensors)


def _expand_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grads = torch.ops.pdecnn.shared_expand_backward(grad, *ctx.saved_tensors, ctx.stride)
    return *grads, None


def _moments_gradient(ctx: Any, grad_mean: Tensor, grad_var: Tensor) -> tuple[Any, ...]:
    u, stencils, mean = ctx.saved_tensors
    N, _, Ho, Wo = output_shape(u, stencils, ctx.stride)
    count = max(1, N * Ho * Wo)  # of an empty batch the sums are empty
    slope = grad_var * (2 / count)
    offset = grad_mean / count - slope * mean
    grads = torch.ops.pdecnn.shared_expand_affine_backward(slope, offset, u, stencils, ctx.stride)
    return *grads, None


def _product_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grads = torch.ops.pdecnn.shared_expand_product_backward(grad, *ctx.saved_tensors, ctx.stride)
    return *grads, None


for _name, _gradient in (
    ("shared_expand", _expand_gradient),
    ("shared_expand_moments", _moments_gradient),
    ("shared_expand_product", _product_gradient),
):
    torch.library.register_autograd(f"pdecnn::{_name}", _gradient, setup_context=_save, lib=LIBRARY)
for _name in ("shared_expand_backward", "shared_expand_affine_backward", "shared_expand_product_backward"):
    _refuse = refuse_second_derivative("shared_expand", "the function of the same name in pdecnn.reference")
    torch.library.register_autograd(f"pdecnn::{_name}", _refuse, lib=LIBRARY)
for _name in ("shared_expand", "shared_expand_moments", "shared_expand_product"):
    for _device in ("cpu", "cuda"):
        torch.library.register_autocast(f"pdecnn::{_name}", _device, torch.float32, lib=LIBRARY)


def macs(u_shape: Any, f: int, stride: int) -> int:
    """Multiply-adds of the expansion: 9 f for each output pixel of a channel."""
    N, C, H, W = (int(size) for size in u_shape)
    return N * C * ((H + stride - 1) // stride) * ((W + stride - 1) // stride) * 9 * f


@register_flop_formula([torch.ops.pdecnn.shared_expand, torch.ops.pdecnn.shared_expand_moments])
def _expand_flops(u: Any, stencils: Any, stride: int, *_: Any, **__: Any) -> int:
    return 2 * macs(u, stencils[0], stride)


@register_flop_formula(torch.ops.pdecnn.shared_expand_product)
def _product_flops(u: Any, stencils: Any, scale: Any, shift: Any, c: Any, stride: int, *_: Any, **__: Any) -> int:
    pixels = macs(u, stencils[0], stride) // 9
    return 2 * (macs(u, stencils[0], stride) + pixels) + pixels


@register_flop_formula([torch.ops.pdecnn.shared_expand_backward])
def _expand_backward_flops(grad: Any, u: Any, stencils: Any, stride: int, *_: Any, **__: Any) -> int:
    return 4 * macs(u, stencils[0], stride)


@register_flop_formula([torch.ops.pdecnn.shared_expand_affine_backward])
def _affine_backward_flops(s: Any, o: Any, u: Any, stencils: Any, stride: int, *_: Any, **__: Any) -> int:
    return 6 * macs(u, stencils[0], stride)


@register_flop_formula([torch.ops.pdecnn.shared_expand_product_backward])
def _product_backward_flops(
    grad: Any, u: Any, stencils: Any, scale: Any, shift: Any, c: Any, stride: int, *_: Any, **__: Any
) -> int:
    return 6 * macs(u, stencils[0], stride)
