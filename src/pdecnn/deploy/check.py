"""Comparing an exported file with the model it came from, on inputs that matter, and saying where they part."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.shared.modules import eval_mode, listen, tensors_in

TOLERANCE = 1e-4  # of the largest output

Runner = Callable[[Sequence[Tensor]], list[Tensor]]


class ExportError(RuntimeError):
    """An exported file that does not compute what the model computes."""


class CannotExportError(ValueError):
    """A model that cannot be written in the format."""


@dataclass(frozen=True)
class Agreement:
    """How well the outputs of a file and of its model agree.

    Attributes:
        max_error: Largest difference, relative to the largest output of the model.
        top1: Share of samples, or of the places of their maps, with the same largest output.
        samples: Number of samples compared.
    """

    max_error: float
    top1: float
    samples: int


def answers(model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of the model in eval mode; a model that changes its inputs in place changes copies."""
    with eval_mode(model), torch.no_grad():
        return [q.cpu() for q in tensors_in(model(*[x.clone() for x in inputs]))]


def compare(expected: Sequence[Tensor], got: Sequence[Tensor]) -> Agreement:
    """The agreement of two lists of outputs; the first one decides top-1."""
    if [q.shape for q in expected] != [q.shape for q in got]:
        raise ExportError(
            f"export: the file gives outputs of shapes {[tuple(q.shape) for q in got]}, the model "
            f"{[tuple(q.shape) for q in expected]}."
        )
    error = max(relative_error(a, b) for a, b in zip(expected, got, strict=True))
    a, b = _rows(expected[0]), _rows(got[0])
    same = (a.argmax(1) == b.argmax(1)).float().mean().item() if a.numel() else 1.0
    return Agreement(error, same, len(a))


def _rows(q: Tensor) -> Tensor:
    return (q if q.ndim > 1 else q.reshape(-1, 1)).double()


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
        feed = {name: x.detach().cpu().contiguous().numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(q) for q in session.run(None, feed)]

    return run


def first_difference(
    model: nn.Module, inputs: Sequence[Tensor], run_part: Callable[[nn.Module, Sequence[Tensor]], Sequence[Tensor]]
) -> str:
    """The name of the first module, in the order of the model's own run, whose exported twin answers differently.

    Modules are tried in the order in which they finish, each on the inputs that it had in the model; children come
    before their parents, so the name is the innermost one. `run_part(module, inputs)` exports a module and runs it; one
    for which it fails is passed over, since much that works inside a model cannot be exported by itself.
    """
    twin = copy.deepcopy(model).eval()
    given: dict[nn.Module, tuple[Tensor, ...]] = {}
    seen: dict[nn.Module, list[Tensor]] = {}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args and not kwargs and module not in given and all(isinstance(q, Tensor) for q in args):
            given[module] = tuple(q.clone() for q in args)  # now, since the module may change them in place

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if module in given and module not in seen:
            seen[module] = [q.clone() for q in tensors_in(result)]

    with torch.no_grad(), listen(twin.modules(), before=before, after=after):
        twin(*[x.clone() for x in inputs])
    names = {module: f"{name or 'the model'} ({type(module).__name__})" for name, module in twin.named_modules()}
    passed_over = ""
    for module, outputs in seen.items():
        try:
            got = run_part(module, tuple(q.clone() for q in given[module]))
        except Exception:  # torch.export and the runtimes have many kinds
            passed_over = passed_over or f"; {names[module]} cannot be run alone"
            continue
        if [q.shape for q in outputs] != [q.shape for q in got]:
            return f"{names[module]}, in the shapes of its outputs"
        if outputs and (error := compare(outputs, got).max_error) > TOLERANCE:
            return f"{names[module]}, by {error:.1e}"
    return f"no single module: each one alone agrees{passed_over}"
