"""Models as a runtime knows them: tensors in, tensors out, each with a name."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pdecnn.deploy.names import output_names
from pdecnn.shared.modules import eval_mode
from pdecnn.shared.trees import arguments, map_tensors, named_tensors


class Flat(nn.Module):
    """A model that takes or gives lists, dicts or dataclasses, as a function of tensors that gives a tuple of them.

    Args:
        model: The model.
        x: An input as the model takes it; only its structure is kept.
    """

    def __init__(self, model: nn.Module, x: Any) -> None:
        super().__init__()
        self.model = model
        self.structure = map_tensors(x, lambda q: q.new_empty(0, device="meta"))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """All tensors of the model's answer."""
        places = iter(tensors)
        answer = self.model(*arguments(self.model, map_tensors(self.structure, lambda _: next(places))))
        return tuple(named_tensors(answer).values())


def flatten(model: nn.Module, x: Any) -> tuple[nn.Module, dict[str, list[str]]]:
    """The model as it is and no names, or where torch cannot trace what it takes or gives, `Flat` and its names.

    Example:
        >>> class Both(nn.Module):
        ...     def forward(self, image, depth):
        ...         return {"mask": image + depth}
        >>> flatten(Both(), {"image": torch.zeros(1), "depth": torch.ones(1)})[1]
        {'inputs': ['image', 'depth'], 'outputs': ['mask']}
    """
    try:
        given = arguments(model, map_tensors(x, Tensor.clone))
        with eval_mode(model), torch.no_grad():
            answer = model(*given)
    except Exception:  # `check_inputs` says what is wrong
        return model, {}
    several = not isinstance(x, Mapping) and all(isinstance(q, Tensor) for q in given)
    if several and len(tree_leaves(answer)) == len(tree_leaves(list(named_tensors(answer).values()))):
        return model, {}
    outputs = output_names(answer if isinstance(answer, Tensor) else named_tensors(answer))
    if isinstance(x, Mapping):
        return Flat(model, x), {"inputs": list(named_tensors(x)), "outputs": outputs}
    return Flat(model, x), {"outputs": outputs}
