"""The tables of the three papers, beside our counts and our own runs: what `pdecnn tables` prints, as Markdown."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from house.results import ROOT, markdown
from pdecnn.analysis import hyperbolic_tables, lowcost_tables
from pdecnn.analysis.published import TITLES
from pdecnn.analysis.tables import TAUGHT, Notes, Table, build_table, how_long
from pdecnn.shared.tables import short

RESULTS = ROOT / "results"
HEADS = {
    "name": "row",
    "dataset": "data",
    "size": "size",
    "activation": "activation",
    "params_published": "parameters, printed",
    "params": "ours",
    "macs_published": "MACs, printed",
    "macs": "MACs, ours",
    "accuracy_published": "accuracy, printed",
    "accuracy": "ours, %",
}


def global_table(number: int) -> str:
    """A table of the Global paper."""
    table = build_table(number, results=RESULTS)
    notes, rows = Notes(), []
    for entry in table.entries:
        row, counts = entry.row, entry.counts
        macs = [short(n) for n in (counts.thop, counts.conv_fc, counts.exact)] if counts else [""] * 3
        params = "" if entry.params is None else short(entry.params)
        rows.append(
            [
                _mark(notes, row.name, row.remark),
                row.dataset,
                _mark(notes, row.params, row.params_differ),
                _mark(notes, params, "" if row.with_classifier else "without the classifier, as the printed figure"),
                _mark(notes, row.macs, row.macs_differ),
                *macs,
                _number(row.accuracy),
                _mark(notes, entry.own.figure.replace("*", r"\*"), how_long(entry)),
            ]
        )
    header = ["row", "data", "parameters, printed", "ours", "MACs, printed", "thop", "conv + fc", "exact"]
    header += ["accuracy, printed", "ours"]
    under = "\n".join(f"- *{letter}*: {why}" for why, letter in notes.letters.items())
    if any(entry.own.training.distilled for entry in table.entries):
        under = f"- \\*: {TAUGHT}\n{under}"
    return f"## Table {number}. {TITLES[number]}\n\n{markdown(*_filled(header, rows))}\n\n{under}\n\n{_seconds(table)}"


def _seconds(table: Table) -> str:
    """Cells and seconds, which Tables 1 and 4 print too."""
    rows = [
        [e.row.name, e.row.cells or "", e.cells, _number(e.row.train_s), _number(e.row.infer_s)]
        for e in table.entries
        if e.row.cells or e.row.train_s
    ]
    header = ["row", "cells", "cells, ours", "V100, training, s", "V100, inference, s"]
    return f"As printed, but for our cells:\n\n{markdown(*_filled(header, rows))}" if rows else ""


def other_tables(module: Any) -> str:
    """The tables of one of the other two papers."""
    parts = []
    for table in module.build_tables(results=RESULTS):
        notes = Notes()
        columns = table.columns
        rows = [[_mark(notes, _cell(r[c]), lowcost_tables.why(r, c)) for c in columns] for r in table.rows]
        under = "\n".join(f"- *{letter}*: {why}" for why, letter in notes.letters.items())
        heads = [HEADS.get(c, c) for c in columns]
        parts.append(f"## {table.title}\n\n{markdown(*_filled(heads, rows))}\n\n{under}")
    return "\n\n".join(parts)


def _filled(header: list[str], rows: list[list[str]]) -> tuple[list[str], Iterable[list[str]]]:
    """Without columns that are empty in every row."""
    kept = [i for i in range(len(header)) if any(str(row[i]) for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _mark(notes: Notes, text: str, why: str) -> str:
    """The text with the letter of its note."""
    marked = notes.mark(text, why)
    return f"{text} *{marked.rsplit(' ', 1)[1]}*" if why else text


def _cell(value: Any) -> str:
    if value is None or value == 0:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


TABLES: dict[str, Callable[[], str]] = {
    **{f"global-{n}": partial(global_table, n) for n in TITLES},
    "lowcost": partial(other_tables, lowcost_tables),
    "hyperbolic": partial(other_tables, hyperbolic_tables),
}
