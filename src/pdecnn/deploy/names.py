"""What the inputs and outputs of a file are called: as in the model, so that nobody has to count them."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path

Names = Mapping[str, Sequence[str]]


def input_names(model: nn.Module, count: int) -> list[str]:
    """`input` for one; several are called as the arguments of `forward`.

    Example:
        >>> input_names(nn.Bilinear(2, 2, 2), 2), input_names(nn.ReLU(), 1)
        (['input1', 'input2'], ['input'])
    """
    if count == 1:
        return ["input"]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds]
    return found[:count] if len(found) >= count else [f"input_{i}" for i in range(count)]


def output_names(output: Any) -> list[str]:
    """The keys of a dict, the numbers of a list; one tensor is `logits` if it is a row per sample, else `output`.

    Example:
        >>> import torch
        >>> mask = torch.zeros(1, 2, 8, 8)
        >>> output_names({"out": mask, "aux": mask}), output_names([mask, mask]), output_names(mask[:, :, 0, 0])
        (['out', 'aux'], ['output_0', 'output_1'], ['logits'])
    """
    if isinstance(output, Tensor):
        return ["logits" if output.ndim == 2 else "output"]
    leaves = [(path, leaf) for path, leaf in tree_flatten_with_path(output)[0] if isinstance(leaf, Tensor)]
    return _distinct(["_".join(_part(key) for key in path) for path, _ in leaves])


def check_names(names: Names, inputs: int, outputs: int) -> None:
    """Raises a ValueError unless there is one name for each input and output, all different."""
    for kind, wanted in (("inputs", inputs), ("outputs", outputs)):
        given = list(names.get(kind, ()))
        if given and len(given) != wanted:
            raise ValueError(f"export: the model has {wanted} {kind}, names has {len(given)} for them: {given}.")
    every = [name for kind in ("inputs", "outputs") for name in names.get(kind, ())]
    if len(set(every)) != len(every) or set(names) - {"inputs", "outputs"}:
        raise ValueError(
            'export: names must be such as {"inputs": ["image"], "outputs": ["mask"]}, with no name twice, got '
            f"{dict(names)}."
        )


def _part(key: Any) -> str:
    """One step on the way to a leaf: a key, a field or a number."""
    for kind in ("key", "name", "idx"):
        if hasattr(key, kind):
            found = getattr(key, kind)
            return re.sub(r"\W", "_", str(found)) if kind != "idx" else f"output_{found}"
    return re.sub(r"\W", "_", str(key))


def _distinct(names: list[str]) -> list[str]:
    """Numbers those that came twice, and leaves no name empty or that of an input."""
    seen: dict[str, int] = {"input": 1}
    out = []
    for name in names:
        name = name or "output"
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}_{seen[name] - 1}")
    return out
