"""How far a condense job has come, on disk, so that it can be continued after any end."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pdecnn.shared.files import clean_up, remove_folder, write_atomic
from pdecnn.training.checkpoint import CheckpointError, find_checkpoint, load_checkpoint, read_json, save_checkpoint
from pdecnn.training.processes import Processes

FORMAT = "pdecnn-job/1"
FITTED, DISTILLATION, NULL, TEACHER = "fitted", "distillation", "null", "teacher-run"  # they go when the job is done


class StoppedError(Exception):
    """The job was stopped while it trained; what was finished is on disk."""


class Stages:
    """The folder of a job: job.json with its settings and the values found so far, and the weights of its stages.

    Where several processes do the job, all of them call the same methods; the first reads and writes, and tells the
    others.

    Args:
        folder: The folder.
        settings: What decides the outcome, as plain data; a job is only continued with the same.
        resume: Continue what is there, if anything is.
        arguments: What the command was given, for `--resume` alone.
        processes: Those that do the job.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        resume: bool,
        arguments: Mapping[str, Any] | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.folder, self.file = folder, folder / "job.json"
        self.processes = Processes() if processes is None else processes
        settings = json.loads(json.dumps(dict(settings)))
        self.state: dict[str, Any] = {
            "format": FORMAT, "settings": settings, "arguments": arguments, "values": {}, "seconds": 0.0,
        }  # fmt: skip
        self.state, self.finished = self.processes.first(lambda: self._open(resume))

    @property
    def seconds(self) -> float:
        """How long earlier parts of the job took, as far as they could say."""
        return float(self.state["seconds"])

    def add_seconds(self, seconds: float) -> None:
        """Notes how long this part took."""
        self.state["seconds"] += seconds
        self.save()

    def result(self) -> dict[str, Any]:
        """What `finish` wrote."""
        return self.processes.first(lambda: read_json(self.folder / "result.json"))

    def value(self, name: str, find: Callable[[], Any]) -> Any:
        """What was found under this name before, or is found now."""
        if name not in self.state["values"]:
            self.state["values"][name] = find()
            self.save()
        return self.state["values"][name]

    def weights(self, name: str, model: nn.Module, make: Callable[[], Any]) -> Any:
        """Gives `model` the weights of a stage: those on disk, or those that `make` leaves in it; and its result."""
        path = self.folder / name

        def found() -> Any:
            try:
                return load_checkpoint(find_checkpoint(path), model=model).config["made"]
            except CheckpointError:
                made = make()
                save_checkpoint(path, model, {"model": {"builder": "stage"}, "made": made})
                return made

        made = self.processes.first(found)
        self.processes.share(model)
        return made

    def save(self) -> None:
        """Writes job.json."""
        if self.processes.is_first:
            write_atomic(self.file, json.dumps(self.state, indent=2) + "\n")

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes the result; then what was only needed to continue goes. The first process alone calls this."""
        write_atomic(self.folder / "result.json", json.dumps(result, indent=2) + "\n")
        self.tidy()

    def tidy(self, names: tuple[str, ...] = (FITTED, DISTILLATION, NULL, TEACHER)) -> None:
        """Removes the stages of a job that is done."""
        for name in names:
            if self.processes.is_first and (self.folder / name).is_dir():
                remove_folder(self.folder / name)

    def _open(self, resume: bool) -> tuple[dict[str, Any], bool]:
        """The state to start from, and whether everything was done."""
        self.folder.mkdir(parents=True, exist_ok=True)
        clean_up(self.folder)
        done = (self.folder / "result.json").is_file()
        if not resume or not self.file.is_file():
            self._start()
            return self.state, False
        found = read_job(self.folder)
        _check_same(found["settings"], self.state["settings"], self.folder)
        return {**found, "arguments": found.get("arguments") or self.state["arguments"]}, done

    def _start(self) -> None:
        check_free(self.folder)
        self.tidy((FITTED, DISTILLATION))
        for name in ("result.json", "plan.json"):
            (self.folder / name).unlink(missing_ok=True)
        self.save()


def check_free(folder: Path) -> None:
    """A FileExistsError if a folder holds a job that was not finished."""
    if (folder / "job.json").is_file() and not (folder / "result.json").is_file():
        raise FileExistsError(
            f"condense: {folder} holds a job that was not finished. Continue it with --resume, or choose another "
            "--output."
        )


def read_job(folder: Path) -> dict[str, Any]:
    """What job.json of a folder says."""
    try:
        found = json.loads((folder / "job.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"condense: no job to continue in {folder}: {error}.") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"condense: {folder / 'job.json'} is not of format {FORMAT!r}.")
    return found


def digest(model: nn.Module) -> str:
    """A short fingerprint of the weights."""
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _check_same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    changed = [f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        raise ValueError(
            f"condense: the job in {folder} was started with other settings ({'; '.join(changed[:4])}). Continue it "
            "with the same ones, or choose another --output."
        )
