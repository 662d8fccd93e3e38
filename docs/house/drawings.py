"""Schemes as SVG that lies in the page itself, so that its colours and letters are the page's, light or dark."""

from collections.abc import Callable, Sequence
from html import escape


def box(x: float, y: float, w: float, h: float, text: str, kind: str = "") -> str:
    """A rectangle with lines of text in its middle; `kind` is a class of the style sheet."""
    lines = text.split("\n")
    first = y + h / 2 - 9 * (len(lines) - 1)
    spans = "".join(f'<tspan x="{x + w / 2:g}" y="{first + 18 * i:g}">{escape(t)}</tspan>' for i, t in enumerate(lines))
    return f'<rect class="box {kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6"/><text>{spans}</text>'


def label(x: float, y: float, text: str, kind: str = "") -> str:
    """A line of text around a point."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def arrow(*points: tuple[float, float], kind: str = "") -> str:
    """A line through the points, with a head at the last."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="arrow {kind}" points="{path}" marker-end="url(#head)"/>'


def drawing(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """The parts as one picture, whose title is read to those who do not see it."""
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>'
    )
    return (
        f'<div class="drawing"><svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{head}{"".join(parts)}</svg></div>'
    )


def layer() -> str:
    """The Global layer."""
    parts = [
        label(30, 130, "I", "big"),
        arrow((45, 130), (85, 130)),
        box(85, 108, 70, 44, "F"),
        arrow((155, 130), (215, 130)),
        label(171, 117, "h⁰"),
    ]
    for i, name in enumerate(("u", "v", "Dₓ", "D_y".replace("_y", "ᵧ"))):
        x = 215 + 62 * i
        parts += [
            arrow((185, 130), (185, 45), (x, 45)) if i == 0 else "",
            box(x, 26, 56, 38, name, "learned"),
            arrow((x + 28, 64), (x + 28, 100)),
        ]
    parts += [
        label(340, 14, "depth-wise convolution, norm, activation: once", "small"),
        box(
            215,
            100,
            242,
            60,
            "hᵏ⁺¹ from hᵏ, hᵏ⁻¹ and their\nfour neighbours, K times",
            "pde",
        ),
        arrow((30, 145), (30, 200), (336, 200), (336, 160)),
        label(120, 214, "source f = I", "small"),
        arrow((457, 130), (497, 130)),
        label(477, 117, "hᴷ"),
        box(497, 108, 62, 44, "norm"),
        arrow((559, 130), (585, 130)),
        box(585, 108, 62, 44, "act"),
        arrow((647, 130), (685, 130)),
        label(700, 130, "O", "big"),
    ]
    return drawing(720, 226, "A Global layer: first guess, coefficients, K time steps, norm, activation", parts)


def condense() -> str:
    """What condense does to a network."""
    parts = [label(46, 52, "before"), label(46, 152, "after")]
    x = 96.0
    for stage, (size, count) in enumerate(((56, 5), (42, 5), (30, 5))):
        first = x
        for i in range(count):
            kind = "" if i == 0 else "gone"
            parts.append(box(x, 52 - size / 2, 34, size, "", kind))
            if i < count - 1:
                parts.append(arrow((x + 34, 52), (x + 42, 52), kind="thin"))
            x += 42
        last = x - 8
        parts += [
            box(first, 152 - size / 2, 34, size, ""),
            arrow((first + 34, 152), (first + 62, 152), kind="thin"),
            box(first + 62, 152 - size / 2, 34, size, "", "pde"),
            f'<path class="brace" d="M{first + 42:g},86 V98 H{last:g} V86 M{first + 79:g},98 V118"/>',
        ]
        if stage < 2:
            parts += [
                arrow((last, 52), (last + 16, 52), kind="thin"),
                arrow((first + 96, 152), (last + 16, 152), kind="thin"),
            ]
        x = last + 16
    parts += [
        label(x - 6, 52, "→ head", "left"),
        label(x - 6, 152, "→ head", "left"),
        label(150, 200, "kept, with its weights", "small"),
        label(420, 200, "new: one cheap layer for the blocks that went", "small"),
    ]
    return drawing(840, 214, "Before and after: of each run the first block stays, one layer does the rest", parts)


def scheme() -> str:
    """The points that one step of the scheme reads and writes."""
    parts = []
    for y, text in ((50, "k + 1"), (125, "k"), (200, "k − 1")):
        parts += [label(50, y, text), f'<line class="thin" x1="90" y1="{y}" x2="470" y2="{y}"/>']
    for x, text in ((160, "x − 1"), (280, "x"), (400, "x + 1")):
        parts.append(label(x, 240, text, "small"))
    for (x, y), kind in {(280, 50): "write", (160, 125): "", (280, 125): "", (400, 125): "", (280, 200): ""}.items():
        parts.append(f'<circle class="point {kind}" cx="{x}" cy="{y}" r="9"/>')
    parts += [
        arrow((171, 117), (269, 59)),
        arrow((389, 117), (291, 59)),
        arrow((280, 114), (280, 62)),
        arrow((268, 196), (236, 125), (269, 62), kind="thin"),
        label(160, 150, "Aₓ + 2Bₓ", "small"),
        label(400, 150, "−Aₓ + 2Bₓ", "small"),
        label(280, 150, "−2δt (uₓ + vᵧ)", "small"),
        label(296, 216, "1 − 2Bₓ − 2Bᵧ", "small left"),
        label(296, 34, "divided by 1 + 2Bₓ + 2Bᵧ", "small left"),
    ]
    return drawing(520, 256, "A step reads the point and its neighbours at time k, and the point at time k - 1", parts)


def reaction() -> str:
    """A reaction-diffusion step."""
    parts = [
        label(24, 110, "y", "big"),
        arrow((40, 110), (560, 110)),
        arrow((70, 110), (70, 45), (110, 45)),
        box(110, 24, 300, 42, "−KᵀK y: depth-wise, between pixels", "pde"),
        arrow((410, 45), (576, 45), (576, 94)),
        arrow((70, 110), (70, 178), (110, 178)),
        box(110, 157, 92, 42, "M (1×1)", "learned"),
        arrow((202, 178), (228, 178)),
        box(228, 157, 78, 42, "norm"),
        arrow((306, 178), (332, 178)),
        box(332, 157, 78, 42, "ReLU"),
        arrow((410, 178), (576, 178), (576, 126)),
        '<circle class="point" cx="576" cy="110" r="14"/>',
        label(576, 110, "+"),
        label(500, 34, "× h", "small"),
        label(500, 167, "× h", "small"),
        arrow((592, 110), (640, 110)),
        label(662, 110, "y⁺", "big"),
        label(260, 128, "reaction: between channels, at each pixel", "small"),
    ]
    return drawing(690, 214, "An explicit step: diffusion between pixels plus reaction between channels", parts)


def symmetric() -> str:
    """The block that carries the whole group, and where a change of basis goes."""
    parts = [
        label(24, 120, "u", "big"),
        arrow((40, 120), (90, 120)),
        box(90, 92, 80, 56, "B\n1×1", "learned"),
        arrow((170, 106), (220, 70), (256, 70), (282, 110)),
        arrow((170, 134), (220, 170), (256, 170), (282, 130)),
        label(214, 62, "a"),
        label(214, 184, "b"),
        '<circle class="point" cx="292" cy="120" r="15"/>',
        label(292, 120, "×"),
        arrow((307, 120), (345, 120)),
        box(345, 92, 110, 56, "D\n3×3 depth-wise", "pde"),
        arrow((455, 120), (490, 120)),
        box(490, 92, 80, 56, "A\n1×1", "learned"),
        arrow((570, 120), (606, 120)),
        '<circle class="point" cx="621" cy="120" r="15"/>',
        label(621, 120, "+"),
        arrow((60, 120), (60, 22), (621, 22), (621, 104)),
        label(340, 12, "skip: all blocks of a stage share T", "small"),
        arrow((636, 120), (676, 120)),
        label(694, 120, "u⁺", "big"),
        label(130, 168, "B T⁻¹", "turned"),
        label(530, 168, "T A", "turned"),
        label(24, 146, "T u", "turned"),
        label(694, 148, "T u⁺", "turned"),
    ]
    return drawing(720, 204, "A CP block: two readings of u are multiplied, differentiated and mixed", parts)


DRAWINGS: dict[str, Callable[[], str]] = {f.__name__: f for f in (layer, condense, scheme, reaction, symmetric)}
