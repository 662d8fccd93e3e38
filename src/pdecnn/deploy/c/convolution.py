"""Convolutions of any stride, dilation, padding and number of groups, for `convolve` in parts/convolution.c."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pdecnn.deploy.c.constants import number
from pdecnn.deploy.c.registry import Code, Step, emits, shape, size

_ATEN = torch.ops.aten
SLACK = 16  # floats beyond an array that the widest lanes may touch
PLACES = 128  # a strip has at least so many places, if the map has
ROWS = 4  # output channels at a time


@dataclass(frozen=True)
class Layout:
    """How strips lie in memory: the grids of rows and columns that taps read, and each tap's distance."""

    pitch: int
    rows: int  # of output in a strip
    plane: int  # of one channel's copy; 0 if strips are read in place
    taps: tuple[int, ...]
    grids: tuple[tuple[int, int, int, int, int], ...]


def lay_out(
    size_in: tuple[int, int],
    size_out: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Layout:
    """The layout of a convolution; the grid of a tap is its distance from the first tap modulo the stride."""
    W, (Ho, Wo), (sy, sx) = size_in[1], size_out, stride
    reach_x = dilation[1] * (kernel[1] - 1)
    places = [(i * dilation[0], j * dilation[1]) for i in range(kernel[0]) for j in range(kernel[1])]
    if stride == (1, 1) and padding == (0, 0):
        rows = _strip(Ho, W)
        return Layout(W, rows, 0, tuple(i * W + j for i, j in places), ())
    shared = sx == 1  # the zeros after a row are those before the next
    pitch = max(W + padding[1], Wo) if shared else Wo + reach_x // sx
    rows = _strip(Ho, pitch)
    grids, starts, start = [], {}, 0
    for gy, gx in sorted({(i % sy, j % sx) for i, j in places}):
        more = max(i // sy for i, j in places if (i % sy, j % sx) == (gy, gx))
        length = (rows + more) * pitch + (max(0, Wo + reach_x - pitch) if shared else 0)
        grids.append((gy, gx, more, start, length))
        starts[gy, gx] = start
        start += length
    taps = tuple(starts[i % sy, j % sx] + i // sy * pitch + j // sx for i, j in places)
    return Layout(pitch, rows, start, taps, tuple(grids))


def _strip(rows: int, pitch: int) -> int:
    """As few rows as give the lanes enough to do, all strips about equal."""
    strips = max(1, rows // max(1, math.ceil(PLACES / pitch)))
    return math.ceil(rows / strips)


def pack(weight: Any, groups: int) -> Any:
    """Weights `(out, in / groups, taps)` in the order in which they are read: four output channels side by side."""
    per_group = len(weight) // groups
    parts = []
    for g in range(groups):
        block = weight[g * per_group : (g + 1) * per_group]
        whole = per_group // ROWS * ROWS
        parts += [block[o : o + ROWS].transpose(1, 2, 0).ravel() for o in range(0, whole, ROWS)]
        parts.append(block[whole:].ravel())
    return np.concatenate(parts)


def _pair(values: Sequence[int], dims: int, missing: int) -> tuple[int, int]:
    """One number for rows and one for columns, as a convolution of one or two dimensions gives them."""
    full = list(values) * dims if len(values) == 1 else list(values)
    return (missing, full[0]) if dims == 1 else (full[0], full[1])


@emits(_ATEN.convolution.default)
def convolution(step: Step) -> Code:
    """One call of `convolve`; a one-dimensional one has maps of one row."""
    a = step.arguments()
    weight = step.constant(a["weight"])
    dims = len(shape(a["input"])) - 2
    if weight is None or a["transposed"] or dims > 2 or shape(a["input"])[0] != 1:
        raise NotImplementedError("convolution with computed weights, transposed, of volumes or of several samples")
    (sy, sx), (py, px), (dy, dx) = (
        _pair(a[name], dims, missing) for name, missing in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    C, *size_in = shape(a["input"])[1:]
    out, *size_out = shape(step.main)[1:]
    H, W = (1, *size_in)[-2:]
    Ho, Wo = (1, *size_out)[-2:]
    ky, kx = (1, *weight.shape[2:])[-2:]
    layout = lay_out((H, W), (Ho, Wo), (ky, kx), (sy, sx), (py, px), (dy, dx))
    groups = a["groups"]
    c = step.constants
    bias = step.constant(a["bias"])
    w = c.floats(pack(weight.numpy().reshape(out, C // groups, ky * kx), groups))
    b = c.floats(np.zeros(out) if bias is None else bias.numpy())
    copied = layout.plane * (C // groups) + SLACK if layout.grids else 0
    apart = layout.rows * layout.pitch + SLACK
    grid = c.ints([v for grid in layout.grids for v in grid]) if layout.grids else "0"
    fields = (
        C, out, groups, H, W, Ho, Wo, sy, sx, py, px, layout.pitch, layout.rows, layout.plane, apart, copied,
        len(layout.taps), len(layout.grids), c.ints(layout.taps), grid,
    )  # fmt: skip
    x = step.read(a["input"])
    residual = "0" if step.residual is None else step.read(step.residual)
    low, high = map(number, step.bounds)
    text = f"convolve(y, {x}, {residual}, {w}, {b}, &{c.struct('conv_shape', fields)}, {low}, {high}, t);"
    over = [] if step.residual is None else [step.number_of(step.residual)]
    if groups == C == out and layout.grids and layout.rows == Ho and (Ho, Wo) == (H, W):
        over.append(step.number_of(a["input"]))  # a plane is copied whole before it is written
    macs = size(step.main) * (C // groups) * ky * kx
    return Code(text, scratch=copied + ROWS * apart, macs=macs, over=tuple(n for n in over if n >= 0))
