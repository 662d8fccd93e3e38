"""Weights that others saved: .pth or .safetensors, with the wrappers that training scripts put around them."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

WRAPPERS = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "state_dict", "model_state_dict", "model", "net")
PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "ema_model.")
COUNTERS = (
    "num_batches_tracked",
    "n_averaged",
)  # of no use to inference; old files lack the one, averages add the other


class WeightsError(ValueError):
    """A file of weights that cannot be read or does not fit; the message lists what does not."""


def load_weights(model: nn.Module, path: str | Path) -> str:
    """Loads a file into `model`, all of it or an error, and says in words what was taken out of it.

    Args:
        model: The model, of the right number of classes.
        path: A `.safetensors` file, or one of `torch.save`, which is read without running any code in it.

    Example:
        >>> import tempfile
        >>> state = {f"module.{k}": v for k, v in nn.Linear(2, 3).state_dict().items()}
        >>> with tempfile.TemporaryDirectory() as home:
        ...     torch.save({"epoch": 3, "state_dict": state}, f"{home}/best.pth")
        ...     load_weights(nn.Linear(2, 3), f"{home}/best.pth")
        "2 tensors of best.pth, its 'state_dict', without the prefix 'module.'"
    """
    path = Path(path)
    state, how = unwrap(read_tensors(path), path)
    own = model.state_dict()
    state, prefix = strip(state, own)
    check_fit(model, own, state, path)
    model.load_state_dict({key: state.get(key, value) for key, value in own.items()})
    return f"{len(state)} tensors of {path.name}{how}" + (f", without the prefix {prefix!r}" if prefix else "")


def read_tensors(path: Path) -> Mapping[str, Any]:
    """What the file holds; nothing in it is run."""
    if not path.is_file():
        raise WeightsError(f"weights: no file {path}.")
    if path.suffix == ".safetensors":
        try:
            return dict(safetensors.torch.load(path.read_bytes()))
        except safetensors.SafetensorError as error:
            raise WeightsError(f"weights: {path} is not a readable safetensors file: {error}.") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"weights: {path} holds more than tensors, and code in files is not run. Save the tensors alone: "
            "torch.save(model.state_dict(), path)."
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise WeightsError(f"weights: {path} is not a readable file of torch.save: {error}.") from error
    if not isinstance(found, Mapping):
        raise WeightsError(f"weights: {path} holds a {type(found).__name__}, expected a state dict.")
    return found


def unwrap(found: Mapping[str, Any], path: Path) -> tuple[dict[str, Tensor], str]:
    """The state dict inside the wrappers, averaged weights first, and the way to it in words."""
    if found and all(isinstance(value, Tensor) for value in found.values()):
        return dict(found), ""
    for key in WRAPPERS:
        inner = found.get(key)
        if isinstance(inner, Mapping) and any(isinstance(value, (Tensor, Mapping)) for value in inner.values()):
            state, how = unwrap(inner, path)
            return state, f", its {key!r}{how}"
    tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsError(
            f"weights: no state dict in {path}; it has the entries {', '.join(map(str, found)) or 'none'}."
        )
    return tensors, ""


def strip(state: dict[str, Tensor], own: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
    """The state without a prefix that all its names have and those of the model have not."""
    state = {key: value for key, value in state.items() if key not in COUNTERS}
    taken = ""
    while state:
        prefix = next((p for p in PREFIXES if all(key.startswith(p) for key in state)), None)
        if prefix is None or all(key in own for key in state):
            break
        state, taken = {key.removeprefix(prefix): value for key, value in state.items()}, taken + prefix
    return state, taken


def check_fit(model: nn.Module, own: Mapping[str, Any], state: Mapping[str, Tensor], path: Path) -> None:
    """A WeightsError with the list of what is missing, left over, or of another shape."""
    missing = [key for key in own if key not in state and not key.endswith(COUNTERS)]
    unknown = [key for key in state if key not in own]
    odd = {
        key: (tuple(state[key].shape), tuple(value.shape))
        for key, value in own.items()
        if key in state and isinstance(value, Tensor) and state[key].shape != value.shape
    }
    if not (missing or unknown or odd):
        return
    shapes = [f"{key} {theirs} for {mine}" for key, (theirs, mine) in odd.items()]
    parts = {"missing": missing, "not in the model": unknown, "of another shape": shapes}
    lines = [f"\n  {what} ({len(names)}): {_few(names)}" for what, names in parts.items() if names]
    classes = {theirs[0] for theirs, mine in odd.values() if theirs[1:] == mine[1:]}
    hint = ""
    if len(classes) == 1 and not (missing or unknown):
        n = classes.pop()
        hint = f"\nThe file is for {n} classes: give --num-classes {n}."
    raise WeightsError(f"weights: {path} does not fit {type(model).__name__}:{''.join(lines)}{hint}")


def _few(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
