"""The native twins of the operators: they pack pointers, sizes and numbers and call `cpu.cpp`.

What a kernel does not take (another type, size or boundary) goes operator by operator, with the same result.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.global_layer import norm, op, training
from pdecnn.kernels.global_layer.arguments import Steps, layout
from pdecnn.kernels.global_layer.norm import Norms
from pdecnn.kernels.library import ACTIVATIONS, BOUNDARIES, LIBRARY
from pdecnn.kernels.native import Library
from pdecnn.reference.advection_diffusion import MAX_STEPS

SIDES = (1, 3, 5)  # of the stencils that are compiled for inference
SHAPES = ((1, 1), (3, 2), (3, 4), (5, 2), (5, 4))  # in training: their sides and numbers
_NOT_COVERED = 3  # what a kernel answers to a size that it was not compiled for


def register(library: Library) -> None:
    """Makes the native kernels the implementation on the CPU."""
    run = library.function("pdecnn_global_layer")
    run_norm, run_norm_backward = (library.function(f"pdecnn_depthwise_norm_{way}") for way in ("forward", "backward"))
    run_steps, run_steps_backward = (
        library.function(f"pdecnn_global_training_{way}") for way in ("forward", "backward")
    )

    def global_layer(
        h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, *options: Any
    ) -> Tensor:
        steps, residual, output_act = Steps(*options[:-2]), *options[-2:]
        if not _is_covered(h, x, weight, bias, scale, shift, steps, output_act):
            return op.default(h, x, weight, bias, scale, shift, *options)
        order = layout(h)
        ordered = h.contiguous(memory_format=order)
        other = ordered if x is h else x.contiguous(memory_format=order)
        out = torch.empty_like(ordered)
        run(
            *h.shape,
            steps.K,
            BOUNDARIES[steps.boundary],
            len(weight),
            weight.shape[-1],
            steps.previous_is_input,
            steps.has_source,
            residual,
            ACTIVATIONS[steps.coefficient_act],
            ACTIVATIONS[output_act],
            steps.flow_sign,
            steps.dt,
            steps.dx,
            steps.dy,
            steps.D_x,
            steps.D_y,
            ordered.data_ptr(),
            *ordered.stride(),
            other.data_ptr(),
            *other.stride(),
            out.data_ptr(),
            *out.stride(),
            *_pointers(weight, bias, scale, shift),
        )
        return out

    def depthwise_norm(*arguments: Any) -> norm.Maps:
        given = Norms(*arguments)
        if not _fits(given):
            return norm.forward_default(*given)
        call = _ordered(given)
        maps = [torch.empty_like(call.h) for _ in call.gamma]
        mean, var = torch.empty_like(call.gamma), torch.empty_like(call.gamma)
        run_norm(*_problem(call), *_four(maps), *_pointers(mean, var))
        return maps, mean, var

    def depthwise_norm_backward(grads: Sequence[Tensor], mean: Tensor, var: Tensor, *arguments: Any) -> norm.Gradients:
        given = Norms(*arguments)
        if not _fits(given, *grads):
            return norm.backward_default(grads, mean, var, *given)
        call = _ordered(given)
        grads = [g.contiguous(memory_format=layout(given.h)) for g in grads]
        mean, var = mean.contiguous(), var.contiguous()
        results = (torch.empty_like(call.h), *_like(call))
        grad_h, grad_weight, *_ = results
        run_norm_backward(*_problem(call), *_four(grads), *_pointers(mean, var, *results))
        return grad_h, call.h.new_empty(0) if grad_weight is None else grad_weight, results[2], results[3]

    def global_training(*arguments: Any) -> training.Result:
        given = training.Arguments.of(*arguments)
        if not _trains(given):
            return training.forward_default(*arguments)
        norms, x = _ordered(given.norms), _input(given)
        out, mean, var = torch.empty_like(norms.h), torch.empty_like(norms.gamma), torch.empty_like(norms.gamma)
        status = run_steps.status(*_layer(norms, x, given.steps), *_pointers(out, mean, var))
        return (out, mean, var) if _done(status) else training.forward_default(*arguments)

    def global_training_backward(grad: Tensor, mean: Tensor, var: Tensor, *arguments: Any) -> training.Gradients:
        given = training.Arguments.of(*arguments)
        unused = given.x is not None and not (given.steps.has_source or given.steps.previous_is_input)
        if unused or not _trains(given, grad):
            return training.backward_default(grad, mean, var, *arguments)
        norms, x = _ordered(given.norms), _input(given)
        grad, mean, var = grad.contiguous(memory_format=layout(given.h)), mean.contiguous(), var.contiguous()
        grad_h, grad_x = torch.empty_like(norms.h), None if x is None else torch.empty_like(norms.h)
        results = _like(norms)
        status = run_steps_backward.status(
            *_layer(norms, x, given.steps), *_pointers(grad, mean, var, grad_h, grad_x, *results)
        )
        if not _done(status):
            return training.backward_default(grad, mean, var, *arguments)
        grad_weight, grad_gamma, grad_beta = results
        assert grad_weight is not None
        return grad_h, norms.h.new_empty(0) if grad_x is None else grad_x, grad_weight, grad_gamma, grad_beta

    for function in (global_layer, depthwise_norm, depthwise_norm_backward, global_training, global_training_backward):
        LIBRARY.impl(function.__name__, function, "CPU")


def _is_covered(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, steps: Steps, output_act: str
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


def _trains(call: training.Arguments, *others: Tensor) -> bool:
    """Whether the kernels may take a layer in training; of its size they decide themselves."""
    call.check()
    is_periodic = call.steps.boundary == "periodic"
    return is_periodic and all(q.dtype == torch.float32 and q.shape == call.h.shape for q in (call.h, *others))


def _done(status: int) -> bool:
    """False if the kernel was not compiled for these sizes."""
    if status not in (0, _NOT_COVERED):
        raise RuntimeError("global_training: the native kernel failed: out of memory or threads.")
    return status == 0


def _ordered(norms: Norms) -> Norms:
    """The same with tensors as the kernels take them; they must outlive the call."""
    weight, bias = (None if q is None else q.contiguous() for q in (norms.weight, norms.bias))
    h = norms.h.contiguous(memory_format=layout(norms.h))
    return Norms(h, weight, bias, norms.gamma.contiguous(), norms.beta.contiguous(), norms.eps, norms.act)


def _input(call: training.Arguments) -> Tensor | None:
    return None if call.x is None else call.x.contiguous(memory_format=layout(call.h))


def _like(norms: Norms) -> tuple[Tensor | None, Tensor, Tensor]:
    """Empty gradients of weight, gamma and beta."""
    weight = None if norms.weight is None else torch.empty_like(norms.weight)
    return weight, torch.empty_like(norms.gamma), torch.empty_like(norms.beta)


def _problem(norms: Norms) -> tuple[int | float, ...]:
    """The fields of `depthwise_norm::Problem`."""
    N, C, H, W = norms.h.shape
    # without stencils a plane is one long row
    size = (1, H * W, 1, 1) if norms.weight is None else (H, W, len(norms.weight), norms.weight.shape[-1])
    interleaved = layout(norms.h) == torch.channels_last
    four_eps = [*norms.eps, 1.0, 1.0, 1.0, 1.0][:4]
    addresses = _pointers(norms.h, norms.weight, norms.bias, norms.gamma, norms.beta)
    return (N, C, *size, interleaved, ACTIVATIONS[norms.act], *four_eps, *addresses)


def _layer(norms: Norms, x: Tensor | None, steps: Steps) -> tuple[int | float, ...]:
    """The fields of `global_training::Layer`."""
    roles = (steps.has_source, steps.previous_is_input and x is not None)
    return (*_problem(norms), steps.K, *steps.numbers, *_pointers(x), *roles)


def _pointers(*tensors: Tensor | None) -> list[int]:
    return [0 if q is None else q.data_ptr() for q in tensors]


def _four(tensors: Sequence[Tensor]) -> list[int]:
    return [*_pointers(*tensors), 0, 0, 0, 0][:4]
