"""Every run that result files tell of: accuracy and, where it was measured, milliseconds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.condensation.latency import time_models
from pdecnn.models.build import build_model
from pdecnn.shared.progress import ProgressCallback
from pdecnn.shared.reading import MB, FileError, read_json
from pdecnn.training.inputs import input_of
from pdecnn.viz.studio.drawing import PALETTE, Chart, Series, chart, note, table

MAX_RESULT = 64 * MB
HERE = "optimized, measured here"
MAX_FILES = 2000


@dataclass(frozen=True, eq=False)
class Entry:
    """One network on one dataset; `times` are milliseconds of one image by runtime."""

    name: str
    dataset: str
    accuracy: float
    source: str
    times: Mapping[str, float]
    params: int | None = None
    epochs: str = ""
    detail: str = ""
    model: Mapping[str, Any] | None = None  # how to build it, to time it here


def read_runs(folders: Iterable[Path]) -> tuple[list[Entry], list[str]]:
    """All entries of all JSON files in the folders, and sentences about files that cannot be read."""
    found: list[Entry] = []
    troubles: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            troubles.append(f"There is no folder {folder}.")
            continue
        for path in sorted(folder.glob("**/*.json"))[:MAX_FILES]:
            try:
                content = read_json(path, MAX_RESULT)
                some = content if isinstance(content, list) else [content]
                found += [entry for run in some if isinstance(run, dict) for entry in _entries(run, path)]
            except (FileError, TypeError, ValueError, KeyError, AttributeError) as error:
                troubles.append(f"{path.name} is passed over: {error}")
    return found, troubles


def _entries(run: dict[str, Any], path: Path) -> Iterator[Entry]:
    """Those of a file of `results/`, of the frontier, of condensed photographs, or of one condense job."""
    if {"model", "dataset"} <= run.keys() and run.get("accuracy") is not None:
        seeds = ", ".join(map(str, run.get("seeds") or ()))
        built = (run.get("recipe") or {}).get("model")
        detail = f"seeds {seeds}" if seeds else ""
        yield Entry(
            str(run["model"]),
            str(run["dataset"]),
            float(run["accuracy"]),
            path.name,
            {},
            None,
            str(run.get("epochs", "")),
            detail,
            built,
        )
    elif {"teacher", "nets"} <= run.keys() and "test" in run["teacher"]:
        data = path.stem.partition("-")[2] or path.stem
        yield Entry("teacher", data, float(run["teacher"]["test"]), path.name, _batch_1(run["teacher"]))
        for name, net in run["nets"].items():
            tests = [float(seed["test"]) for seed in net["seeds"].values()]
            if not tests:  # not trained yet
                continue
            detail = f"mean of {len(tests)} seeds" if len(tests) > 1 else "one seed"
            yield Entry(
                name,
                data,
                mean(tests),
                path.name,
                _batch_1(net),
                net.get("params"),
                str(run.get("epochs", "")),
                detail,
            )
    elif "nets" in run and "images" in run:
        for name, net in run["nets"].items():
            yield from _photographs(name, net, run, path)
    elif {"before", "after", "plan", "accuracies"} <= run.keys():
        for which, stage in (("before", "teacher"), ("after", "distilled")):
            if stage in run["accuracies"]:
                ms = {"optimized": float(run[which]["ms_batch_1"])}
                name = f"{run['plan']['model']}, {which}"
                yield Entry(
                    name, path.parent.name, float(run["accuracies"][stage]), path.name, ms, run[which]["params"]
                )


def _photographs(name: str, net: dict[str, Any], run: dict[str, Any], path: Path) -> Iterator[Entry]:
    job, null = net["job"], net.get("null") or {}
    accuracies = {
        "teacher": job["accuracies"].get("teacher"),
        "condensed": job["accuracies"].get("distilled"),
        "null": (null.get("accuracies") or {}).get("distilled"),
    }
    params = {"teacher": job["params"]["before"], "condensed": job["params"]["after"], "null": null.get("params")}
    runtimes = {"torch_ms": "optimized", "onnx_ms": "onnx", "onnx_fused_ms": "onnx-fused"}
    timed = net.get("times") or job.get("times") or {}
    for which, accuracy in accuracies.items():
        if accuracy is None:
            continue
        times = {word: float(timed[key][which]) for key, word in runtimes.items() if which in timed.get(key, {})}
        label = name if which == "teacher" else f"{name}, {which}"
        detail = f"{timed.get('pixels', net.get('pixels'))} pixels"
        yield Entry(
            label, "imagenette", float(accuracy), path.name, times, params[which], str(run.get("epochs", "")), detail
        )


def _batch_1(net: Mapping[str, Any]) -> dict[str, float]:
    return {runtime: float(of["1"]["ms"]) for runtime, of in (net.get("times") or {}).items() if "1" in of}


def runtimes(entries: Sequence[Entry]) -> list[str]:
    """The runtimes that occur."""
    return list(dict.fromkeys(runtime for e in entries for runtime in e.times))


def datasets(entries: Sequence[Entry]) -> list[str]:
    """The datasets that occur."""
    return list(dict.fromkeys(e.dataset for e in entries))


def chosen(entries: Sequence[Entry], wanted: Sequence[str], text: str) -> list[Entry]:
    """Those of the datasets whose name or file holds the text."""
    low = text.strip().lower()
    return [e for e in entries if e.dataset in wanted and (low in e.name.lower() or low in e.source.lower())]


def picture(entries: Sequence[Entry], runtime: str) -> str:
    """Accuracy against milliseconds; a point tells its run on hover."""
    series = []
    for i, data in enumerate(datasets(entries)):
        some = [e for e in entries if e.dataset == data and runtime in e.times]
        if some:
            notes = [f"{e.name} on {e.dataset}: {e.accuracy:.2f} %, {e.times[runtime]:.3g} ms" + _more(e) for e in some]
            colour = PALETTE[i % len(PALETTE)]
            series.append(
                Series(data, [e.times[runtime] for e in some], [e.accuracy for e in some], colour, False, notes)
            )
    missing = sum(runtime not in e.times for e in entries)
    text = (
        f"{missing} of {len(entries)} have no milliseconds in this runtime and are in the table alone."
        if missing
        else ""
    )
    about = Chart("milliseconds, one image", "accuracy, %", "accuracy against milliseconds", log=True)
    return chart(series, about, 640, 380) + note(text)


def listing(entries: Sequence[Entry], runtime: str) -> str:
    """The same as a table, the most accurate first."""
    rows = [
        (
            e.name,
            f"{e.accuracy:.2f}",
            f"{e.times[runtime]:.3g}" if runtime in e.times else "-",
            e.dataset,
            f"{e.params:,}" if e.params else "-",
            e.epochs or "-",
            e.source,
        )
        for e in sorted(entries, key=lambda e: (e.dataset, -e.accuracy))
    ]
    return table(("network", "accuracy, %", "ms", "dataset", "parameters", "epochs", "file"), rows)


def measure_here(entries: Sequence[Entry], progress: ProgressCallback | None = None) -> tuple[list[Entry], list[str]]:
    """The entries with milliseconds of this machine for the networks that a registry can build and that have none."""
    nets: dict[int, nn.Module] = {}
    inputs: dict[int, Tensor] = {}
    troubles: list[str] = []
    for i, e in enumerate(entries):
        if e.times or not e.model:
            continue
        try:
            model = build_model(
                {key: e.model.get(key) for key in ("builder", "name", "kwargs") if e.model.get(key)}
            ).eval()
            nets[i], inputs[i] = model, torch.zeros(1, *input_of(model).shape)
        except (ValueError, RuntimeError, TypeError) as error:
            troubles.append(f"{e.name} cannot be built here: {error}")
    out = list(entries)
    for i, model in nets.items():
        try:
            ms = time_models({i: model}, inputs[i], "optimized", rounds=9, max_seconds=2.0, progress=progress)[i]
        except (ValueError, RuntimeError, TypeError) as error:
            troubles.append(f"{entries[i].name} cannot be timed: {error}")
            continue
        params = sum(p.numel() for p in model.parameters())
        out[i] = replace(entries[i], times={HERE: ms}, params=params)
    return out, troubles


def _more(e: Entry) -> str:
    parts = [
        f"{e.params:,} parameters" if e.params else "",
        f"{e.epochs} epochs" if e.epochs else "",
        e.detail,
    ]
    return "".join(f"; {line}" for line in (", ".join(p for p in parts if p), e.source) if line)
