"""The tables of [KS22] again: what is printed there, beside what we count, measure and have trained."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import timm
import torch
from rich.console import Group
from rich.table import Table as RichTable
from torch import nn

from pdecnn.analysis import latency
from pdecnn.analysis.cost import profile
from pdecnn.analysis.own_runs import OwnRuns, find_runs, read_results
from pdecnn.analysis.published import TITLES, Row, rows
from pdecnn.layers.blocks import BasicBlock
from pdecnn.layers.global_layer import GlobalLayer
from pdecnn.models.cifar_densenet import DenseLayer
from pdecnn.models.darts_cell import Cell
from pdecnn.shared.progress import ProgressCallback, begin, counted
from pdecnn.shared.tables import Name, make_table, short

ROUNDS = 20  # of timing, at most
FITTED = ("velocity", "diffusion", "h_prev", "coef_bias")  # options of a Global layer that follow the reading
TAUGHT = "trained with a teacher; where the net was trained alone too, its note has that figure"
CELLS = (BasicBlock, DenseLayer, Cell)

Prepare = Callable[[nn.Module, torch.Tensor], nn.Module]


@dataclass(frozen=True)
class Counts:
    """Our counts of a network for one image."""

    params: int
    params_without_classifier: int
    thop: int
    conv_fc: int
    exact: int


@dataclass(frozen=True)
class Entry:
    """A row as printed, and ours.

    Attributes:
        row: What the paper prints.
        counts: Our counts; None if we do not build this network.
        text: Our counts in the reading of the paper's text, where that is another network.
        latency_ms: Median latency of one image in milliseconds on this machine; None if not measured.
        own: Our own runs.
        own_text: Our own runs in the reading of the text.
        own_null: Our own runs of the null: the same net without its Global layers.
        cells: Blocks of the original net and Global layers that ours has, such as `"6+3"`.
        base: Our counts of the net of the same table that this one condenses.
    """

    row: Row
    counts: Counts | None
    latency_ms: float | None = None
    own: OwnRuns = field(default_factory=OwnRuns)
    text: Counts | None = None
    own_text: OwnRuns = field(default_factory=OwnRuns)
    own_null: OwnRuns = field(default_factory=OwnRuns)
    cells: str = ""
    base: Counts | None = None

    @property
    def saves_params(self) -> float | None:
        """How many times fewer parameters the net has than the one it condenses, by our counts."""
        return self.base.params / self.counts.params if self.base and self.counts else None

    @property
    def saves_macs(self) -> float | None:
        """The like of exact multiply-adds."""
        return self.base.exact / self.counts.exact if self.base and self.counts else None

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy of our own runs in per cent; None if there are none."""
        return self.own.mean

    @property
    def params(self) -> int | None:
        """Our count of what the published parameters count."""
        if self.counts is None:
            return None
        return self.counts.params if self.row.with_classifier else self.counts.params_without_classifier

    @property
    def macs(self) -> int | None:
        """Our count in the convention of the published MACs."""
        return None if self.counts is None else int(getattr(self.counts, self.row.convention))

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        row, counts = self.row, self.counts
        return {
            "table": row.table,
            "name": row.name,
            "dataset": row.dataset,
            "model": row.model,
            "options": json.dumps(dict(row.options), sort_keys=True) if row.options else "",
            "params_published": row.params,
            "params": self.params,
            "params_with_classifier": counts.params if counts else None,
            "params_text": self.text.params if self.text else None,
            "macs_published": row.macs,
            "macs_thop": counts.thop if counts else None,
            "macs_conv_fc": counts.conv_fc if counts else None,
            "macs_exact": counts.exact if counts else None,
            "macs_text": self.text.thop if self.text else None,
            "accuracy_published": row.accuracy,
            "accuracy": self.accuracy,
            "runs": len(self.own.accuracies),
            "epochs": self.own.epochs,
            "optimizer": self.own.training.optimizer,
            "other_runs": "; ".join(own.in_words() for own in self.own.others),
            "accuracy_text": self.own_text.mean,
            "runs_text": len(self.own_text.accuracies),
            "epochs_text": self.own_text.epochs,
            "accuracy_null": self.own_null.mean,
            "runs_null": len(self.own_null.accuracies),
            "epochs_null": self.own_null.epochs,
            "latency_ms": self.latency_ms,
            "cells_published": row.cells,
            "cells": self.cells,
            "v100_train_s": row.train_s,
            "v100_inference_s": row.infer_s,
            "replaces": row.replaces,
            "saves_params": self.saves_params,
            "saves_macs": self.saves_macs,
            "why_params_differ": row.params_differ,
            "why_macs_differ": row.macs_differ,
            "remark": row.remark,
        }


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    number: int
    entries: tuple[Entry, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return [entry.to_dict() for entry in self.entries]

    def __rich__(self) -> Group:
        timed = any(entry.latency_ms is not None for entry in self.entries)
        trained = any(how_long(entry) for entry in self.entries)
        numbers = ["params\nprinted", "\nours", "MACs\nprinted", "\nthop", "conv\n+fc", "\nexact", "acc. %\nprinted"]
        numbers += ["\nours"] * trained + ["batch 1\nms"] * timed
        table = make_table(f"Table {self.number}. {TITLES[self.number]}", ("\nrow", "\ndataset"), numbers)
        notes = Notes()
        for entry in self.entries:
            name, *row = _cells(entry, notes)
            row += [notes.mark(entry.own.figure, how_long(entry))] * trained
            table.add_row(Name(name), *row, *[_number(entry.latency_ms)] * timed)
        taught = [f"  *  {TAUGHT}"] * any(entry.own.training.distilled for entry in self.entries)
        return Group(table, *taught, *notes.lines(), *self._second())

    def _second(self) -> Iterator[RichTable | str]:
        """What else the paper prints in some of its tables: cells and seconds; and what is saved, by our counts."""
        built = any(entry.row.cells or entry.row.train_s for entry in self.entries)
        chosen = self.entries if built else [entry for entry in self.entries if entry.row.replaces]
        if not chosen:
            return
        heads = ("cells\nprinted", "\nours", "V100 s\ntrain", "\ninfer.") if built else ()
        table = make_table("", ("\nrow", "\ndataset"), (*heads, "saving\nparams", "\nMACs"))
        for entry in chosen:
            row, printed = entry.row, ()
            if built:
                printed = (row.cells, entry.cells, _number(row.train_s), _number(row.infer_s))
            saved = (f"{value:.1f}x" if value else "" for value in (entry.saves_params, entry.saves_macs))
            table.add_row(Name(row.name), row.dataset, *printed, *saved)
        yield ""
        yield table
        if any(entry.row.replaces and not entry.row.with_classifier for entry in self.entries):
            yield "  savings are of whole nets, classifiers and PDE steps counted on both sides"


class Notes:
    """The notes under a table, each with its letter."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}

    def mark(self, text: str, why: str) -> str:
        """The text with the letter of its note, if it has one.

        Example:
            >>> notes = Notes()
            >>> notes.mark("9M", "rounded"), notes.mark("1.3B", ""), list(notes.lines())
            ('9M a', '1.3B', ['  a  rounded'])
        """
        if not why:
            return text
        return f"{text} {self.letters.setdefault(why, _letter(len(self.letters)))}"

    def lines(self) -> Iterator[str]:
        """One line per note."""
        return (f"  {letter}  {why}" for why, letter in self.letters.items())


def _letter(n: int) -> str:
    return ascii_lowercase[n] if n < 26 else _letter(n // 26 - 1) + _letter(n % 26)


def how_long(entry: Entry) -> str:
    """Of our accuracy, how it was trained, and what other runs of ours gave: `ours: 30 epochs, 3 seeds, kron`."""
    parts = [entry.own.note()] if entry.own.accuracies else []
    for what, own in (("as the text reads", entry.own_text), ("without its Global layers", entry.own_null)):
        parts += [f"{what}: {each.in_words()}" for each in (own, *own.others) if each.accuracies]
    return "; ".join(parts)


def _readings(entry: Entry) -> str:
    """Which reading of the paper our count is of, and what the other gives."""
    if entry.text is None:
        return ""
    return f"fitted to the printed counts; as the text reads: {short(entry.text.params)}, {short(entry.text.thop)} MACs"


def _cells(entry: Entry, notes: Notes) -> list[str]:
    """A row of text."""
    row, counts = entry.row, entry.counts
    ours = ["", "", ""] if counts is None else [short(n) for n in (counts.thop, counts.conv_fc, counts.exact)]
    params = "" if entry.params is None else short(entry.params)
    which = "" if row.with_classifier else "without the classifier, as the printed figure"
    return [
        notes.mark(row.name, row.remark),
        row.dataset,
        notes.mark(row.params, row.params_differ),
        notes.mark(params, which or _readings(entry)),
        notes.mark(row.macs, row.macs_differ),
        *ours,
        _number(row.accuracy),
    ]


def build_table(
    number: int,
    *,
    measure_latency: bool = False,
    prepare: Prepare | None = None,
    results: str | Path | None = "results",
    progress: ProgressCallback | None = None,
) -> Table:
    """Counts every network of a table, and times it if asked.

    Args:
        number: 1 to 8.
        measure_latency: Whether to time one image through every network.
        prepare: What is done to a network before it is timed, such as `optimize_for_inference`.
        results: Folder with our own runs: JSON files that hold a dict, or a list of dicts, with the keys `model`,
            `dataset` and `accuracy` (per cent; a number or one per seed, or the mean of `accuracies`), and `epochs`, as
            `result.json` of a training run.
        progress: Called with each network that is counted and each round of timing, as `plan` does.

    Example:
        >>> table = build_table(1, results=None)
        >>> [(e.row.name, e.params) for e in table.entries]
        [('ResNet-32', 466906), ('MDEQ (small)', 1113850), ('ResNet-Global', 161850)]
    """
    published = rows(number)
    timings = _latencies(published, prepare, progress) if measure_latency else {}
    found = read_results(results) if results is not None else {}
    replaced = {row.replaces for row in published}
    bases = {(row.name, row.dataset): count(row) for row in published if row.name in replaced}
    entries = []
    for row in counted(published, progress, f"counting the networks of table {number}"):
        own = find_runs(found, row.model, row.dataset, row.options)
        counts = count(row) if row.model else None
        other = as_the_text_reads(row)
        text = None if other is None else count(other)
        own_text = OwnRuns() if other is None else find_runs(found, row.model, row.dataset, other.options)
        entries.append(
            Entry(
                row,
                counts,
                timings.get(_key(row)),
                own,
                text if text != counts else None,
                own_text,
                find_runs(found, row.model, row.dataset, {**row.options, "no_global": True}),
                count_cells(row) if row.cells or row.train_s else "",
                bases.get((row.replaces, row.dataset)),
            )
        )
    return Table(number, tuple(entries))


def as_the_text_reads(row: Row) -> Row | None:
    """The row with its network in the reading of the paper's text; None if there is no other reading of it."""
    if not row.has_readings:
        return None
    changes = {k: v for k, v in row.options.get("global_options", {}).items() if k not in FITTED}
    options = {k: v for k, v in row.options.items() if k != "global_options"}
    return replace(row, options={**options, **({"global_options": changes} if changes else {}), "reading": "text"})


def count(row: Row) -> Counts:
    """Our counts of the network of a row."""
    return _count(*_key(row), row.input_shape)


@cache
def _count(model: str, options: str, num_classes: int, shape: tuple[int, ...]) -> Counts:
    # Solvers that stop when they have converged need numbers; large nets are counted without any.
    device = "meta" if shape[-1] > 32 else "cpu"
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(0)
        net, x = _create(model, options, num_classes), torch.randn(shape)
    report = profile(net, x)
    classifier: nn.Module = net.get_classifier()  # type: ignore[operator, assignment]
    without = report.params - sum(p.numel() for p in classifier.parameters())
    return Counts(report.params, without, report.thop, report.conv_fc, report.exact)


def count_cells(row: Row) -> str:
    """The depth of the network of a row as the paper prints it: blocks of the original net and Global layers.

    Example:
        >>> from pdecnn.analysis.published import rows
        >>> count_cells(rows(1)[2])
        '4+3'
    """
    if not row.model:
        return ""
    with torch.device("meta"):
        net = _create(*_key(row))
    cells = added = 0
    waiting = [net]
    while waiting:
        module = waiting.pop()
        if isinstance(module, GlobalLayer):
            added += 1
        elif isinstance(module, CELLS):
            cells += 1
        else:
            waiting += module.children()
    return f"{cells}+{added}" if cells + added else ""


def _create(model: str, options: str, num_classes: int) -> nn.Module:
    net: nn.Module = timm.create_model(model, num_classes=num_classes, **json.loads(options))
    return net


def _key(row: Row) -> tuple[str, str, int]:
    return row.model, json.dumps(dict(row.options), sort_keys=True), row.num_classes


def _latencies(
    published: Iterable[Row], prepare: Prepare | None, progress: ProgressCallback | None
) -> dict[tuple[str, str, int], float]:
    """Milliseconds for one image, all networks in interleaved rounds."""
    candidates = {}
    for row in published:
        if row.model and _key(row) not in candidates:
            x = torch.randn(row.input_shape)
            net = _create(*_key(row))
            net = prepare(net, x) if prepare else net.eval()
            candidates[_key(row)] = _forward(net, x)
    names = {str(key): key for key in candidates}
    done = begin(progress, f"timing {len(names)} networks", ROUNDS)
    calls = {name: candidates[key] for name, key in names.items()}
    with torch.no_grad():
        timings = latency.measure(calls, rounds=ROUNDS, max_seconds=60.0, done=done)
    return {key: 1e3 * timings[name].median for name, key in names.items()}


def _forward(net: nn.Module, x: torch.Tensor) -> Any:
    return lambda: net(x)


def to_csv(tables: Iterable[Table]) -> str:
    """All rows of the tables, with a header."""
    dicts = [d for table in tables for d in table.to_dicts()]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(dicts[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(dicts)
    return text.getvalue()


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.2f}"
