"""Comparing an exported file with the model it came from, on inputs that matter, and saying where they part."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

TOLERANCE = 1e-4  # of the largest output

Runner = Callable[[Sequence[Tensor]], list[Tensor]]


class ExportError(RuntimeError):
    """An exported file that does not compute what the model computes."""


@dataclass(frozen=True)
class Agreement:
    """How well the outputs of a file and of its model agree.

    Attributes:
        max_error: Largest difference, relative to the largest output of the model.
        top1: Share of samples with the same largest output.
        samples: Number of samples compared.
    """

    max_error: float
    top1: float
    samples: int


def as_outputs(result: Any) -> list[Tensor]:
    """The tensors of a model's answer, in order."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        return [q for value in result.values() for q in as_outputs(value)]
    return [q for value in result for q in as_outputs(value)]


def compare(expected: Sequence[Tensor], got: Sequence[Tensor]) -> Agreement:
    """The agreement of two lists of outputs; the first one decides top-1."""
    if [q.shape for q in expected] != [q.shape for q in got]:
        raise ExportError(
            f"export: the file gives outputs of shapes {[tuple(q.shape) for q in got]}, the model "
            f"{[tuple(q.shape) for q in expected]}."
        )
    error = max(relative_error(a, b) for a, b in zip(expected, got, strict=True))
    a, b = expected[0].flatten(1), got[0].flatten(1)
    same = (a.argmax(1) == b.argmax(1)).float().mean().item() if a.numel() else 1.0
    return Agreement(error, same, len(a))


def relative_error(expected: Tensor, got: Tensor) -> float:
    """`max |got - expected| / max |expected|`; infinite where only one of the two is finite."""
    if not torch.equal(expected.isfinite(), got.isfinite()):
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    difference = (got.double() - expected.double()).abs().nan_to_num(0.0).max()
    return float(difference / expected.double().abs().nan_to_num(0.0, posinf=0.0).max().clamp(min=1e-12))


def onnx_runner(session: Any) -> Runner:
    """A function of tensors that runs an `onnxruntime.InferenceSession`."""
    names = [item.name for item in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        feed = {name: np.ascontiguousarray(x.numpy()) for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(q) for q in session.run(None, feed)]

    return run


def first_difference(
    model: nn.Module, inputs: Sequence[Tensor], run_part: Callable[[nn.Module, Sequence[Tensor]], Sequence[Tensor]]
) -> str:
    """The name of the first module, in the order of the model's own run, whose exported twin answers differently.

    Modules are tried in the order in which they finish, each on the inputs that it had in the model; children come
    before their parents, so the name is the innermost one. `run_part(module, inputs)` exports a module and runs it.
    """
    twin = copy.deepcopy(model).eval()
    seen: list[tuple[str, nn.Module, tuple[Tensor, ...], list[Tensor]]] = []
    names = {module: name for name, module in twin.named_modules()}

    def record(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        if args and all(isinstance(q, Tensor) for q in args) and module not in {m for _, m, _, _ in seen}:
            outputs = [q for q in as_outputs(result) if isinstance(q, Tensor)]
            seen.append((names[module], module, tuple(q.clone() for q in args), [q.clone() for q in outputs]))

    handles = [module.register_forward_hook(record) for module in twin.modules()]
    try:
        with torch.no_grad():
            twin(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    for name, module, args, outputs in seen:
        try:
            agreement = compare(outputs, run_part(module, args))
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            return f"{name or 'the model'} ({type(module).__name__}), which cannot be run alone"
        if agreement.max_error > TOLERANCE:
            return f"{name or 'the model'} ({type(module).__name__}), by {agreement.max_error:.1e}"
    return "no single module: each one alone agrees"
