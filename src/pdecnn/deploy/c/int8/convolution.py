"""Convolutions and fully connected layers in 8 bits, with their residual and activation."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from pdecnn.deploy.c.convolution import ROWS, SLACK, Geometry, geometry, lay_out
from pdecnn.deploy.c.fixed import HIGH, LOW, Quant, fixed_upper, rescaled
from pdecnn.deploy.c.registry import Code, Step, in_integers, quant, shape, size

_ATEN = torch.ops.aten
_MOST = 1 << 28  # of a bias
_LONGEST = 50_000  # products in a sum of 32 bits
_PLACES = 64  # as PLACES, for words of two channels, which take more memory
_MORE = 4096  # the factor of a residual is in units of 1 / 4096


@dataclass(frozen=True)
class Weights:
    """Integers `w * scale`, and the bias in units of `scale * scale_in`, each for every output channel."""

    w: Any
    bias: Any
    scale: Any

    @classmethod
    def of(cls, weight: Any, bias: Any, scale_in: float, most: int = HIGH) -> "Weights":
        """For weights `(out, ...)`; a scale is larger than its weights ask for where the bias would be too large."""
        w = np.asarray(weight, np.float64)
        b = np.zeros(len(w)) if bias is None else np.asarray(bias, np.float64)
        if not np.isfinite(w).all() or not np.isfinite(b).all():
            raise NotImplementedError("weights that are not finite")
        rows = np.abs(w).reshape(len(w), -1).max(1, initial=0.0)
        scale = np.maximum(np.maximum(rows / most, np.abs(b) / (scale_in * _MOST)), 1e-12)
        q = np.rint(w / scale.reshape(-1, *[1] * (w.ndim - 1))).astype(np.int64)
        return cls(q, np.rint(b / (scale_in * scale)).astype(np.int64), scale)

    def less(self, zero: int) -> Any:
        """The bias for inputs from which their zero was not taken off."""
        return self.bias - zero * self.w.reshape(len(self.w), -1).sum(1)


def pack_pairs(weight: Any, groups: int) -> Any:
    """Weights `(out, in / groups, taps)` in the order in which they are read: of two channels, for four outputs or one.

    Example:
        >>> import numpy as np
        >>> pack_pairs(np.array([[[1, 2], [3, 4], [5, 6]]]), 1).tolist()
        [1, 3, 2, 4, 5, 6]
    """
    per_group, even, taps = len(weight) // groups, weight.shape[1] // 2 * 2, weight.shape[2]
    parts = []
    for g in range(groups):
        o = g * per_group
        while o < (g + 1) * per_group:
            many = ROWS if o + ROWS <= (g + 1) * per_group else 1
            block = weight[o : o + many]
            parts.append(block[:, :even].reshape(many, even // 2, 2, taps).transpose(1, 3, 0, 2).ravel())
            parts.append(block[:, even:].transpose(1, 2, 0).ravel())
            o += many
    return np.concatenate(parts)


@dataclass(frozen=True)
class Convolution:
    """`convolve8` in parts/int8_convolution.c."""

    form: Geometry
    weights: Weights
    multiplier: Any
    more: int
    shift: int
    quants: tuple[Quant, Quant, Quant | None]  # of the input, the output and the residual
    bounds: tuple[int, int]
    arithmetic: str = "int8"

    def code(self, step: Step) -> Code:
        """One call for each sample."""
        a, g, c = step.arguments(), self.form, step.constants
        out, channels, ky, kx = g.weight.shape
        C, (H, W), (Ho, Wo) = channels * g.groups, g.size_in, g.size_out
        sizes = ((H, W), (Ho, Wo), (ky, kx), g.stride, g.padding, g.dilation)
        layout = lay_out(*sizes, in_place=False, least=_PLACES)
        w = c.int8s(pack_pairs(self.weights.w.reshape(out, channels, ky * kx), g.groups))
        b, m = c.int32s(self.weights.bias), c.int32s(self.multiplier)
        pairs, apart = -(-channels // 2), layout.rows * layout.pitch + SLACK
        copied = layout.plane * pairs + SLACK
        fields = (
            C, out, g.groups, H, W, Ho, Wo, *g.stride, *g.padding, layout.pitch, layout.rows, layout.plane, apart,
            copied, len(layout.taps), len(layout.grids), c.ints(layout.taps),
            c.ints([v for grid in layout.grids for v in grid]),
        )  # fmt: skip
        x, y = step.read(a["input"]), "y"
        more = "0" if step.residual is None else step.read(step.residual)
        own, to, residual = self.quants
        scales = (own.zero, to.zero, residual.zero if residual else 0, self.shift, self.more, *self.bounds)
        samples = shape(step.main)[0]
        if samples > 1:
            x, y = f"{x} + i * {C * H * W}", f"y + i * {out * Ho * Wo}"
            more = more if more == "0" else f"{more} + i * {out * Ho * Wo}"
        names = f"&{c.struct('conv_shape', fields)}, &{c.struct('scale8', scales)}"
        text = f"convolve8({y}, {x}, {more}, {w}, {b}, {m}, {names}, t);"
        if samples > 1:
            text = f"for (int i = 0; i < {samples}; i++)\n    {text}"
        over = [] if step.residual in (None, a["input"]) else [step.number_of(step.residual)]  # type: ignore[arg-type]
        if g.groups == C == out and layout.rows == Ho and (Ho, Wo) == (H, W):
            over.append(step.number_of(a["input"]))
        macs, words = size(step.main) * channels * ky * kx, ROWS * pairs * ky * kx
        return Code(text, scratch=copied + ROWS * apart + words, macs=macs, over=tuple(n for n in over if n >= 0))

    def values(self, x: Any, residual: Any = None) -> Any:
        """The same, by a convolution in float64, which is exact here; what is added may be the input."""
        g, residual = self.form, x if residual is None else residual
        form = (-1, g.weight.shape[1] * g.groups, *g.size_in)
        maps, w = torch.from_numpy(x - self.quants[0].zero).double().reshape(form), torch.from_numpy(self.weights.w)
        sums = functional.conv2d(maps, w.double(), None, g.stride, g.padding, g.dilation, g.groups)
        sums = sums[..., : g.size_out[0], : g.size_out[1]].long().numpy()
        t = (sums + self.weights.bias.reshape(-1, 1, 1)) * np.asarray(self.multiplier).reshape(-1, 1, 1)
        if self.quants[2] is not None:
            t = t + (residual.reshape(t.shape) - self.quants[2].zero) * _MORE * self.more
        return np.clip(rescaled(t, 32 + self.shift) + self.quants[1].zero, *self.bounds)


@in_integers(_ATEN.convolution.default)
def convolution(step: Step) -> Convolution:
    """Needs the scales of its input, its output and its residual."""
    a, g = step.arguments(), geometry(step)
    own, to = quant(a["input"]), quant(step.node)
    more = None if step.residual is None else quant(step.residual)
    if g.spread != (1, 1):
        raise NotImplementedError("transposed convolution in 8 bits")
    if own is None or to is None or (more is None) != (step.residual is None):
        raise NotImplementedError("a convolution of values in float")
    if math.prod(g.weight.shape[1:]) > _LONGEST:
        raise NotImplementedError("sums of so many products in 32 bits")
    bias = step.constant(a["bias"])
    weights = Weights.of(g.weight, None if bias is None else bias.numpy(), own.scale)
    residual = more.scale / to.scale / _MORE if more else 0.0
    (multiplier, factor), shift = fixed_upper(own.scale * weights.scale / to.scale, residual)
    return Convolution(g, weights, multiplier, factor, shift, (own, to, more), to.bounds(*step.bounds))


@dataclass(frozen=True)
class Linear:
    """`product8`, or `product_to_float` where the result is not read in 8 bits."""

    weights: Weights
    multiplier: Any
    shift: int
    own: Quant
    to: Quant | None
    arithmetic: str = "int8"

    def code(self, step: Step) -> Code:
        """One call."""
        c, (out, n) = step.constants, self.weights.w.shape
        rows = size(step.main) // out
        x, w = step.read(step.arguments()["input"]), c.int8s(self.weights.w)
        b = c.int32s(self.weights.less(self.own.zero))
        sizes = f"{rows}, {n}, {out}"
        if self.to is None:
            text = f"product_to_float(y, {x}, {w}, {b}, {c.floats(self._scale())}, {sizes});"
        else:
            text = f"product8(y, {x}, {w}, {b}, {c.int32s(self.multiplier)}, {sizes}, {self.shift}, {self.to.zero});"
        return Code(text, macs=rows * n * out)

    def values(self, x: Any) -> Any:
        """The same; floats are float32."""
        sums = (x - self.own.zero) @ self.weights.w.T + self.weights.bias
        if self.to is None:
            return sums.astype(np.float32) * self._scale()
        return np.clip(rescaled(sums * self.multiplier, 32 + self.shift) + self.to.zero, LOW, HIGH)

    def _scale(self) -> Any:
        return (self.own.scale * self.weights.scale).astype(np.float32)


@in_integers(_ATEN.linear.default)
def linear(step: Step) -> Linear:
    """Needs the scale of its input; that of its output only if it has one."""
    a = step.arguments()
    own, to, weight, bias = quant(a["input"]), quant(step.node), step.constant(a["weight"]), a["bias"]
    known = None if bias is None else step.constant(bias)
    if weight is None or own is None or (bias is not None and known is None):
        raise NotImplementedError("linear with computed weights")
    if weight.shape[1] > _LONGEST:
        raise NotImplementedError("sums of so many products in 32 bits")
    weights = Weights.of(weight.numpy(), None if known is None else known.numpy(), own.scale)
    if to is None:
        return Linear(weights, None, 0, own, None)
    (multiplier,), shift = fixed_upper(own.scale * weights.scale / to.scale)
    return Linear(weights, multiplier, shift, own, to)
