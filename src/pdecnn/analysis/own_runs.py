"""Our own training runs, read from folders of results and found by the network that was trained."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from pdecnn.models._options import PUBLISHED
from pdecnn.shared.reading import MB, FileError, read_json

MAX_RESULT = 64 * MB
NOT_THE_NETWORK = ("num_classes", "in_chans", "drop_rate", "drop_path_rate", "aux_logits")  # of data and training

OwnKey = tuple[str, str, str]  # model, dataset, options


@dataclass
class OwnRuns:
    """Our runs of one network on one dataset: the accuracy of each seed, and the lengths that occur, in epochs."""

    accuracies: list[float] = field(default_factory=list)
    lengths: set[int] = field(default_factory=set)

    @property
    def mean(self) -> float | None:
        """The mean accuracy; None without runs."""
        return mean(self.accuracies) if self.accuracies else None

    @property
    def epochs(self) -> str:
        """The lengths as text."""
        return ", ".join(map(str, sorted(self.lengths)))


def read_results(folder: str | Path) -> Mapping[OwnKey, OwnRuns]:
    """Our own runs by model, dataset and options; files of another form are not ours and are passed over.

    So are damaged ones, each named in a warning.
    """
    found: dict[OwnKey, OwnRuns] = {}
    for path in sorted(Path(folder).glob("**/*.json")):
        try:
            content = read_json(path, MAX_RESULT)
            for run in content if isinstance(content, list) else [content]:
                if isinstance(run, dict) and {"model", "dataset"} <= run.keys() and run.get("accuracy") is not None:
                    _add(found, run, str(path))
        except FileError as error:
            warnings.warn(f"tables: {error} The file is passed over.", stacklevel=2)
    return found


def find_runs(
    found: Mapping[OwnKey, OwnRuns], model: str, dataset: str, options: Mapping[str, Any] | None = None
) -> OwnRuns:
    """The runs of one network among those of `read_results`; none at all if there are none."""
    return found.get(_key(model, dataset, options or {}), OwnRuns())


def _add(found: dict[OwnKey, OwnRuns], run: Mapping[str, Any], where: str) -> None:
    """Adds a finished run; a FileError names a value that cannot be."""
    values = run.get("accuracies") or run["accuracy"]
    values = values if isinstance(values, list) else [values]
    epochs = run.get("epochs")
    checks: list[tuple[str, Any, Any]] = [
        ("model", run["model"], str),
        ("dataset", run["dataset"], str),
        ("epochs", 0 if epochs is None else epochs, int),
        *(("accuracy", value, (int, float)) for value in values),
    ]
    for name, value, kind in checks:
        if isinstance(value, bool) or not isinstance(value, kind) or (name == "accuracy" and not 0 <= value <= 100):
            raise FileError(f"{where}: {name} is {value!r:.80}, which cannot be.")
    recipe = run.get("recipe")
    model = recipe.get("model") if isinstance(recipe, dict) else None
    kwargs = model.get("kwargs") if isinstance(model, dict) else None
    options = kwargs if isinstance(kwargs, dict) else {}
    if not isinstance(options.get("global_options") or {}, dict):
        raise FileError(f"{where}: global_options is {options['global_options']!r:.80}, which cannot be.")
    own = found.setdefault(_key(run["model"], _dataset_name(run["dataset"]), options), OwnRuns())
    own.accuracies.extend(float(v) for v in values)
    own.lengths |= {epochs} if epochs is not None else set()


def _key(model: str, dataset: str, options: Mapping[str, Any]) -> OwnKey:
    """The network of a row or of a run, whichever way its options are written."""
    return model, dataset, json.dumps(network_options(options, 1 if dataset == "ImageNet" else PUBLISHED.K))


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
    if kept.get("reading") == "counts":
        del kept["reading"]
    return dict(sorted(kept.items()))


def _dataset_name(name: str) -> str:
    known = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
    return known.get(name.lower().replace("-", "").replace("_", ""), name)
