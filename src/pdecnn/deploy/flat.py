"""Models as a runtime knows them: tensors in, tensors out, each with a name."""

from typing import Any

from torch import Tensor, nn

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
        places = iter(range(len(named_tensors(x))))
        self.structure = map_tensors(x, lambda q: _Place(next(places)))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """All tensors of the model's answer."""
        answer = self.model(*arguments(self.model, _filled(self.structure, tensors)))
        return tuple(named_tensors(answer).values())


class _Place:
    """Where a tensor goes."""

    def __init__(self, i: int) -> None:
        self.i = i


def _filled(tree: Any, tensors: tuple[Tensor, ...]) -> Any:
    if isinstance(tree, _Place):
        return tensors[tree.i]
    if isinstance(tree, dict):
        return {key: _filled(part, tensors) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_filled(part, tensors) for part in tree)
    return tree


def flatten(model: nn.Module, x: Any) -> tuple[nn.Module, dict[str, list[str]]]:
    """The model as it is, or as `Flat` where it takes or gives more than tensors; and the names that are known.

    Example:
        >>> class Two(nn.Module):
        ...     def forward(self, x):
        ...         return {"mask": x, "edge": 2 * x}
        >>> flatten(Two(), torch.zeros(1))[1]
        {'outputs': ['mask', 'edge']}
    """
    plain = isinstance(x, Tensor) or (isinstance(x, (list, tuple)) and all(isinstance(q, Tensor) for q in x))
    with eval_mode(model):
        try:
            answer = model(*arguments(model, map_tensors(x, Tensor.clone)))
        except Exception:  # `check_inputs` says what is wrong
            return model, {}
    names = {"inputs": [_name(n, "input") for n in named_tensors(x)]} if isinstance(x, dict) else {}
    if not isinstance(answer, Tensor) and named_tensors(answer):
        names["outputs"] = [_name(n, "output") for n in named_tensors(answer)]
    spread = plain and len(arguments(model, x)) == (1 if isinstance(x, Tensor) else len(x))
    tensors = isinstance(answer, Tensor) or (type(answer) is tuple and all(isinstance(q, Tensor) for q in answer))
    return (model if spread and tensors else Flat(model, x)), names


def _name(name: str, stem: str) -> str:
    return f"{stem}_{name}" if name[:1].isdigit() else name
