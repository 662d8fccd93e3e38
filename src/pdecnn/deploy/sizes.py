"""Files for images of any size: which sizes are left open, whether they stayed so, and a second size to compare at."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.deploy.check import TOLERANCE, ExportError, answers, compare

SIZES = {3: ("width",), 4: ("height", "width"), 5: ("depth", "height", "width")}


def free_dimensions(x: Tensor) -> dict[int, Any]:
    """What `torch.export` is told of the sizes after batch and channels: they may change."""
    return dict.fromkeys(range(2, x.ndim), torch.export.Dim.AUTO) if x.ndim in SIZES else {}


def check_free(program: torch.export.ExportedProgram) -> None:
    """A ValueError if the model has fixed a size that was to stay free."""
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name not in program.graph_signature.user_inputs or not isinstance(value, Tensor):
            continue
        for name, size in zip(SIZES.get(value.ndim, ()), value.shape[2:], strict=False):
            if isinstance(size, int):
                raise ValueError(
                    f"the model is for images of {name} {size} alone (a linear layer on flattened maps, or a size that "
                    "is written in its code). Export it without free_size, for the size of the example."
                )


def check_other_size(model: nn.Module, inputs: Sequence[Tensor], run: Callable[[Sequence[Tensor]], Any]) -> None:
    """An ExportError if the file does not compute what the model does for one image of twice the height, thrice the
    width."""
    other = [x[:1].repeat(1, 1, *(2, 3, 2)[3 - (x.ndim - 2) :]) if x.ndim in SIZES else x[:1] for x in inputs]
    found = compare(answers(model, other), run(other))
    if found.max_error > TOLERANCE:
        shapes = ", ".join(str(tuple(x.shape)) for x in other)
        raise ExportError(
            f"export: at another size, {shapes}, the file differs from the model by {found.max_error:.1e} of the "
            "largest output. Export it without free_size. Nothing was left behind."
        )


def name_sizes(proto: Any) -> None:
    """Calls the free sizes of the inputs batch, height and width, there and in the sizes of the outputs."""
    graph, known = proto.graph, {}
    for item in graph.input:
        shape = item.type.tensor_type.shape.dim
        for dim, name in zip(shape, ("batch", "", *SIZES.get(len(shape), ())), strict=False):
            if dim.dim_param and name:
                known.setdefault(dim.dim_param, name)
    for item in (*graph.input, *graph.output, *graph.value_info):
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(r"\w+", lambda word: known.get(word[0], word[0]), dim.dim_param)
