"""The folder of a run: resolved recipe, environment, logs, curves, and checkpoints."""

import csv
import io
import json
import logging
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from pdecnn.shared.environment import cpu_name
from pdecnn.shared.files import clean_up, point_to, remove_folder, saving, write_atomic
from pdecnn.shared.locks import Lock
from pdecnn.training.checkpoint import CheckpointError, read_json, verify
from pdecnn.training.evaluation import Metrics
from pdecnn.training.recipe import Recipe, load_recipe

log = logging.getLogger(__name__)


class RunFolder:
    """Owner of the files of one run.

    Layout: `recipe.yaml`, `environment.json`, `metrics.csv`, `confusion.csv`, `learning_curve.png`, `confusion.png`,
    `result.json`, `tensorboard/`, `checkpoints/step-*`, and the links `last` and `best` into the latter.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self._lock = Lock(self.path)

    def open(self, recipe: Recipe, *, resume: bool) -> Recipe | None:
        """Creates the folder, or checks that the run in it is the one to be continued; until `close` it is ours.

        Returns the recipe of that run, in which nothing is left to `auto`.
        """
        file, saved = self.path / "recipe.yaml", None
        if file.is_file():
            if not resume:
                raise FileExistsError(
                    f"train: {self.path} holds a run already. Continue it with --resume, or choose another --output."
                )
            saved = load_recipe(file)
            _check_same(saved, recipe, self.path)
        with saving(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        self._lock.acquire("train")
        clean_up(self.path)
        clean_up(self.checkpoints)
        write_atomic(self.path / "environment.json", json.dumps(environment(), indent=2))
        return saved

    def write_recipe(self, recipe: Recipe) -> None:
        """Keeps the settings of a run that starts; from here on it can be resumed."""
        write_atomic(self.path / "recipe.yaml", recipe.to_yaml())

    def close(self) -> None:
        """Lets others have the folder."""
        self._lock.release()

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of a step goes; a damaged one that is there is set aside, not replaced."""
        path = self.checkpoints / f"step-{step:09d}"
        if path.is_dir():
            try:
                verify(path, required=True)
            except CheckpointError:
                aside = path.with_name(f"damaged-{path.name}")
                if aside.is_dir():
                    remove_folder(aside)
                with saving(path):
                    os.replace(path, aside)
        return path

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole; damaged ones are named in the log and passed over."""
        for path in sorted(self.checkpoints.glob("step-*"), reverse=True):
            try:
                verify(path, required=True)
            except CheckpointError as error:
                log.warning("%s The one before it is used.", error)
            else:
                return path
        return None

    def link(self, path: Path, *, best: bool) -> None:
        """Moves the links to a checkpoint."""
        point_to(self.path / "last", path)
        if best:
            point_to(self.path / "best", path)

    def saved(self, path: Path, *, best: bool, keep: int) -> None:
        """Moves the links to a new checkpoint and deletes old ones, except the last `keep` and the best."""
        self.link(path, best=best)
        link = self.path / "best"
        spared = link.resolve() if link.is_symlink() else None
        for old in sorted(self.checkpoints.glob("step-*"))[:-keep]:
            if old.resolve() != spared:
                remove_folder(old)

    def write_history(self, history: list[dict[str, Any]]) -> None:
        """Writes metrics.csv anew, one row per epoch, so that a resumed run never repeats a row."""
        if not history:
            return
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(history[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
        write_atomic(self.path / "metrics.csv", text.getvalue())

    def write_result(self, result: dict[str, Any], metrics: Any, classes: tuple[str, ...]) -> None:
        """Writes result.json, the confusion matrix and, where matplotlib is installed, the figures."""
        write_atomic(self.path / "result.json", json.dumps(result, indent=2))
        if metrics is not None and len(metrics.confusion):
            rows = [",".join(["", *classes]), *self._confusion_rows(metrics, classes)]
            write_atomic(self.path / "confusion.csv", "\n".join(rows) + "\n")
        from pdecnn.training.plots import draw_confusion, draw_curve

        try:
            draw_curve(self.path / "learning_curve.png", result["curve"])
            if metrics is not None and 0 < len(metrics.confusion) <= 20:
                draw_confusion(self.path / "confusion.png", metrics.confusion, classes)
        except ModuleNotFoundError:
            log.info('No figures: matplotlib is missing; pip install "pdecnn[viz]".')

    @staticmethod
    def _confusion_rows(metrics: Metrics, classes: tuple[str, ...]) -> list[str]:
        return [
            ",".join([name, *map(str, row)]) for name, row in zip(classes, metrics.confusion.tolist(), strict=False)
        ]


def _check_same(saved: Recipe, wanted: Recipe, path: Path) -> None:
    old, new = _flat(saved.model_dump(mode="json")), _flat(wanted.model_dump(mode="json"))
    differ = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    changed = [f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in differ if new.get(key) != "auto"]
    if changed:
        raise ValueError(
            f"train: the run in {path} was started with another recipe ({'; '.join(changed[:4])}). Continue it with "
            "the same settings, or choose another --output."
        )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat


def environment() -> dict[str, Any]:
    """The machine and the versions of what matters."""
    return {"machine": machine(), "versions": versions()}


def machine() -> dict[str, Any]:
    """Processor, cores and threads."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "system": platform.system(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers."""
    found = {"python": platform.python_version()}
    for package in ("pdecnn", "torch", "torchvision", "timm", "accelerate", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def read_state(path: Path) -> dict[str, Any]:
    """The training state kept in a checkpoint; the losses of its history may be NaN."""
    return read_json(path / "state.json", nan_in=("history",))
