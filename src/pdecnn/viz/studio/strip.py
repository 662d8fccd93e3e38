"""A network as a strip of its blocks by resolution: how much each costs, what goes, what comes, what stays and why."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby

import torch
from torch import nn

from pdecnn.analysis.cost import profile
from pdecnn.condensation.find import CONTAINERS
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.record import record
from pdecnn.condensation.replacements import NOTHING, PAPER, PDE
from pdecnn.condensation.site import Run
from pdecnn.shared.names import child_path, is_within
from pdecnn.shared.tables import short
from pdecnn.viz.studio.drawing import PALETTE

MAX_CELLS = 400


@dataclass(frozen=True)
class Cell:
    """One block of the strip, in the order of the forward pass."""

    path: str
    kind: str
    shape: tuple[int, ...]  # of one sample, as it leaves the block
    params: int
    macs: int
    reason: str = ""  # why it was left alone, where it was looked at
    run: int = -1  # which run of the plan it belongs to
    place: int = -1  # which block of that run


def cells(model: nn.Module, x: torch.Tensor, plan: Plan) -> tuple[Cell, ...]:
    """The blocks of a model, by the runs and the skipped places of its plan."""
    seen, cost = record(model, (x,)), profile(model, x)
    places = {
        m: (i, n) for i, run in enumerate(plan.runs) for n, unit in enumerate(run.units) for m in _paths(run, unit)
    }
    skipped = {s.path: s.reason for s in plan.skipped}
    spans = {path: reason for path, reason in skipped.items() if path not in dict(model.named_modules())}
    special = [*places, *skipped]
    found: list[tuple[int, Cell]] = []

    def visit(path: str, module: nn.Module, reason: str) -> None:
        reason = skipped.get(path, reason)
        inside = [s for s in special if s != path and is_within(s, path)]
        alone = bool(reason) and not any(s in places for s in inside)
        opened = path not in places and not alone and (not path or inside or isinstance(module, CONTAINERS))
        if opened and any(True for _ in module.children()):
            for name, child in module.named_children():
                visit(child_path(path, name), child, reason or _span(path, name, spans))
            return
        calls = seen.calls.get(path, [])
        if not calls or not calls[0].shape:
            return
        own = cost.subtree(path)
        if own.params == 0 and own.exact == 0:
            return
        run, place = places.get(path, (-1, -1))
        cell = Cell(path, type(module).__name__, calls[0].shape[1:], own.params, own.exact, reason, run, place)
        found.append((calls[0].start, cell))

    visit("", model, "")
    ordered = [cell for _, cell in sorted(found, key=lambda item: item[0])]
    return tuple(_joined(ordered))


def draw(cells: Sequence[Cell], runs: Sequence[Run]) -> str:
    """The strip as HTML: a bar for each block, as high as its share of the multiply-adds."""
    if len(cells) > MAX_CELLS:
        return f'<p class="quiet">{len(cells)} blocks are too many to draw.</p>'
    most = max((cell.macs for cell in cells), default=0) or 1
    groups = []
    for size, members in groupby(cells, key=lambda c: _resolution(c.shape)):
        bars = "".join(_bar(cell, runs, most) for cell in members)
        groups.append(f'<div class="stage"><div class="skyline">{bars}</div><small>{escape(size)}</small></div>')
    entries = [(_says(run), PALETTE[i % len(PALETTE)]) for i, run in enumerate(runs)]
    items = "".join(f'<span><i style="background:{c}"></i>{escape(n)}</span>' for n, c in entries)
    if any(cell.reason and cell.run < 0 for cell in cells):
        items += '<span><i class="alone"></i>left alone: point at it for the reason</span>'
    return f'<div class="strip" role="list">{"".join(groups)}</div><div class="legend">{items}</div>'


def _bar(cell: Cell, runs: Sequence[Run], most: int) -> str:
    high = 14 + round(86 * cell.macs / most)
    shape = "x".join(map(str, cell.shape))
    text = f"{cell.path}: {cell.kind}, {shape}, {short(cell.params)} parameters, {short(cell.macs)} MACs"
    style, kind, after = f"height:{high}px", "alone" if cell.reason else "plain", ""
    if cell.run >= 0:
        run = runs[cell.run]
        colour, stays = PALETTE[cell.run % len(PALETTE)], cell.place < run.keep or not run.condenses
        kind = "kept" if stays else "gone"
        text += ". It stays." if stays else ". It goes."
        style += f";--run:{colour}"
        if run.condenses and cell.place == len(run.units) - 1 and run.replacement != NOTHING:
            after = _new(run, colour, most)
    elif cell.reason:
        text += f". Left alone: {cell.reason}."
    return _block(kind, style, text) + after


def _block(kind: str, style: str, text: str, sign: str = "") -> str:
    tip = escape(text, quote=True)
    says = f'role="listitem" tabindex="0" data-tip="{tip}" aria-label="{tip}"'
    return f'<span class="block {kind}" style="{style}" {says}>{sign}</span>'


def _new(run: Run, colour: str, most: int) -> str:
    high = 14 + round(86 * run.layer_cost.macs / most)
    text = f"New: {_says(run)}; {short(run.layer_cost.params)} parameters, {short(run.layer_cost.macs)} MACs."
    return _block("new", f"height:{high}px;--run:{colour}", text, "+")


def _says(run: Run) -> str:
    if not run.condenses:
        return f"{run.path}: unchanged"
    steps = f" K={run.K}" if run.replacement in (PAPER, PDE) else ""
    put = "" if run.replacement == NOTHING else f" + {run.replacement}{steps}"
    return f"{run.path}: {len(run.units)} → {run.keep}{put}"


def _resolution(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape[1:])) if len(shape) > 1 else "head"


def _paths(run: Run, unit: tuple[str, ...]) -> list[str]:
    return [run.child(name) for name in unit]


def _span(parent: str, name: str, spans: dict[str, str]) -> str:
    """The reason of a skipped run such as `layer1.0-4` that this child belongs to."""
    for path, reason in spans.items():
        home, _, span = path.rpartition(".")
        first, dash, last = span.partition("-")
        if home == parent and dash and (name in (first, last) or _between(name, first, last)):
            return reason
    return ""


def _between(name: str, first: str, last: str) -> bool:
    return all(q.isdecimal() for q in (name, first, last)) and int(first) <= int(name) <= int(last)


def _joined(found: Sequence[Cell]) -> list[Cell]:
    """A norm that follows as a sibling belongs to the block before it: one bar for both."""
    out: list[Cell] = []
    for cell in found:
        before = out[-1] if out else None
        same = before and (before.run, before.place) == (cell.run, cell.place) and cell.run >= 0
        norm = before and cell.run < 0 and before.run < 0 and "Norm" in cell.kind and before.shape == cell.shape
        if before and (same or norm):
            out[-1] = replace(
                before, params=before.params + cell.params, macs=before.macs + cell.macs, shape=cell.shape
            )
        else:
            out.append(cell)
    return out
