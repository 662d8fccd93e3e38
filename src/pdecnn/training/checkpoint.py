"""Checkpoints: a folder of config.json and model.safetensors with checksums, written whole or not at all."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from pdecnn.models.build import build_model
from pdecnn.shared.files import SaveError, atomic_folder, write_atomic

FORMAT = "pdecnn-checkpoint/1"
CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or not one of ours."""


@dataclass(frozen=True)
class Checkpoint:
    """A model read from a checkpoint, and its config."""

    model: nn.Module
    config: dict[str, Any]


def save_checkpoint(
    path: str | Path, model: nn.Module, config: dict[str, Any], *, extra: dict[str, bytes] | None = None
) -> Path:
    """Writes a checkpoint folder, atomically: a crash leaves the old one or the new one.

    Args:
        path: The folder; an existing checkpoint there is replaced, its parents are created.
        model: Its `state_dict` is what is saved.
        config: At least `{"model": description}`, where `build_model(description)` gives the same architecture.
        extra: Further files by plain name, such as the state of an optimiser.

    Example:
        >>> import tempfile
        >>> from pdecnn.training import build_model
        >>> model = build_model(description := {"name": "test_resnet", "kwargs": {"num_classes": 2}})
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     folder = save_checkpoint(f"{runs}/net", model, {"model": description})
        ...     load_checkpoint(folder).model.num_classes
        2
    """
    if not isinstance(config.get("model"), dict):
        raise ValueError('save_checkpoint: config needs an entry "model" that describes the architecture, as a dict.')
    files = {
        CONFIG: json.dumps({"format": FORMAT, **config}, indent=2).encode(),
        WEIGHTS: pack(model.state_dict()),
        **(extra or {}),
    }
    return write_files(Path(path), files)


def write_files(path: Path, files: dict[str, bytes]) -> Path:
    """Writes `files` and a manifest of their checksums as one folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(path, error) from error
    manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    with atomic_folder(path) as folder:
        for name, data in files.items():
            write_atomic(folder / _plain_name(path, name), data)
        write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2))
    return path


def load_checkpoint(path: str | Path, *, model: nn.Module | None = None) -> Checkpoint:
    """Reads a checkpoint and builds its model, ready for inference (`model.eval()`).

    Args:
        path: A checkpoint folder, or a run folder, of which the last checkpoint is taken.
        model: Load the weights into this model; needed if the architecture is not one that pdecnn or timm can build.
    """
    path = find_checkpoint(path)
    config = read_config(path)
    model = build_model(config["model"]) if model is None else model
    state = unpack(path / WEIGHTS)
    own = model.state_dict()
    missing, unexpected = [key for key in own if key not in state], [key for key in state if key not in own]
    odd = [
        f"{key} {list(state[key].shape)} for {list(value.shape)}"
        for key, value in own.items()
        if key in state and isinstance(value, Tensor) and state[key].shape != value.shape
    ]
    if missing or unexpected or odd:
        raise CheckpointError(
            f"load_checkpoint: the weights in {path} are not those of {type(model).__name__}: missing {missing[:3]}, "
            f"unexpected {unexpected[:3]}, of another shape {odd[:3]}."
        )
    model.load_state_dict(state)
    return Checkpoint(model.eval(), config)


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder that `path` means: itself, or `last` of a run folder. Checks its checksums."""
    path = Path(path)
    for folder in (path, path / "last"):
        if (folder / CONFIG).is_file():
            verify(folder)
            return folder
    raise CheckpointError(f"load_checkpoint: no {CONFIG} in {path}; expected a checkpoint or a run folder.")


def read_config(path: Path) -> dict[str, Any]:
    """The config of a checkpoint folder."""
    config = read_json(path / CONFIG)
    if config.get("format") != FORMAT or not isinstance(config.get("model"), dict):
        raise CheckpointError(
            f"load_checkpoint: {path / CONFIG} has format {config.get('format')!r}, expected {FORMAT!r} and a model."
        )
    return config


def verify(path: Path, *, required: bool = False) -> None:
    """Compares every file with the manifest; raises a CheckpointError that names the damaged one.

    A folder without a manifest (weights copied by hand) passes unless `required`.
    """
    if not (path / MANIFEST).is_file():
        if required:
            raise CheckpointError(f"load_checkpoint: {path} has no {MANIFEST}: it was not written to its end.")
        return
    for name, expected in read_json(path / MANIFEST).items():
        file = path / _plain_name(path, name)
        if not file.is_file():
            raise CheckpointError(f"load_checkpoint: {file} is missing.")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest != expected:
            raise CheckpointError(
                f"load_checkpoint: {file} is damaged: its SHA-256 is {digest[:12]}…, the manifest says "
                f"{str(expected)[:12]}…."
            )


def pack(state: dict[str, Tensor]) -> bytes:
    """A state dict in safetensors form. Tensors that share memory are stored once each."""
    data: bytes = safetensors.torch.save({k: v.detach().cpu().contiguous().clone() for k, v in state.items()})
    return data


def unpack(file: Path) -> dict[str, Tensor]:
    """Reads a safetensors file."""
    try:
        state: dict[str, Tensor] = safetensors.torch.load(file.read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"load_checkpoint: {file} is not a readable safetensors file: {error}.") from error
    return state


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"load_checkpoint: {file} is not readable JSON: {error}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"load_checkpoint: {file} holds a {type(value).__name__}, expected an object.")
    return value


def _plain_name(folder: Path, name: str) -> str:
    if name != Path(name).name or name in ("", ".", ".."):
        raise CheckpointError(f"load_checkpoint: {folder} names the file {name!r}; only plain file names are allowed.")
    return name
