"""What is inside the PDE layers of a net as pictures: fields, states, reach, confidence, the answer."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pdecnn.viz.studio import drawing
from pdecnn.viz.studio.drawing import Chart, Series, arrows, enlarge, frame_pixels, paint, tile, tiles
from pdecnn.viz.studio.inside import Inside, LayerView, reach

LEAST = 384  # pixels of the longer side of the plane that is clicked


def of_channel(q: Tensor, channel: int) -> Tensor:
    """One channel of a map `(C, H, W)`, or the mean of all for -1."""
    return q.float().mean(0) if channel < 0 else q[min(channel, len(q) - 1)].float()


def fields(view: LayerView, channel: int) -> str:
    """First guess, flow as arrows, D, and the Courant numbers with the unstable pixels framed."""
    guess, u, v = (of_channel(q, channel) for q in (view.states[0], view.u, view.v))
    D = of_channel((view.D_x + view.D_y) / 2, channel)
    courant = view.courant.amax(0) if channel < 0 else view.courant[min(channel, len(view.courant) - 1)]
    unstable = view.unstable.any(0) if channel < 0 else view.unstable[min(channel, len(view.unstable) - 1)]
    fastest = float((u**2 + v**2).sqrt().max())
    share = 100 * float(view.unstable.double().mean())
    marked = (
        f"{int(unstable.sum())} of {unstable.numel()} pixels framed: a wave would grow"
        if unstable.any()
        else "stable everywhere"
    )
    return tiles(
        [
            tile(paint(guess), f"first guess h⁰, {_range(guess)}"),
            tile(paint(guess, cmap="Greys_r"), f"flow (u, v), fastest {fastest:.3g}", arrows(u, v)),
            tile(paint(D, low=0.0, cmap="magma"), f"D, {_range(D)}"),
            tile(
                paint(courant, low=0.0, high=max(1.0, float(courant.max())), cmap="cividis"),
                f"Courant number, up to {float(courant.max()):.2f}; {marked}",
                frame_pixels(unstable),
            ),
        ]
    ) + drawing.note(f"Over all channels and pixels, {share:.1f} % of the coefficients are in the unstable region.")


def state(view: LayerView, channel: int, k: int) -> str:
    """The state h^k, what it has changed since h⁰, and all states beside them; all share one scale."""
    k = min(k, len(view.states) - 1)
    shown = [of_channel(h, channel) for h in view.states[: max(view.K, k) + 1]]
    finite = torch.stack(shown)[torch.stack(shown).isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    change = shown[k] - shown[0]
    most = float(change[change.isfinite()].abs().max()) if change.isfinite().any() else 1.0
    own = ", what the layer gives on" if k == view.K else ""
    large = [
        tile(paint(shown[k], low=low, high=high), f"h^{k}{own}, {_range(shown[k])}"),
        tile(paint(change, low=-most, high=most, cmap="RdBu_r"), f"h^{k} - h^0, up to ±{most:.3g}"),
    ]
    film = [
        tile(paint(h, low=low, high=high), f"h^{i}", _frame(h.shape) if i == k else "") for i, h in enumerate(shown)
    ]
    return f'<div class="states">{tiles(large, "two")}{tiles(film, "film")}</div>'


def plane(view: LayerView, channel: int, k: int, mark: tuple[int, int] | None = None) -> np.ndarray:
    """The state h^k as a picture to click, with a frame around the pixel `(y, x)` that was chosen."""
    picture = enlarge(paint(of_channel(view.states[min(k, len(view.states) - 1)], channel)), LEAST)
    H, W = view.states[0].shape[1:]
    if mark is not None and 0 <= mark[0] < H and 0 <= mark[1] < W:
        n = len(picture) // H
        y, x = n * mark[0], n * mark[1]
        thick = max(1, n // 6)
        inner = picture[y + thick : y + n - thick, x + thick : x + n - thick].copy()
        picture[y : y + n, x : x + n] = 255
        picture[y + thick : y + n - thick, x + thick : x + n - thick] = inner
    return picture


def pixel_at(view: LayerView, across: float, down: float) -> tuple[int, int]:
    """The pixel `(y, x)` of the map at a place of its picture that was clicked."""
    H, W = view.states[0].shape[1:]
    n = -(-LEAST // max(H, W))
    return min(int(down) // n, H - 1), min(int(across) // n, W - 1)


def reach_pictures(inside: Inside, number: int, y: int, x: int, K: int) -> str:
    """Where the pixel's value comes from, in the layer's input and in the image, as logarithms of shares."""
    inner, outer = reach(inside, number, y, x, K)
    H, W = inside.layers[number].states[0].shape[1:]
    marks = (frame_pixels(_only(inner.shape, int(y * inner.shape[0] / H), int(x * inner.shape[1] / W)), "#ffffff"), "")
    names = (f"the layer's input, K = {K}", "the image")
    out = []
    for field, name, mark in zip((inner, outer), names, marks, strict=True):
        share = field / field.sum().clamp_min(1e-30)
        count = int((field > 0).sum())
        out.append(
            tile(
                paint(share.clamp_min(1e-6).log10(), low=-6.0, high=0.0, cmap="inferno"),
                f"pixel ({x}, {y}) depends on {count} of {field.numel()} pixels of {name}",
                mark,
            )
        )
    return tiles(out, "two")


def confidence_chart(inside: Inside) -> str:
    """Confidence against K, and what the net answers with each."""
    own = inside.net.label(int(inside.probabilities.argmax()))
    K = [a.K for a in inside.answers]
    notes = [f"K = {a.K}: {inside.net.label(a.best)}, {100 * a.confidence:.1f} %" for a in inside.answers]
    series = [
        Series("its answer", K, [100 * a.confidence for a in inside.answers], drawing.BLUE, True, notes),
        Series(
            own,
            K,
            [100 * a.of_own for a in inside.answers],
            drawing.PALETTE[1],
            True,
            [f"K = {a.K}: {own}, {100 * a.of_own:.1f} %" for a in inside.answers],
        ),
    ]
    series = series[: 1 + any(a.confidence != a.of_own for a in inside.answers)]
    about = Chart(
        "K in every layer", "confidence, %", "confidence against K", [(inside.steps, "its own K")], whole=True
    )
    changed = [a for a in inside.answers if a.best != int(inside.probabilities.argmax())]
    text = ", ".join(f"K = {a.K}: {inside.net.label(a.best)}" for a in changed)
    return drawing.chart(series, about) + drawing.note(
        f"Other answers: {text}." if changed else "The answer is the same for every K."
    )


def verdict(inside: Inside, classes: int = 5) -> str:
    """The answer in a sentence, and the likeliest classes."""
    best = inside.probabilities.topk(min(classes, len(inside.probabilities)))
    names = [inside.net.label(int(i)) for i in best.indices]
    head = f"It says {names[0]}, {100 * float(best.values[0]):.1f} %."
    rows = list(zip(names, (f"{100 * float(p):.2f}" for p in best.values), strict=True))
    random = "" if inside.net.found.weights else " Its weights are random: the answer means nothing."
    return drawing.note(head + random, "says") + drawing.table(("class", "%"), rows)


def _only(shape: Any, y: int, x: int) -> Tensor:
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[y, x] = True
    return mask


def _frame(shape: Any) -> str:
    H, W = shape
    side = f'x="0" y="0" width="{W}" height="{H}" fill="none" stroke-width="{0.08 * max(H, W):.2f}"'
    return f'<rect {side} stroke="{drawing.RED}"/>'


def _range(q: Tensor) -> str:
    finite = q[q.isfinite()]
    if not len(finite):
        return "nothing finite"
    low, high = float(finite.min()), float(finite.max())
    return f"{low:.3g} to {high:.3g}" if high > low else f"{low:.3g} everywhere"
