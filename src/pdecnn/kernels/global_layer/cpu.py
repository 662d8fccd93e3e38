"""The native twins of the operators: they pack pointers, sizes and numbers and call `cpu.cpp`.

What a kernel does not take (another type, size or boundary) goes operator by operator, with the same result.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.global_layer import norm, op, training
from pdecnn.kernels.global_layer.arguments import SIDES, Steps
from pdecnn.kernels.global_layer.norm import Norms
from pdecnn.kernels.library import ACTIVATIONS, BOUNDARIES, LIBRARY, in_order, layout
from pdecnn.kernels.native import Library
from pdecnn.reference.advection_diffusion import MAX_STEPS

SHAPES = ((1, 1), (3, 2), (3, 4), (5, 2), (5, 4))  # in training: their sides and numbers
_NOT_COVERED = 3  # what a kernel answers to a size that it was not compiled for


def register(library: Library) -> None:
    """Makes the native kernels the implementation on the CPU."""
    run = library.function("pdecnn_global_layer")
    run_norm = library.function("pdecnn_depthwise_norm_forward")
    run_norm_backward = library.function("pdecnn_depthwise_norm_backward")
    run_steps = library.function("pdecnn_global_training_forward")
    run_steps_backward = library.function("pdecnn_global_training_backward")

    def global_layer(
        h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor,
        residual: bool, output_act: str, *options: Any,
    ) -> Tensor:  # fmt: skip
        steps = Steps(*options)
        if not _is_covered(h, x, weight, bias, scale, shift, output_act, steps):
            return op.default(h, x, weight, bias, scale, shift, residual, output_act, *options)
        order = layout(h)
        ordered, other = h.contiguous(memory_format=order), x.contiguous(memory_format=order)
        out = torch.empty_like(ordered)
        # the fields of `Problem` written out, for this counts at batch 1; eps, gamma and beta are not read
        sizes = (*h.shape, len(weight), weight.shape[-1], order is torch.channels_last)
        parameters = (ordered.data_ptr(), weight.data_ptr(), bias.data_ptr(), 0, 0)
        made = (*sizes, ACTIVATIONS[steps.coefficient_act], 0.0, 0.0, 0.0, 0.0, *parameters)
        finish = (BOUNDARIES[steps.boundary], residual, ACTIVATIONS[output_act])
        places = (scale.data_ptr(), shift.data_ptr(), out.data_ptr())
        run(*made, *_steps(steps, None if x is h else other), *finish, *places)
        return out

    def depthwise_norm(*arguments: Any) -> norm.Maps:
        norms = Norms(*arguments)
        if not _fits(norms):
            return norm.forward_default(*arguments)
        norms = _ordered(norms)
        maps, statistics = [torch.empty_like(norms.h) for _ in norms.eps], norms.statistics()
        run_norm(*_problem(norms), *_four(maps), *_pointers(*statistics))
        return maps, *statistics

    def depthwise_norm_backward(grads: Sequence[Tensor], mean: Tensor, var: Tensor, *arguments: Any) -> norm.Gradients:
        norms = Norms(*arguments)
        if not _fits(norms, *grads):
            return norm.backward_default(grads, mean, var, *arguments)
        given, norms = [in_order(g, norms.h) for g in grads], _ordered(norms)
        mean, var, results = mean.contiguous(), var.contiguous(), norms.room()
        run_norm_backward(*_problem(norms), *_four(given), *_pointers(mean, var, *results))
        return results

    def global_training(*arguments: Any) -> training.Result:
        layer = training.Layer.of(*arguments)
        if _trains(layer):
            x, norms, steps = _ordered_layer(layer)
            results = (torch.empty_like(norms.h), *norms.statistics())
            if _done(run_steps.status(*_problem(norms), *_steps(steps, x), *_pointers(*results))):
                return results
        return training.forward_default(*arguments)

    def global_training_backward(grad: Tensor, mean: Tensor, var: Tensor, *arguments: Any) -> training.Gradients:
        layer = training.Layer.of(*arguments)
        unused = layer.x is not None and not (layer.steps.has_source or layer.steps.previous_is_input)
        if not unused and _trains(layer, grad):
            x, norms, steps = _ordered_layer(layer)
            given = (in_order(grad, layer.norms.h), mean.contiguous(), var.contiguous())
            results = training.Layer(x, norms, steps).room()
            fields = (*_problem(norms), *_steps(steps, x), *_pointers(*given), *_pointers(*results))
            if _done(run_steps_backward.status(*fields)):
                return results
        return training.backward_default(grad, mean, var, *arguments)

    for function in (global_layer, depthwise_norm, depthwise_norm_backward, global_training, global_training_backward):
        LIBRARY.impl(function.__name__, function, "CPU")


def _is_covered(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, output_act: str, steps: Steps
) -> bool:
    """Whether the kernel takes these arguments; it must not be called with others.

    Written out, for at batch 1 a generator over six tensors costs as much as a small layer.
    """
    f32 = torch.float32
    if h.dim() != 4 or weight.dim() != 4:
        return False
    (_, C, H, W), (M, channels, k, columns) = h.shape, weight.shape
    return (
        (h.dtype is f32 and x.dtype is f32 and weight.dtype is f32)
        and (bias.dtype is f32 and scale.dtype is f32 and shift.dtype is f32)
        and (x is h or x.shape == h.shape)
        and (channels == C and k == columns and k in SIDES and M in (2, 4) and H > 0 and W > 0)
        and (bias.shape == (M, C) and scale.shape == shift.shape == (C,))
        and (weight.is_contiguous() and bias.is_contiguous() and scale.is_contiguous() and shift.is_contiguous())
        and 1 <= steps.K <= MAX_STEPS
        and (steps.dt > 0 and steps.dx > 0 and steps.dy > 0)
        and (M == 4 or (steps.D_x >= 0 and steps.D_y >= 0))
        and steps.flow_sign in (1, -1)
        and steps.boundary in BOUNDARIES
        and (steps.coefficient_act in ACTIVATIONS and output_act in ACTIVATIONS)
        and h.device == x.device == weight.device
    )


def _fits(norms: Norms, *others: Tensor) -> bool:
    """Whether the kernels take these norms: single precision, sizes that are compiled, a clamp as activation."""
    norms.check()
    shape = (1, 1) if norms.weight is None else (norms.weight.shape[-1], len(norms.weight))
    return (
        shape in SHAPES
        and norms.act != "tanh"
        and all(q.dtype == torch.float32 for q in (norms.h, *others))
        and all(g.shape == norms.h.shape for g in others)
    )


def _trains(layer: training.Layer, *others: Tensor) -> bool:
    """Whether the kernels may take a layer in training; of its size they decide themselves."""
    layer.check()
    h = layer.norms.h
    is_periodic = layer.steps.boundary == "periodic"
    return is_periodic and all(q.dtype == torch.float32 and q.shape == h.shape for q in (h, *others))


def _done(status: int) -> bool:
    """False if the kernel was not compiled for these sizes."""
    if status not in (0, _NOT_COVERED):
        raise RuntimeError("global_training: the native kernel failed: out of memory or threads.")
    return status == 0


def _ordered(norms: Norms) -> Norms:
    """The same with tensors as the kernels take them; they must outlive the call."""
    weight, bias = (None if q is None else q.contiguous() for q in (norms.weight, norms.bias))
    h = in_order(norms.h, norms.h)
    return Norms(h, weight, bias, norms.gamma.contiguous(), norms.beta.contiguous(), norms.eps, norms.act)


def _ordered_layer(layer: training.Layer) -> training.Layer:
    x = None if layer.x is None else in_order(layer.x, layer.norms.h)
    return training.Layer(x, _ordered(layer.norms), layer.steps)


def _problem(norms: Norms) -> tuple[int | float, ...]:
    """The fields of `depthwise_norm::Problem`."""
    N, C, H, W = norms.h.shape
    # without stencils a plane is one long row
    size = (1, H * W, 1, 1) if norms.weight is None else (H, W, len(norms.weight), norms.weight.shape[-1])
    interleaved = layout(norms.h) == torch.channels_last
    four_eps = [*norms.eps, 1.0, 1.0, 1.0, 1.0][:4]
    addresses = _pointers(norms.h, norms.weight, norms.bias, norms.gamma, norms.beta)
    return (N, C, *size, interleaved, ACTIVATIONS[norms.act], *four_eps, *addresses)


def _steps(steps: Steps, x: Tensor | None) -> tuple[int | float, ...]:
    """The fields of `global_training::Layer` after the problem; x and y against the index are negative."""
    D_x, D_y, K, dt, dx, dy, _, sign, has_source, previous_is_input, _ = steps
    roles = (0, has_source, False) if x is None else (x.data_ptr(), has_source, previous_is_input)
    return (K, dt, sign * dx, sign * dy, D_x, D_y, *roles)


def _pointers(*tensors: Tensor | None) -> list[int]:
    return [0 if q is None else q.data_ptr() for q in tensors]


def _four(tensors: Sequence[Tensor]) -> list[int]:
    return [*_pointers(*tensors), 0, 0, 0, 0][:4]
