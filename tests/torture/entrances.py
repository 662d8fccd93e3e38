"""The ways in for files: how each is written, read, and what a reader that believes every byte would see.

A new kind of file is one more row of `ENTRANCES`; a new way of writing one more row of `WRITERS` in `writers.py`.
"""

import json
import struct
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from pdecnn.analysis.own_runs import read_results
from pdecnn.condensation.plan import Plan
from pdecnn.shared.reading import FileError
from pdecnn.training import Recipe, load_checkpoint, load_recipe, save_checkpoint
from pdecnn.training.checkpoint import unpack, verify
from pdecnn.training.rundir import read_state
from pdecnn.training.trainer import State

OLD = Path(__file__).parent.parent / "fixtures" / "v0.1"
CONFIG = {"model": {"builder": "custom"}, "note": {"a": [1, 2.5, None]}}
RECIPE = "model: {name: net, kwargs: {K: 5}}\ndata: {name: mnist, batch_size: 64}\nepochs: 2\noptimizer: {lr: 0.1}\n"
RESULT = {"model": "cifar_resnet32", "dataset": "cifar10", "accuracy": 92.5, "epochs": 75, "curve": [1]}


def net() -> nn.Linear:
    """A network of nine numbers."""
    torch.manual_seed(0)
    return nn.Linear(2, 3)


@dataclass(frozen=True)
class Entrance:
    """A file that may be anyone's.

    Attributes:
        make: Writes it and all that belongs to it into a folder, and returns its path.
        read: What our reader makes of it; a FileError refuses it.
        written: The same by a naive reading of the bytes; None if every change must be refused.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    written: Callable[[bytes], Any] | None


def _checkpoint(folder: Path, name: str, manifest: bool) -> Path:
    state = json.dumps(asdict(State(step=3, history=[{"epoch": 1, "loss": 0.5}]))).encode()
    save_checkpoint(folder / "net", net(), CONFIG, extra={"state.json": state})
    if not manifest:
        (folder / "net/manifest.json").unlink()
    return folder / "net" / name


def _make_plan(folder: Path) -> Path:
    values = json.loads((OLD / "plan.json").read_text())
    values["runs"], values["skipped"] = values["runs"][:1], values["skipped"][:1]
    (folder / "plan.json").write_text(json.dumps(values))
    return folder / "plan.json"


def _written_plan(data: bytes) -> Any:
    values = json.loads(data)
    values.setdefault("skipped", [])
    values.setdefault("base", None)
    values.setdefault("before", {})
    values.setdefault("width", 1.0)
    values.setdefault("inner", [])
    values.setdefault("narrowed", None)
    for cost in (
        values["before"],
        *(c for run in values["runs"] for c in (*run.get("costs", []), run.get("layer_cost"))),
    ):
        for key, default in (("params", 0), ("macs", 0), ("ms", None)):
            cost.setdefault(key, default)
    defaults = asdict(Plan.load(OLD / "plan.json").runs[0])
    for run in values["runs"]:
        for key in (
            "channels_last",
            "signed",
            "replacement",
            "K",
            "init",
            "options",
            "rms",
            "growth",
            "width",
            "readers",
            "transition",
        ):
            run.setdefault(key, {"K": 5, "rms": 1.0, "signed": True, "readers": []}.get(key, defaults[key]))
        run.setdefault("kernels", 0)
    return values


def _text(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def _read_recipe(file: Path) -> Any:
    recipe = load_recipe(file)
    return {key: value for key, value in recipe.model_dump(mode="json").items() if key in recipe.model_fields_set}


def _written_recipe(data: bytes) -> Any:
    values = yaml.safe_load(data)
    recipe = Recipe.parse(values)
    return {key: value for key, value in recipe.model_dump(mode="json").items() if key in values}


def _read_tensors(file: Path) -> Any:
    own = net()
    state = load_checkpoint(file.parent, model=own).model.state_dict()
    assert {k: v.shape for k, v in unpack(file).items()} == {k: v.shape for k, v in state.items()}
    return {key: value.double().tolist() for key, value in state.items()}


_KINDS = {"F32": "f", "F16": "e"}


def _written_tensors(data: bytes) -> Any:
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    made = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        kind = _KINDS[entry["dtype"]]
        values = torch.tensor([v for (v,) in struct.iter_unpack(f"<{kind}", body[begin:end])], dtype=torch.float64)
        made[name] = values.view(entry["shape"]).tolist()
    return made


def _read_result(file: Path) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read_results(file.parent)
    if caught:
        raise FileError(str(caught[0].message))
    return [(key[0], runs, how.length) for key, trainings in found.items() for how, runs in trainings.items()]


def _written_result(data: bytes) -> Any:
    run = json.loads(data)
    if not isinstance(run, dict) or not {"model", "dataset"} <= run.keys() or run.get("accuracy") is None:
        return []  # not ours
    epochs = run.get("epochs")
    return [(run["model"], [float(run["accuracy"])], "" if epochs is None else str(epochs))]


def _read_config(file: Path) -> Any:
    return load_checkpoint(file.parent, model=net()).config


def _read_manifest(file: Path) -> Any:
    verify(file.parent, required=True)
    return json.loads(file.read_bytes())


ENTRANCES = {
    "plan": Entrance(_make_plan, lambda file: Plan.load(file).to_dict(), _written_plan),
    "recipe": Entrance(lambda folder: _text(folder / "r.yaml", RECIPE), _read_recipe, _written_recipe),
    "result": Entrance(lambda folder: _text(folder / "result.json", json.dumps(RESULT)), _read_result, _written_result),
    "config": Entrance(lambda folder: _checkpoint(folder, "config.json", False), _read_config, json.loads),
    "weights": Entrance(
        lambda folder: _checkpoint(folder, "model.safetensors", False), _read_tensors, _written_tensors
    ),
    "state": Entrance(
        lambda folder: _checkpoint(folder, "state.json", False),
        lambda file: asdict(State.from_dict(read_state(file.parent), str(file))),
        json.loads,
    ),
    "manifest": Entrance(lambda folder: _checkpoint(folder, "manifest.json", True), _read_manifest, json.loads),
    "config with digest": Entrance(lambda folder: _checkpoint(folder, "config.json", True), _read_config, None),
    "weights with digest": Entrance(lambda folder: _checkpoint(folder, "model.safetensors", True), _read_config, None),
    "state with digest": Entrance(lambda folder: _checkpoint(folder, "state.json", True), _read_config, None),
}
