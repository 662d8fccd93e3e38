"""What all tabs draw with: maps as pictures, arrows over them, and charts, as HTML and SVG text."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from pdecnn.shared.extras import require

BLUE, RED, GREY = "#1f6f8b", "#b5493a", "#9aa5b1"
PALETTE = ("#1f6f8b", "#c9772b", "#6a8a2f", "#8a4f9e", "#b5493a", "#3d6bb3", "#8a7a1f", "#3f8f77")
ARROWS = 12  # along the longer side


@dataclass(frozen=True)
class Series:
    """Points of one colour in a chart, joined by a line or not; `notes` are shown on hover."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = BLUE
    line: bool = True
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """What a chart says beside its points."""

    x: str
    y: str
    title: str
    marks: Sequence[tuple[float, str]] = field(default_factory=tuple)  # vertical lines: where, and what they say
    whole: bool = False  # ticks of x are whole numbers
    log: bool = False  # x is drawn by its logarithm


def paint(
    values: Tensor | np.ndarray, *, low: float | None = None, high: float | None = None, cmap: str = "viridis"
) -> np.ndarray:
    """A map `(H, W)` as a picture `(H, W, 3)` of bytes, from `low` (dark) to `high`; what is not finite is red."""
    v = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(v)
    low = float(v[finite].min()) if low is None and finite.any() else low or 0.0
    high = float(v[finite].max()) if high is None and finite.any() else high or 0.0
    share = np.clip((np.where(finite, v, low) - low) / ((high - low) or 1.0), 0.0, 1.0)
    colours = require("matplotlib", "studio").colormaps[cmap](share)[..., :3]
    picture: np.ndarray = np.rint(255 * colours).astype(np.uint8)
    picture[~finite] = (181, 73, 58)
    return picture


def to_uri(picture: np.ndarray) -> str:
    """Bytes `(H, W)` or `(H, W, 3)` as the address of a PNG that holds itself."""
    png = io.BytesIO()
    Image.fromarray(picture).save(png, "png")
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def enlarge(picture: np.ndarray, least: int = 256) -> np.ndarray:
    """The picture with every pixel repeated, so that its longer side has at least that many."""
    times = -(-least // max(picture.shape[:2]))
    return picture.repeat(times, 0).repeat(times, 1)


def tile(picture: np.ndarray, caption: str, over: str = "") -> str:
    """A figure with large pixels, a caption, and SVG in units of pixels over it."""
    H, W = picture.shape[:2]
    text = escape(caption)
    image = f'<image href="{to_uri(picture)}" width="{W}" height="{H}" style="image-rendering: pixelated"/>'
    svg = f'<svg viewBox="0 0 {W} {H}" role="img" aria-label="{text}">{image}{over}</svg>'
    return f"<figure>{svg}<figcaption>{text}</figcaption></figure>"


def tiles(items: Sequence[str], kind: str = "") -> str:
    """Figures side by side, as many as fit."""
    return f'<div class="tiles {kind}">{"".join(items)}</div>'


def arrows(u: Tensor, v: Tensor, colour: str = "#ffffff") -> str:
    """Arrows of `(u, v)` over a map of their shape `(H, W)`, x to the right and y down, the longest one cell long."""
    H, W = u.shape
    cell = max(1, -(-max(H, W) // ARROWS))
    largest = float((u.double() ** 2 + v.double() ** 2).sqrt().nan_to_num(0.0, 0.0, 0.0).max()) or 1.0
    shafts = []
    for y in range(cell // 2, H, cell):
        for x in range(cell // 2, W, cell):
            dx, dy = (0.95 * cell * float(q[y, x]) / largest for q in (u, v))
            if not (np.isfinite(dx) and np.isfinite(dy)) or dx * dx + dy * dy < (0.12 * cell) ** 2:
                continue
            x0, y0, x1, y1 = x + 0.5 - dx / 2, y + 0.5 - dy / 2, x + 0.5 + dx / 2, y + 0.5 + dy / 2
            head = [(x1 - 0.38 * dx + s * 0.2 * dy, y1 - 0.38 * dy - s * 0.2 * dx) for s in (-1, 1)]
            tip = "".join(f"M{x1:.2f} {y1:.2f}L{a:.2f} {b:.2f}" for a, b in head)
            shafts.append(f"M{x0:.2f} {y0:.2f}L{x1:.2f} {y1:.2f}{tip}")
    width = 0.085 * cell
    return "".join(
        f'<path d="{"".join(shafts)}" fill="none" stroke="{c}" stroke-width="{w:.3f}" stroke-linecap="round"/>'
        for c, w in (("#000000", 2.2 * width), (colour, width))
    )


def frame_pixels(mask: Tensor, colour: str = "#ff4d3d") -> str:
    """A frame around every pixel of the mask `(H, W)`."""
    inner = "".join(f"M{x + 0.12} {y + 0.12}h.76v.76h-.76z" for y, x in mask.nonzero().tolist())
    return f'<path d="{inner}" fill="none" stroke="{colour}" stroke-width=".16"/>' if inner else ""


def chart(series: Sequence[Series], about: Chart, width: int = 560, height: int = 300) -> str:
    """A chart as SVG; each point tells its note on hover and on focus."""
    left, right, top, bottom = 60, 14, 12, 44
    xs, ys = ([float(q) for s in series for q in getattr(s, axis)] for axis in "xy")
    xs += [where for where, _ in about.marks]
    if not ys:
        return f'<p class="quiet">{escape(about.title)}: nothing to draw yet.</p>'
    x_ticks = log_ticks(min(xs), max(xs)) if about.log else ticks(min(xs), max(xs), whole=about.whole)
    y_ticks = ticks(min(ys), max(ys))
    (x0, x1), (y0, y1) = ((t[0], t[-1]) for t in (x_ticks, y_ticks))

    def at(x: float, y: float) -> tuple[float, float]:
        share = math.log(x / x0) / math.log(x1 / x0) if about.log else (x - x0) / (x1 - x0)
        across = left + (width - left - right) * share
        return round(across, 1), round(height - bottom - (height - top - bottom) * (y - y0) / ((y1 - y0) or 1), 1)

    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about.title)}">']
    for value in y_ticks:
        y = at(x0, value)[1]
        parts.append(f'<path class="grid" d="M{left} {y}H{width - right}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{value:.6g}</text>')
    for value in x_ticks:
        x = at(value, y0)[0]
        parts.append(f'<path class="grid" d="M{x} {top}V{height - bottom}"/>')
        parts.append(f'<text x="{x}" y="{height - bottom + 16}" text-anchor="middle">{value:.6g}</text>')
    for where, text in about.marks:
        x = at(where, y0)[0]
        parts.append(f'<path class="mark" d="M{x} {top}V{height - bottom}"/>')
        parts.append(f'<text x="{x + 5}" y="{height - bottom - 8}">{escape(text)}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 6}" text-anchor="middle">{escape(about.x)}</text>')
    spot = (top + height - bottom) / 2
    parts.append(f'<text transform="translate(14 {spot}) rotate(-90)" text-anchor="middle">{escape(about.y)}</text>')
    for s in series:
        points = [at(x, y) for x, y in zip(s.x, s.y, strict=True)]
        if s.line and len(points) > 1:
            way = "L".join(f"{x} {y}" for x, y in points)
            parts.append(f'<path d="M{way}" fill="none" stroke="{s.colour}" stroke-width="2"/>')
        for i, (x, y) in enumerate(points):
            note = s.notes[i] if s.notes else f"{s.name}: {s.x[i]:.4g}, {s.y[i]:.4g}"
            lines = "".join(f'<tspan x="{left + 8}" dy="1.25em">{escape(t)}</tspan>' for t in note.split("; "))
            says = f'<text class="tip" x="{left + 8}" y="{top - 2}">{lines}</text>'
            circle = f'<circle cx="{x}" cy="{y}" r="{3.5 if s.line else 5.5}" fill="{s.colour}"/>'
            label = escape(note, quote=True)
            parts.append(f'<g class="point" tabindex="0" role="img" aria-label="{label}">{circle}{says}</g>')
    return "".join(parts) + "</svg>" + legend([(s.name, s.colour) for s in series])


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names beside their colours."""
    items = "".join(f'<span><i style="background:{c}"></i>{escape(n)}</span>' for n, c in dict(entries).items())
    return f'<div class="legend">{items}</div>'


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers that enclose `low` and `high`.

    Example:
        >>> ticks(0.3, 4.1), ticks(1, 10, whole=True)
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 2.0, 4.0, 6.0, 8.0, 10.0])
    """
    if high - low < 1e-12 * max(abs(high), 1e-300):
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / count
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= 0.999 * rough)
    step = max(1.0, step) if whole else step
    first, last = int(np.floor(low / step + 1e-9)), int(np.ceil(high / step - 1e-9))
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """The numbers 1, 2 and 5 times powers of ten that enclose `low` and `high`, both positive.

    Example:
        >>> log_ticks(0.6, 4)
        [0.5, 1.0, 2.0, 5.0]
    """
    low, high = max(low, 1e-12), max(high, 1e-12)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    known = [float(f"{f}e{p}") for p in powers for f in (1, 2, 5)]
    first = max((t for t in known if t <= low), default=known[0])
    last = min((t for t in known if t >= high and t > first), default=10 * known[-1])
    return [t for t in known if first <= t <= last]


def bars(names: Sequence[str], values: Sequence[Sequence[float]], labels: Sequence[str], form: str = "{:.3f}") -> str:
    """Horizontal bars in groups: for each name one bar of each of the `values`, from zero to either side."""
    largest = max((abs(q) for row in values for q in row), default=0.0) or 1.0
    rows = []
    for i, name in enumerate(names):
        lines = "".join(
            f'<div class="bar"><span style="left:{50 + 50 * min(q, 0) / largest:.2f}%;'
            f'width:{50 * abs(q) / largest:.2f}%;background:{PALETTE[j]}"></span><b>{escape(form.format(q))}</b></div>'
            for j, q in enumerate(row[i] for row in values)
        )
        rows.append(f'<div class="bars-row"><em>{escape(name)}</em><div>{lines}</div></div>')
    return f'<div class="bars">{"".join(rows)}</div>' + legend(list(zip(labels, PALETTE, strict=False)))


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A plain table that scrolls sideways where it must."""
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def note(text: str, kind: str = "quiet") -> str:
    """A paragraph."""
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""
