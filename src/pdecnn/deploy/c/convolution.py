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
    *,
    in_place: bool = True,
    least: int = PLACES,
) -> Layout:
    """The layout of a convolution; the grid of a tap is its distance from the first tap modulo the stride.

    Strips are read in place where they can be, unless that is not wanted; they have at least so many places.
    """
    W, (Ho, Wo), (sy, sx) = size_in[1], size_out, stride
    reach_x = dilation[1] * (kernel[1] - 1)
    places = [(i * dilation[0], j * dilation[1]) for i in range(kernel[0]) for j in range(kernel[1])]
    if in_place and stride == (1, 1) and padding == (0, 0) and Wo <= W and Ho <= size_in[0]:
        rows = _strip(Ho, W, least)
        return Layout(W, rows, 0, tuple(i * W + j for i, j in places), ())
    shared = sx == 1  # the zeros after a row are those before the next
    pitch = max(W + padding[1], Wo, Wo + reach_x - padding[1]) if shared else Wo + reach_x // sx
    rows = _strip(Ho, pitch, least)
    grids, starts, start = [], {}, 0
    for gy, gx in sorted({(i % sy, j % sx) for i, j in places}):
        more = max(i // sy for i, j in places if (i % sy, j % sx) == (gy, gx))
        length = (rows + more) * pitch + (max(0, Wo + reach_x - pitch) if shared else 0)
        grids.append((gy, gx, more, start, length))
        starts[gy, gx] = start
        start += length
    taps = tuple(starts[i % sy, j % sx] + i // sy * pitch + j // sx for i, j in places)
    return Layout(pitch, rows, start, taps, tuple(grids))


def _strip(rows: int, pitch: int, least: int) -> int:
    """As few rows as give the lanes enough to do, all strips about equal."""
    strips = max(1, rows // max(1, math.ceil(least / pitch)))
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


@dataclass(frozen=True)
class Geometry:
    """A convolution of maps `(C, H, W)` with given weights `(out, C / groups, ky, kx)`; one row if it has no y."""

    weight: Any
    groups: int
    size_in: tuple[int, int]
    size_out: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    spread: tuple[int, int] = (1, 1)  # rows and columns of the input are so far apart, with zeros between them


def geometry(step: Step) -> Geometry:
    """What a node of `aten.convolution` computes; a transposed one as the plain one that it is."""
    a = step.arguments()
    weight, dims = step.constant(a["weight"]), len(shape(a["input"])) - 2
    if weight is None or dims not in (1, 2):
        raise NotImplementedError(f"convolution of {dims} dimensions{' with computed weights' * (weight is None)}")
    stride, padding, dilation = (
        _pair(a[name], dims, missing) for name, missing in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    H, W = (1, *shape(a["input"])[2:])[-2:]
    Ho, Wo = (1, *shape(step.main)[2:])[-2:]
    w = weight.numpy().reshape(*weight.shape[:2], *(1, *weight.shape[2:])[-2:])
    groups, spread = a["groups"], (1, 1)
    if a["transposed"]:
        ins, outs = len(w) // groups, w.shape[1]
        w = w.reshape(groups, ins, outs, *w.shape[2:]).transpose(0, 2, 1, 3, 4)[..., ::-1, ::-1]
        w = w.reshape(groups * outs, ins, *w.shape[3:])
        reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        padding = (reach[0] - padding[0], reach[1] - padding[1])
        if min(padding) < 0:
            raise NotImplementedError("transposed convolution with more padding than its kernel reaches")
        stride, spread = (1, 1), stride
    return Geometry(w, groups, (H, W), (Ho, Wo), stride, padding, dilation, spread)


@emits(_ATEN.convolution.default)
def convolution(step: Step) -> Code:
    """One call of `convolve` for each sample."""
    a, g, c = step.arguments(), geometry(step), step.constants
    out, channels, ky, kx = g.weight.shape
    C, (Ho, Wo) = channels * g.groups, g.size_out
    H, W = ((n - 1) * s + 1 for n, s in zip(g.size_in, g.spread, strict=True))
    layout = lay_out((H, W), (Ho, Wo), (ky, kx), g.stride, g.padding, g.dilation)
    bias = step.constant(a["bias"])
    w = c.floats(pack(g.weight.reshape(out, channels, ky * kx), g.groups))
    b = c.floats(np.zeros(out) if bias is None else bias.numpy())
    copied = layout.plane * channels + SLACK if layout.grids else 0
    apart = layout.rows * layout.pitch + SLACK
    grid = c.ints([v for grid in layout.grids for v in grid]) if layout.grids else "0"
    fields = (
        C, out, g.groups, H, W, Ho, Wo, *g.stride, *g.padding, layout.pitch, layout.rows, layout.plane, apart, copied,
        len(layout.taps), len(layout.grids), c.ints(layout.taps), grid,
    )  # fmt: skip
    x, y, t = step.read(a["input"]), "y", "t"
    residual = "0" if step.residual is None else step.read(step.residual)
    samples = shape(step.main)[0]
    scratch, lines = copied + ROWS * apart, []
    if samples > 1:
        x, y = f"{x} + i * {C * g.size_in[0] * g.size_in[1]}", f"y + i * {out * Ho * Wo}"
        residual = residual if residual == "0" else f"{residual} + i * {out * Ho * Wo}"
    if g.spread != (1, 1):
        lines.append(f"spread({t}, {x}, {C}, {g.size_in[0]}, {g.size_in[1]}, {g.spread[0]}, {g.spread[1]});")
        x, t = t, f"{t} + {C * H * W}"
        scratch += C * H * W
    low, high = map(number, step.bounds)
    name = c.struct("conv_shape", fields)
    lines.append(f"convolve({y}, {x}, {residual}, {w}, {b}, &{name}, {low}, {high}, {t});")
    if samples > 1:
        lines = [f"for (int i = 0; i < {samples}; i++) {{", *(f"    {line}" for line in lines), "}"]
    over = [] if step.residual in (None, a["input"]) else [step.number_of(step.residual)]  # type: ignore[arg-type]
    if g.groups == C == out and layout.grids and layout.rows == Ho and (Ho, Wo) == g.size_in:
        over.append(step.number_of(a["input"]))  # a plane is copied whole before it is written
    macs = size(step.main) * channels * ky * kx // (g.spread[0] * g.spread[1])
    return Code("\n".join(lines), scratch=scratch, macs=macs, over=tuple(n for n in over if n >= 0))
