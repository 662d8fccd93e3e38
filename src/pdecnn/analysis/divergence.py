"""Finding where a network diverges: the first module whose output or gradient is not finite."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class DivergenceError(FloatingPointError):
    """A module produced NaN or infinity; `module` is its name."""

    def __init__(self, module: str, message: str) -> None:
        super().__init__(message)
        self.module = module


@contextmanager
def first_divergence(model: nn.Module, *, gradients: bool = True) -> Iterator[None]:
    """Within the block, raises a `DivergenceError` at the first module whose output or gradient is not finite.

    Networks whose nonlinearity is a product, such as the hyperbolic ones, can grow without bound; the loss says only
    that it happened. A parameter that is not finite is named at once. Costs one reduction for each module and pass.

    Args:
        model: The network to watch.
        gradients: Whether gradients with respect to outputs are watched too.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> with first_divergence(model):
        ...     model(torch.tensor([[float("inf"), 0.0]]))
        Traceback (most recent call last):
        pdecnn.analysis.divergence.DivergenceError: first_divergence: the input of '0' (Linear) is not finite: ...
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise DivergenceError(name, f"first_divergence: the parameter '{name}' is not finite: {_count(parameter)}.")
    handles = []
    for name, module in model.named_modules():
        if next(module.children(), None) is None:
            handles.append(module.register_forward_hook(_forward_hook(name)))
            if gradients:
                handles.append(module.register_full_backward_hook(_backward_hook(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _forward_hook(name: str) -> Any:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        for tensor in _tensors(output):
            if not tensor.isfinite().all():
                label = f"'{name or 'the model'}' ({type(module).__name__})"
                given = list(_tensors(inputs))
                for q in given:
                    if not q.isfinite().all():
                        raise DivergenceError(
                            name,
                            f"first_divergence: the input of {label} is not finite: {_count(q)}. Every module before "
                            "it was finite: look at what is computed between modules, such as a product of branches.",
                        )
                largest = max((q.abs().max().item() for q in given if q.numel()), default=0.0)
                raise DivergenceError(
                    name,
                    f"first_divergence: {label} is the first whose output is not finite: {_count(tensor)}; the largest "
                    f"input was {largest:.3g}. Lower the learning rate, or bound the stream with hardball or softball.",
                )

    return hook


def _backward_hook(name: str) -> Any:
    def hook(module: nn.Module, grad_inputs: Any, grad_outputs: Any) -> None:
        arrived = all(q.isfinite().all() for q in _tensors(grad_outputs))
        for tensor in _tensors(grad_inputs):
            if arrived and not tensor.isfinite().all():
                label = f"'{name or 'the model'}' ({type(module).__name__})"
                message = f"first_divergence: {label} is the first whose gradient is not finite: {_count(tensor)}."
                raise DivergenceError(name, message)

    return hook


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _count(q: Tensor) -> str:
    return f"{int(torch.isnan(q).sum())} NaN and {int(torch.isinf(q).sum())} infinite of {q.numel()} numbers"
