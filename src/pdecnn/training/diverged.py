"""Finding where a network diverges: the first parameter, module output or gradient that is not finite."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.shared.modules import listen, tensors_in
from pdecnn.shared.trees import arguments, takes_targets


class DivergedError(RuntimeError):
    """NaN or infinity where a number should be.

    Attributes:
        module: Name of the module or parameter where it came first, if that is known.
        step: The step of training, if there is one.
    """

    def __init__(self, message: str, *, module: str = "", step: int = 0) -> None:
        super().__init__(message)
        self.module, self.step = module, step


def diverged_loss(loss: float, step: int, epoch: int, last: float | None, lr: float, where: str) -> DivergedError:
    """The error for a step whose loss is not finite, or whose weights are not."""
    before = "" if last is None else f" Last finite loss {last:.4g}."
    message = (
        f"train: loss became {loss} at step {step} (epoch {epoch}), lr {lr:.4g}.{before} {where} "
        "Use a smaller optimizer.lr, clip_grad, or --on-nan resume."
    )
    return DivergedError(message, step=step)


def first_bad_module(model: nn.Module, x: Any) -> str:
    """Names the first parameter or, running the model on `x`, the first module output that is not finite.

    The forward pass runs on a copy, so that running statistics of the model stay as they are.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
        >>> _ = net[0].weight.data.fill_(float("inf"))
        >>> first_bad_module(net, torch.ones(1, 1))
        "The parameter '0.weight' is not finite."
        >>> first_bad_module(nn.Sequential(nn.ReLU(), nn.Threshold(0.5, float("nan"))), torch.zeros(1))
        "The module '1' (Threshold) is the first whose output is not finite."
    """
    for name, value in model.named_parameters():
        if _is_bad(value):
            return f"The parameter {name!r} is not finite."
    if any(map(_is_bad, _numbers(x))):
        return "The input images are not finite."
    model = copy.deepcopy(model)
    labels = _labels(model)
    bad: list[str] = []

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not bad and any(map(_is_bad, _numbers(output))):
            bad.append(f"The module {labels[module]} is the first whose output is not finite.")

    if takes_targets(model):
        model.eval()  # in training it would ask for them
    with listen(labels, after=after), torch.no_grad():
        model(*arguments(model, x))
    return bad[0] if bad else "All module outputs are finite: the loss itself overflows."


@contextmanager
def first_divergence(model: nn.Module, *, gradients: bool = True) -> Iterator[None]:
    """Within the block, raises a `DivergedError` at the first module whose output or gradient is not finite.

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
        pdecnn.training.diverged.DivergedError: first_divergence: the input of '0' (Linear) is not finite: ...
    """
    for name, parameter in model.named_parameters():
        if _is_bad(parameter):
            message = f"first_divergence: the parameter '{name}' is not finite: {_count(parameter)}."
            raise DivergedError(message, module=name)
    labels = _labels(model)
    names = {module: name for name, module in model.named_modules()}

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for tensor in filter(_is_bad, _numbers(output)):
            given = _numbers((args, kwargs))
            for q in filter(_is_bad, given):
                raise DivergedError(
                    f"first_divergence: the input of {labels[module]} is not finite: {_count(q)}. Every module before "
                    "it was finite: look at what is computed between modules, such as a product of branches.",
                    module=names[module],
                )
            largest = max((q.abs().max().item() for q in given if q.numel()), default=0.0)
            raise DivergedError(
                f"first_divergence: {labels[module]} is the first whose output is not finite: {_count(tensor)}; the "
                f"largest input was {largest:.3g}. Lower the learning rate, or bound the stream with hardball or "
                "softball.",
                module=names[module],
            )

    def backward(module: nn.Module, grad_inputs: Any, grad_outputs: Any) -> None:
        if any(map(_is_bad, _numbers(grad_outputs))):
            return
        for tensor in filter(_is_bad, _numbers(grad_inputs)):
            message = f"{labels[module]} is the first whose gradient is not finite: {_count(tensor)}."
            raise DivergedError(f"first_divergence: {message}", module=names[module])

    leaves = [module for module in names if next(module.children(), None) is None]
    with listen(leaves, after=after, backward=backward if gradients else None):
        yield


def _labels(model: nn.Module) -> dict[nn.Module, str]:
    return {module: f"{name or 'the model'!r} ({type(module).__name__})" for name, module in model.named_modules()}


def _numbers(tree: Any) -> list[Tensor]:
    return [q for q in tensors_in(tree) if q.is_floating_point()]


def _is_bad(q: Tensor) -> bool:
    return not q.isfinite().all()


def _count(q: Tensor) -> str:
    return f"{int(torch.isnan(q).sum())} NaN and {int(torch.isinf(q).sum())} infinite of {q.numel()} numbers"
