"""Lowering: from a model to an equal one made of portable operators, ready for any runtime."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from pdecnn.deploy.check import CannotExportError, answers
from pdecnn.deploy.modules import prepare
from pdecnn.deploy.portable import TABLE, Table, WithTable
from pdecnn.deploy.simplify import changes_in_place, simplify


def lower(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    *,
    keep: Iterable[Any] = (),
    dynamic: str = "batch",
) -> fx.GraphModule:
    """Returns a graph that computes what `model` computes in eval mode, to 1e-5, in portable operators.

    Batch norms are folded, what depends on weights alone is computed, and the operators of pdecnn are written as in
    `portable.py`. The model itself is left as it is.

    Args:
        model: Any model of ours, of timm or built from our layers.
        example_inputs: One input, or all of them.
        keep: Operators of pdecnn to leave as they are.
        dynamic: Which sizes of the inputs may change: `"nothing"`, `"batch"`, or `"size"`: the batch and all that comes
            after the channels.

    Example:
        >>> from pdecnn.layers import GlobalLayer
        >>> layer, x = GlobalLayer(8).eval(), torch.rand(2, 8, 6, 6)
        >>> torch.allclose(lower(layer, x)(x[:1]), layer(x[:1]), atol=1e-5)
        True
    """
    inputs = check_inputs(model, example_inputs)
    kept = set(keep)
    table = {op: form for op, form in TABLE.items() if op not in kept}
    return lower_with(table, model, inputs, dynamic=dynamic)


def lower_with(
    table: Table,
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    whole_layers: bool = True,
    dynamic: str = "batch",
) -> fx.GraphModule:
    """`lower` with the operators of pdecnn written as in `table`; see `prepare` for `whole_layers`."""
    twin = prepare(copy.deepcopy(model).eval(), whole_layers=whole_layers)
    try:
        program = trace(WithTable(twin, table), inputs, dynamic=dynamic)
    except Exception as error:  # torch.export has many kinds, most of them private
        reason = str(error).strip().partition("\n")[0]
        raise CannotExportError(
            f"export: {type(model).__name__} cannot be traced: {reason} What it does must not depend on the values of "
            "its inputs; export such a part by itself or replace it."
        ) from error
    module: Any = program.module(check_guards=False)
    if changes_in_place(module.graph):
        module = program.run_decompositions({}).module(check_guards=False)  # the same without such changes
    return simplify(module)


def trace(module: nn.Module, inputs: Sequence[Tensor], *, dynamic: str = "batch") -> torch.export.ExportedProgram:
    """`torch.export` without gradients; a batch of one in the example becomes two, since torch fixes sizes of one."""
    shapes: tuple[Any, ...] | None = None
    if dynamic != "nothing":
        inputs = [x if len(x) > 1 else torch.cat([x, x]) for x in inputs]
        each = _free_dimensions(inputs, dynamic)
        shapes = (each,) if isinstance(module, WithTable) else each  # its inputs are one variadic argument
    with torch.no_grad():
        return torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)


def _free_dimensions(inputs: Sequence[Tensor], dynamic: str) -> tuple[dict[int, Any], ...]:
    """The dimensions of each input that may change; AUTO finds what a net asks of them, such as multiples of 32."""
    if dynamic == "batch":
        batch = torch.export.Dim("batch", min=1)
        return tuple({0: batch} for _ in inputs)
    return tuple(dict.fromkeys((0, *range(2, x.ndim)), torch.export.Dim.AUTO) for x in inputs)


def check_inputs(model: nn.Module, example_inputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The inputs as a tuple, after the model has run on them; a ValueError that says what the model answered if not."""
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    if not inputs or not all(isinstance(x, Tensor) and x.ndim > 0 for x in inputs):
        raise TypeError("export: example_inputs must be a Tensor or several, each with the batch as first dimension.")
    shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
    if not all(len(x) for x in inputs):
        raise ValueError(f"export: example_inputs must hold at least one sample, got shape {shapes}.")
    if any(q.is_meta for q in (*inputs, *model.parameters(), *model.buffers())):
        raise ValueError("export: the model or example_inputs are on the meta device, without values; load them first.")
    try:
        outputs = answers(model, inputs)
    except Exception as error:  # a model may refuse in any way
        raise CannotExportError(
            f"export: {type(model).__name__} does not run on example_inputs of shape {shapes}: {error}"
        ) from error
    if not outputs:
        raise CannotExportError(f"export: {type(model).__name__} returns no tensor.")
    return inputs
