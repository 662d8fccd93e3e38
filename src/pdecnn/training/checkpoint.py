"""Checkpoints: a folder of config.json and model.safetensors with checksums, written whole or not at all."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from pdecnn.models.build import build_model, described_steps, with_served_steps
from pdecnn.shared.files import atomic_folder, saving, standing, write_atomic
from pdecnn.shared.reading import MB, FileError, check_tree, guarded, open_regular, parse_json, read_bytes, read_object

FORMAT = "pdecnn-checkpoint/1"
CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "manifest.json"
MAX_JSON, MAX_WEIGHTS = 64 * MB, 2**40
_SUFFIXES = (".json", ".safetensors")  # of all files of a checkpoint that are read
CARD, CARD_MARK = "README.md", "<!-- written by pdecnn -->"  # for people; may be edited, so no checksum
_HUB = (".gitattributes",)  # what a hub adds


class CheckpointError(FileError):
    """A checkpoint that is missing, damaged, or not one of ours."""


@contextmanager
def _naming() -> Iterator[None]:
    """Makes a CheckpointError of what a reader says about a file."""
    try:
        yield
    except CheckpointError:
        raise
    except FileError as error:
        raise CheckpointError(f"load_checkpoint: {error}") from error


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
        path: The folder; an existing checkpoint there is replaced, its parents are created. Anything else that is
            there is left alone, with a FileExistsError.
        model: Its `state_dict` is what is saved.
        config: At least `{"model": description}`, where `build_model(description)` gives the same architecture.
        extra: Further files by plain name, such as the state of an optimiser or README.md.

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
    check_tree({key: value for key, value in config.items() if key != "metrics"}, "save_checkpoint: config")
    described = {**config["model"], **described_steps(model)}
    files = {
        CONFIG: json.dumps({"format": FORMAT, **config, "model": described}, indent=2).encode(),
        WEIGHTS: pack(model.state_dict()),
        **(extra or {}),
    }
    return write_files(Path(path), files)


def write_files(path: Path, files: dict[str, bytes]) -> Path:
    """Writes `files` and a manifest of their checksums as one folder."""
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    _check_replaceable(standing(path))
    manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name.endswith(_SUFFIXES)}
    with atomic_folder(path) as folder:
        for name, data in files.items():
            write_atomic(folder / _plain_name(path, name), data)
        write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2))
    return path


def _check_replaceable(path: Path) -> None:
    """Raises a FileExistsError unless `path` is free, an empty folder or a checkpoint and nothing else."""
    if not os.path.lexists(path):
        return
    problem = ""
    if path.is_symlink() or not path.is_dir():
        problem = "a link" if path.is_symlink() else "a file"
    else:
        names = sorted(entry.name for entry in path.iterdir())
        foreign = [n for n in names if not _is_part(path / n)]
        if foreign:
            problem = f"a folder that holds {foreign[0]!r}, which is no part of a checkpoint"
        elif names and not _is_checkpoint(path):
            problem = "a folder that is not a checkpoint of pdecnn"
    if problem:
        raise FileExistsError(
            f"save_checkpoint: {path} is {problem}; only a checkpoint is replaced. Choose another path or move it."
        )


def _is_part(file: Path) -> bool:
    """Whether a file is one that checkpoints have: of theirs, a card that pdecnn wrote, or a note of a hub."""
    if file.is_symlink() or not file.is_file():
        return False
    if file.name == CARD:
        return CARD_MARK.encode() in read_bytes(file, MAX_JSON)
    return file.name.endswith(_SUFFIXES) or file.name in _HUB


def _is_checkpoint(path: Path) -> bool:
    try:
        read_config(path)
    except CheckpointError:
        return False
    return True


def load_checkpoint(path: str | Path, *, model: nn.Module | None = None) -> Checkpoint:
    """Reads a checkpoint and builds its model, ready for inference (`model.eval()`).

    Args:
        path: A checkpoint folder, or a run folder, of which the last checkpoint is taken.
        model: Load the weights into this model; needed if the architecture is not one that pdecnn or timm can build.
    """
    path = find_checkpoint(path)
    config = read_config(path)
    header = read_header(path / WEIGHTS)
    if model is None:
        model = _build(config["model"], header, path)
    else:
        with _naming():
            guarded(f"{path / CONFIG}", partial(with_served_steps, model, config["model"]))
    _check_shapes(model, header, path)
    model.load_state_dict(unpack(path / WEIGHTS))
    return Checkpoint(model.eval(), config)


def _build(description: dict[str, Any], header: dict[str, "Entry"], path: Path) -> nn.Module:
    """The model of a config. Its shapes are compared before any memory is taken for it, where that can be done."""
    try:
        try:
            with torch.device("meta"):
                sketch = build_model(description)
        except (NotImplementedError, RuntimeError):  # something reads values while it is built
            pass
        else:
            _check_shapes(sketch, header, path)
        return build_model(description)
    except (FileError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise CheckpointError(f"load_checkpoint: the model in {path / CONFIG} cannot be built: {error}") from error


def _check_shapes(model: nn.Module, header: dict[str, "Entry"], path: Path) -> None:
    own = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    missing, unexpected = [key for key in own if key not in header], [key for key in header if key not in own]
    odd = [
        f"{key} {header[key].text} for {list(value.shape)}"
        for key, value in own.items()
        if key in header
        and (header[key].shape != tuple(value.shape) or header[key].is_float != value.is_floating_point())
    ]
    if missing or unexpected or odd:
        raise CheckpointError(
            f"load_checkpoint: the weights in {path} are not those of {type(model).__name__}: missing {missing[:3]}, "
            f"unexpected {unexpected[:3]}, of another shape or kind {odd[:3]}."
        )


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder that `path` means: itself, or `last` of a run folder. Checks its checksums."""
    path = Path(path)
    for folder in (path, path / "last"):
        folder = standing(folder)
        if (folder / CONFIG).is_file():
            verify(folder)
            return folder
    raise CheckpointError(f"load_checkpoint: no {CONFIG} in {path}; expected a checkpoint or a run folder.")


def read_config(path: Path) -> dict[str, Any]:
    """The config of a checkpoint folder."""
    config = read_json(path / CONFIG, nan_in=("metrics",))
    if config.get("format") != FORMAT or not isinstance(config.get("model"), dict):
        found = f"{config.get('format')!r:.80}"
        raise CheckpointError(f"load_checkpoint: {path / CONFIG} has format {found}, expected {FORMAT!r} and a model.")
    return config


def verify(path: Path, *, required: bool = False) -> None:
    """Compares every file with the manifest; raises a CheckpointError that names the damaged one.

    A folder without a manifest (weights copied by hand) passes unless `required`.
    """
    if not os.path.lexists(path / MANIFEST):
        if required:
            raise CheckpointError(f"load_checkpoint: {path} has no {MANIFEST}: it was not written to its end.")
        return
    manifest = read_json(path / MANIFEST)
    for name, expected in manifest.items():
        file = path / _plain_name(path, name)
        if not os.path.lexists(file):
            raise CheckpointError(f"load_checkpoint: {file} is missing.")
        digest = _digest(file)
        if digest != expected:
            raise CheckpointError(
                f"load_checkpoint: {file} is damaged: its SHA-256 is {digest[:12]}…, the manifest says "
                f"{str(expected)[:12]}…. Use another checkpoint, or a copy of this one."
            )
    there = [entry.name for entry in path.iterdir() if entry.name.endswith(_SUFFIXES) and entry.name != MANIFEST]
    for name in (CONFIG, WEIGHTS, *there):
        if name not in manifest:
            raise CheckpointError(
                f"load_checkpoint: {path / MANIFEST} does not list {name}, so that it is not verified. Take it from a "
                "copy of the checkpoint, or delete it to load without checksums."
            )


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with _naming(), open_regular(file, MAX_WEIGHTS) as content:
        while block := content.read(MB):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class Entry:
    """A tensor of a safetensors file, by its header."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return "F" in self.dtype

    @property
    def text(self) -> str:
        """Kind and shape."""
        return f"{self.dtype} {list(self.shape)}"


def read_header(file: Path) -> dict[str, Entry]:
    """The tensors of a safetensors file, without reading any; the file is as long as its header says."""
    with _naming(), open_regular(file, MAX_WEIGHTS) as content:
        size = os.fstat(content.fileno()).st_size
        length = int.from_bytes(content.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_JSON):
            raise FileError(f"{file} is not a readable safetensors file: its header has {length:,} bytes of {size:,}.")
        try:
            text = content.read(length).decode()
        except UnicodeDecodeError as error:
            raise FileError(f"{file} is not a readable safetensors file: its header is not text.") from error
        header = parse_json(text, f"{file} (header)")
        if not isinstance(header, dict):
            raise FileError(f"{file} is not a readable safetensors file: its header is no object.")
        header.pop("__metadata__", None)
        entries, end = {}, 0
        for name, entry in header.items():
            try:
                entries[name] = Entry(str(entry["dtype"]), tuple(int(n) for n in entry["shape"]))
                end = max(end, int(entry["data_offsets"][1]))
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise FileError(f"{file} (header): the tensor {name!r:.80} is not complete: {error!r}.") from error
        if 8 + length + end != size:
            raise FileError(
                f"{file} has {size:,} bytes, its header says {8 + length + end:,}; it is cut off or longer."
            )
    return entries


def pack(state: dict[str, Tensor]) -> bytes:
    """A state dict in safetensors form. Tensors that share memory are stored once each."""
    data: bytes = safetensors.torch.save({k: v.detach().cpu().contiguous().clone() for k, v in state.items()})
    return data


def unpack(file: Path) -> dict[str, Tensor]:
    """Reads a safetensors file."""
    read_header(file)
    try:
        with _naming():
            data = read_bytes(file, MAX_WEIGHTS)
        state: dict[str, Tensor] = safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"load_checkpoint: {file} is not a readable safetensors file: {error}.") from error
    return state


def read_json(file: Path, *, nan_in: tuple[str, ...] = ()) -> dict[str, Any]:
    """Reads a JSON object."""
    with _naming():
        return read_object(file, MAX_JSON, nan_in=nan_in)


def _plain_name(folder: Path, name: str) -> str:
    if name != Path(name).name or name in ("", ".", ".."):
        raise CheckpointError(f"load_checkpoint: {folder} names the file {name!r}; only plain file names are allowed.")
    return name
