"""Our own training runs, read from folders of results and found by the network that was trained."""

import inspect
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import timm
import torch
from timm.models import is_model, model_entrypoint

from pdecnn.models import LowCostConfig, LowCostNet
from pdecnn.models._options import PUBLISHED
from pdecnn.shared.reading import MB, FileError, read_json

MAX_RESULT = 64 * MB
NOT_THE_NETWORK = ("num_classes", "in_chans", "drop_rate", "drop_path_rate", "aux_logits")  # of data and training
DATASETS = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "stl10": "STL-10",
    "imagenet": "ImageNet",
    "imagenet100": "imagenet100",
}
OF_THE_RUN = ("model", "epochs", "seed", "tensorboard", "channels_last", "depthwise", "compile", "onednn")
OF_THE_RUN += ("evaluate_every", "checkpoint_every", "keep_checkpoints", "eval_batch_size", "train_limit", "test_limit")
FOLDERS = {1000: "ImageNet", 100: "imagenet100"}  # what a folder of so many classes is taken for
FOLDER_SIDE = 224  # of its images

OwnKey = tuple[str, str, str]  # model, dataset, options
Found = Mapping[OwnKey, Mapping["Training", list[float]]]


@dataclass(frozen=True)
class Training:
    """How a run was trained: epochs, optimiser, how many images where not all, a teacher, and the rate.

    `settings` are all others that change what is learned, as text; a table does not say them.
    """

    epochs: int | None = None
    optimizer: str = ""
    images: int | None = None
    distilled: bool = False
    rate: float | None = None
    settings: str = ""

    @property
    def how(self) -> str:
        """The optimiser and its rate: `sgd at 0.01`."""
        return self.optimizer if self.rate is None else f"{self.optimizer} at {self.rate:g}"

    @property
    def length(self) -> str:
        """The epochs as text: `30`, or `5 of 10,000 images`."""
        if self.epochs is None:
            return ""
        return f"{self.epochs}" if self.images is None else f"{self.epochs} of {self.images:,} images"


@dataclass(frozen=True)
class OwnRuns:
    """Our runs of one network on one dataset that were trained alike, one for each seed.

    Attributes:
        accuracies: In per cent, one for each seed.
        training: How they were trained.
        others: The runs of the same network that were trained otherwise.
    """

    accuracies: tuple[float, ...] = ()
    training: Training = field(default_factory=Training)
    others: tuple["OwnRuns", ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean accuracy; None without runs."""
        return mean(self.accuracies) if self.accuracies else None

    @property
    def epochs(self) -> str:
        """The length as text."""
        return self.training.length

    @property
    def figure(self) -> str:
        """The mean as a cell of a table has it, with a star if there was a teacher; empty without runs.

        Example:
            >>> OwnRuns((90.0,)).figure, OwnRuns((90.0,), Training(30, "kron", distilled=True)).figure
            ('90.00', '90.00*')
        """
        return "" if self.mean is None else f"{self.mean:.2f}" + "*" * self.training.distilled

    def describe(self) -> str:
        """How long, how and with how many seeds.

        Example:
            >>> OwnRuns((90.0, 91.0), Training(30, "kron", rate=0.05)).describe()
            '30 epochs, 2 seeds, kron at 0.05'
            >>> OwnRuns((90.0,), Training(30, "kron", distilled=True)).describe()
            '30 epochs, 1 seed, kron, distilled'
        """
        epochs, _, images = self.epochs.partition(" ")
        length = f"{epochs} epoch{'s' * (epochs != '1')} {images}".strip() if epochs else ""
        seeds = "1 seed" if len(self.accuracies) == 1 else f"{len(self.accuracies)} seeds"
        taught = "distilled" if self.training.distilled else ""
        return ", ".join(part for part in (length, seeds, self.training.how, taught) if part)

    def note(self) -> str:
        """What a table says under the mean: how these runs were trained, and what the others gave; empty without runs.

        Example:
            >>> OwnRuns((90.0,), Training(2, "sgd"), (OwnRuns((80.0,), Training(1, "sgd")),)).note()
            'ours: 2 epochs, 1 seed, sgd; otherwise 80.00 %, 1 epoch, 1 seed, sgd'
        """
        if not self.accuracies:
            return ""
        others = (f"otherwise {each.in_words()}" for each in self.others)
        return "; ".join((f"ours: {self.describe()}", *others))

    def in_words(self) -> str:
        """The mean, and how it was trained: `80.00 %, 1 epoch, 1 seed, sgd`."""
        return f"{self.mean:.2f} %, {self.describe()}"


def read_results(folder: str | Path) -> Found:
    """Our own runs by model, dataset and options, and then by how they were trained.

    Files of another form are not ours and are passed over. So are damaged ones, each named in a warning.
    """
    found: dict[OwnKey, dict[Training, list[float]]] = {}
    for path in sorted(Path(folder).glob("**/*.json")):
        try:
            content = read_json(path, MAX_RESULT)
            for run in content if isinstance(content, list) else [content]:
                if isinstance(run, dict) and {"model", "dataset"} <= run.keys() and run.get("accuracy") is not None:
                    _add(found, run, str(path))
        except FileError as error:
            warnings.warn(f"tables: {error} The file is passed over.", stacklevel=2)
    return found


def find_runs(found: Found, model: str, dataset: str, options: Mapping[str, Any] | None = None) -> OwnRuns:
    """The runs of one network among those of `read_results`, none at all if there are none.

    Where there are runs that were trained in different ways, those with the highest mean come first, and have the
    others as `others`.
    """
    trainings = found.get(_key(model, dataset, options or {}), {})
    runs = [OwnRuns(tuple(accuracies), training) for training, accuracies in trainings.items()]
    if not runs:
        return OwnRuns()
    first, *others = sorted(runs, key=lambda own: own.mean or 0.0, reverse=True)
    return OwnRuns(first.accuracies, first.training, tuple(others))


def _add(found: dict[OwnKey, dict[Training, list[float]]], run: Mapping[str, Any], where: str) -> None:
    """Adds a finished run; a FileError names a value that cannot be."""
    values = run.get("accuracies") or run["accuracy"]
    values = values if isinstance(values, list) else [values]
    epochs = run.get("epochs")
    recipe = _part(run, "recipe")
    kwargs = _part(_part(recipe, "model"), "kwargs")
    data = _part(recipe, "data")
    optimizer, limit, stream = _part(recipe, "optimizer"), data.get("train_limit"), _part(data, "stream")
    name, rate = optimizer.get("name"), optimizer.get("lr")
    checks: list[tuple[str, Any, Any]] = [
        ("model", run["model"], str),
        ("dataset", run["dataset"], str),
        ("epochs", 0 if epochs is None else epochs, int),
        ("optimizer", name or "", str),
        ("lr", rate or 0.0, (int, float)),
        ("train_limit", limit or 0, int),
        ("stream.num_classes", stream.get("num_classes") or 0, int),
        *(("accuracy", value, (int, float)) for value in values),
    ]
    for what, value, kind in checks:
        if isinstance(value, bool) or not isinstance(value, kind) or (what == "accuracy" and not 0 <= value <= 100):
            raise FileError(f"{where}: {what} is {value!r:.80}, which cannot be.")
    if not isinstance(kwargs.get("global_options") or {}, dict):
        raise FileError(f"{where}: global_options is {kwargs['global_options']!r:.80}, which cannot be.")
    trainings = found.setdefault(_key(run["model"], _dataset_name(run["dataset"], stream), kwargs), {})
    settings = json.dumps(_that_teach(recipe) or {}, sort_keys=True)
    training = Training(epochs, name or "", limit, bool(recipe.get("distill")), rate, settings)
    trainings.setdefault(training, []).extend(float(v) for v in values)


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a recipe; empty where it is missing or is no part."""
    part = values.get(name)
    return part if isinstance(part, dict) else {}


def _that_teach(value: Any) -> Any:
    """The settings that change what is learned, but for those that are off: older files do not name the newest."""
    if not isinstance(value, dict):
        return value
    kept = ((key, _that_teach(part)) for key, part in value.items() if key not in OF_THE_RUN)
    return {key: part for key, part in kept if part not in (None, False, 0, {}, [])}


def _key(model: str, dataset: str, options: Mapping[str, Any]) -> OwnKey:
    """The network of a row or of a run, whichever way its options are written."""
    changed = network_options(options, 1 if dataset == "ImageNet" else PUBLISHED.K)
    return model, dataset, json.dumps(without_defaults(model, changed) if changed else changed)


def network_options(options: Mapping[str, Any], K: int = PUBLISHED.K) -> dict[str, Any]:
    """What of a model's keywords makes it another network: not what data and training ask for, nor the default K.

    Example:
        >>> network_options({"num_classes": 100, "K": 5}), network_options({"global_options": {"K": 3}})
        ({}, {'K': 3})
    """
    kept = {k: v for k, v in options.items() if k not in NOT_THE_NETWORK and v is not None}
    changes = dict(kept.pop("global_options", None) or {})
    steps = {"K": kept.pop("K", K), **({"K": changes.pop("K")} if "K" in changes else {})}
    kept |= steps if steps["K"] != K else {}
    kept |= {"global_options": dict(sorted(changes.items()))} if changes else {}
    for name, usual in (("reading", "counts"), ("layout", "counts"), ("no_global", False)):
        if kept.get(name) == usual:
            del kept[name]
    return dict(sorted(kept.items()))


def without_defaults(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not the model's own; another equation has an f of its own, so that f stays with it.

    Example:
        >>> without_defaults("lowcost_explicit_a", {"h": 0.1, "kernel_size": 5})
        {'kernel_size': 5}
        >>> without_defaults("hyperbolic50_eq3", {"equation": "eq4", "f": 4, "activation": "softball"})
        {'equation': 'eq4', 'f': 4}
    """
    defaults = _defaults(model)
    kept = {k: v for k, v in options.items() if k not in defaults or defaults[k] != v}
    return {k: v for k, v in options.items() if k in kept or (k == "f" and "equation" in kept)}


@cache
def _defaults(model: str) -> Mapping[str, Any]:
    """The keywords of one of our models with their values where none are given; none of a model that is not ours."""
    if not is_model(model) or not model_entrypoint(model).__module__.startswith("pdecnn."):
        return {}
    try:
        with torch.device("meta"):
            net = timm.create_model(model)
    except ValueError:  # a name that stands for nothing without a description
        return {}
    cfg = LowCostConfig if isinstance(net, LowCostNet) else getattr(net, "cfg", None)
    found = {
        name: getattr(cfg, name, None) if keyword.default is None else keyword.default
        for name, keyword in inspect.signature(type(net)).parameters.items()
        if keyword.default is not keyword.empty
    }
    return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items() if v is not None}


def _dataset_name(name: str, stream: Mapping[str, Any]) -> str:
    """The dataset as tables call it; a folder is known by the number of its classes and the size of its images."""
    if name == "folder" and stream.get("image_size", FOLDER_SIDE) == FOLDER_SIDE:
        return FOLDERS.get(stream.get("num_classes", 0), name)
    return DATASETS.get(name.lower().replace("-", "").replace("_", ""), name)
