"""The Global layer with its state in 16-bit fixed point: `global_layer16` in parts/int8_steps.c."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pdecnn.deploy.c.convolution import SLACK
from pdecnn.deploy.c.fixed import HIGH, LOW, Quant, fixed, fixed_upper, rescaled
from pdecnn.deploy.c.int8.convolution import Weights
from pdecnn.deploy.c.registry import Code, Step, in_integers, quant, shape
from pdecnn.deploy.c.steps import PLANES, scales
from pdecnn.kernels.advection_diffusion.op import macs
from pdecnn.kernels.global_layer.arguments import ACTIVATIONS, Steps
from pdecnn.kernels.global_layer.op import stencil_macs
from pdecnn.reference.boundary import Boundary

_OPS = torch.ops.pdecnn
SCALE_BITS, MOST, FINE, STATE_BITS = 13, 10900, 12, 15  # as in parts/int8_steps.c
WORST = 0.5  # steps of the output, in the mean: a layer that is further off stays in float
_MARGIN = 1.5  # between the largest value seen and the largest that there is room for
_FULL = 32767
_LEAST = 80  # places in a plane: those of two hold sums of four stencils, and what the widest lanes write beyond
_BITS = 22  # of a factor of 9 bits in 32
_CUTS = {"identity": (-1e9, 1e9), "relu": (0.0, 1e9), "relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0)}


def halo(q: Any, where: Boundary, parity: float) -> Any:
    """A map with one place more on each side, of arrays or tensors `(..., H, W)`."""
    for axis in (-2, -1):
        n = q.shape[axis]
        first, last = (np.take(q, [i], axis) for i in (0, n - 1))
        sides = (last, first) if where is Boundary.PERIODIC else (int(parity) * first, int(parity) * last)
        q = np.concatenate([sides[0], q, sides[1]], axis)
    return q


def neighbours(q: Any) -> tuple[Any, Any, Any, Any]:
    """What lies to the right, to the left, below and above, of a map with a halo."""
    return q[..., 1:-1, 2:], q[..., 1:-1, :-2], q[..., 2:, 1:-1], q[..., :-2, 1:-1]


@dataclass(frozen=True)
class Layer:
    """The numbers of a Global layer as it computes: stencils `(maps, C, k, k)`, and what turns them into steps."""

    weight: Any
    bias: Any
    scale: Any
    shift: Any
    residual: bool
    output_act: str
    steps: Steps

    @property
    def where(self) -> Boundary:
        """The boundary."""
        return Boundary(self.steps.boundary)

    @property
    def factors(self) -> list[float]:
        """From velocities and diffusivities to `a_x`, `a_y`, `b_x`, `b_y`."""
        return scales(self.steps.dt, self.steps.dx, self.steps.dy, self.steps.flow_sign)

    def sums(self, h: Any, weight: Any) -> list[Any]:
        """Each stencil of `weight` on each channel, with zeros beyond the border; exact for integers below 2^53."""
        maps, C, k = weight.shape[:3]
        x = torch.from_numpy(np.asarray(h, np.float64).reshape(1, C, *h.shape[-2:]))
        w = torch.from_numpy(np.asarray(weight, np.float64))
        return [torch.conv2d(x, w[m].unsqueeze(1), padding=k // 2, groups=C)[0].numpy() for m in range(maps)]

    def ranges(self, h: Any, x: Any) -> tuple[float, float, float]:
        """The largest state, coefficient and weight of a step, of arrays `(C, H, W)`."""
        s = self.steps
        act = ACTIVATIONS[s.coefficient_act]
        maps = [
            act(torch.from_numpy(q + np.asarray(b, np.float64)[:, None, None])).numpy() * f
            for q, b, f in zip(self.sums(h, self.weight), self.bias, self.factors, strict=False)
        ]
        maps += [np.full_like(maps[0], D * f) for D, f in zip((s.D_x, s.D_y), self.factors[2:], strict=True)]
        a_x, a_y, b_x, b_y = maps[:4]
        scale = 1 / (0.5 + b_x + b_y)
        right, left, _, _ = neighbours(halo(a_x, self.where, self.where.velocity_parity))
        _, _, down, up = neighbours(halo(a_y, self.where, self.where.velocity_parity))
        here = ((left - right) + (up - down)) * scale
        weights = [q * scale for q in (b_x - a_x, b_x + a_x, b_y - a_y, b_y + a_y)]
        state, before, largest = h, x if s.previous_is_input else h, float(np.abs(h).max())
        source = x * s.dt * scale if s.has_source else 0.0
        for _ in range(s.K):
            around = neighbours(halo(state, self.where, self.where.state_parity))
            total = sum(w * q for w, q in zip(weights, around, strict=True)) + here * state + (scale - 1) * before
            before, state = state, total + source
            largest = max(largest, float(np.abs(state).max()))
        most = max(float(np.abs(q).max()) for q in (a_x, a_y, b_x, b_y))
        return largest, most, max(float(np.abs(q).max()) for q in (*weights, here, scale - 1))


def layer_of(step: Step) -> Layer:
    """The layer of a step; NotImplementedError for one with computed weights."""
    a: dict[str, Any] = step.arguments()
    parts = [step.constant(a[name]) for name in ("weight", "bias", "scale", "shift")]
    if any(q is None for q in parts) or shape(a["h"])[0] != 1:
        raise NotImplementedError("a Global layer with computed weights or of several samples")
    weight, bias, scale, shift = (q.double().numpy() for q in parts if q is not None)
    steps = Steps(*(a[name] for name in Steps._fields))
    return Layer(weight, bias, scale, shift, a["residual"], a["output_act"], steps)


@dataclass(frozen=True)
class Fixed:
    """The same in integers; names as in parts/int8_steps.c."""

    layer: Layer
    stencils: Weights  # of rows (channel, map)
    multiplier: Any
    coefficient_shift: int
    fraction: int
    weight: int
    coefficient_bounds: list[tuple[int, int]]
    D: list[int]
    factors: list[tuple[int, int]]  # of the state, the state before and the source
    scale: Any
    scale_shift: int
    shift: Any
    bounds: tuple[int, int]
    more: int
    quants: tuple[Quant, Quant, Quant]  # of h, x and the output
    arithmetic: str = "16-bit state"

    def code(self, step: Step) -> Code:
        """One call."""
        a: dict[str, Any] = step.arguments()
        s, (N, C, H, W), c = self.layer.steps, shape(a["h"]), step.constants
        maps, side = len(self.layer.weight), self.layer.weight.shape[-1]
        radius = max(1, side // 2)
        pitch, edge = W + 2 * radius, radius - side // 2
        plane = max(_LEAST, -(-((H + 2 * radius) * pitch + SLACK) // 2) * 2)
        taps = [(i + edge) * pitch + j + edge for i in range(0, side, 2) for j in range(side)]  # of two rows
        where = self.layer.where
        lists = [", ".join(map(str, q)) for q in (*self.factors, *zip(*self.coefficient_bounds, strict=True), self.D)]
        fields = (
            H, W, radius, pitch, plane, int(where is Boundary.PERIODIC), int(where.state_parity),
            int(where.velocity_parity), C, maps, side, len(taps), int(s.has_source), int(s.previous_is_input),
            int(self.layer.residual), self.fraction, self.weight, self.coefficient_shift, self.scale_shift,
            *(q.zero for q in self.quants), *(f"{{{text}}}" for text in lists), *self.bounds, self.more, c.ints(taps),
        )  # fmt: skip
        h, x = step.read(a["h"]), step.read(a["x"])
        arrays = [c.int16s(self.stencils.w), c.int32s(self.stencils.bias)]
        arrays += [c.int32s(q) for q in (self.multiplier, self.scale, self.shift)]
        name = c.struct("global_shape16", fields)
        text = f"global_layer16(y, {h}, {x}, {', '.join(arrays)}, &{name}, {step.steps(s.K)}, t);"
        form = tuple(self.layer.weight.shape)
        total = stencil_macs((N, C, H, W), form) + macs((N, C, H, W), s.K, learned_diffusion=maps == 4)
        over = tuple({step.number_of(a["h"]), step.number_of(a["x"])} - {-1})
        return Code(text, scratch=PLANES * plane // 2 + 4 * len(taps), macs=total, over=over)

    def values(self, h: Any, x: Any = None, K: int | None = None) -> Any:
        """The same, plane by plane side by side; without x it is h."""
        C, H, W = h.shape[-3:]
        s, where, (own, other, to) = self.layer.steps, self.layer.where, self.quants
        h, x = h.reshape(C, H, W) - own.zero, (h if x is None else x).reshape(C, H, W) - other.zero
        maps, k = len(self.layer.weight), self.layer.weight.shape[-1]
        w = self.stencils.w.reshape(C, maps, k, k).transpose(1, 0, 2, 3)
        bias, multiplier = (q.reshape(C, maps).T[..., None, None] for q in (self.stencils.bias, self.multiplier))
        found = [
            np.clip(rescaled((np.rint(q).astype(np.int64) + b) * m, 32 + self.coefficient_shift), *bounds)
            for q, b, m, bounds in zip(self.layer.sums(h, w), bias, multiplier, self.coefficient_bounds, strict=False)
        ]
        found += [np.full((C, H, W), D) for D in self.D]
        a_x, a_y, b_x, b_y = found[:4]
        D = (1 << self.fraction >> 1) + b_x + b_y
        scale = ((1 << (self.fraction + SCALE_BITS)) + D // 2) // D
        bits = self.fraction + SCALE_BITS - self.weight

        def weight(v: Any) -> Any:
            return np.clip(rescaled(v * scale, bits), -MOST, MOST)

        right, left, _, _ = neighbours(halo(a_x, where, where.velocity_parity))
        _, _, down, up = neighbours(halo(a_y, where, where.velocity_parity))
        here = weight((left - right) + (up - down))
        weights = [weight(q) for q in (b_x - a_x, b_x + a_x, b_y - a_y, b_y + a_y)]
        previous = np.clip((1 << self.weight) - sum(weights), -MOST, MOST)
        state, first, source = (
            np.clip(rescaled(q * f[0], f[1]), -_FULL - 1, _FULL) for q, f in zip((h, x, x), self.factors, strict=True)
        )
        before = first if s.previous_is_input else state
        f = rescaled(source * scale, SCALE_BITS) if s.has_source else 0
        for _ in range(s.K if K is None else K):
            around = neighbours(np.minimum(halo(state, where, where.state_parity), _FULL))
            total = sum(w * q for w, q in zip(weights, around, strict=True)) + here * state + previous * before
            before, state = state, np.clip(rescaled(total, self.weight) + f, -_FULL - 1, _FULL)
        shift, factor = self.shift[:, None, None], self.scale[:, None, None]
        v = np.clip(rescaled(state * factor << STATE_BITS, 32 + self.scale_shift) + shift, *self.bounds)
        v = v + (x * self.more if self.layer.residual else 0)
        return np.clip(rescaled(v, FINE) + to.zero, LOW, HIGH)[None]


@in_integers(_OPS.global_layer.default)
def global_layer(step: Step) -> Fixed:
    """Needs the scales of h, x and the output, and in `meta["ranges"]` what `Layer.ranges` found."""
    a, layer = step.arguments(), layer_of(step)
    s, (maps, C) = layer.steps, layer.weight.shape[:2]
    own, other, to, ranges = quant(a["h"]), quant(a["x"]), quant(step.node), step.main.meta.get("ranges")
    if own is None or other is None or to is None or ranges is None:
        raise NotImplementedError("a Global layer of values in float")
    if s.coefficient_act not in _CUTS or layer.output_act not in _CUTS:
        raise NotImplementedError("tanh in a Global layer in 16 bits")
    if maps == 4 and _CUTS[s.coefficient_act][0] < 0:
        raise NotImplementedError("a Global layer in 16 bits whose diffusivities may be negative")
    largest, coefficient, weight = (max(_MARGIN * q, 1e-6) for q in ranges)
    fraction, bits = (min(13, math.floor(math.log2(room / q))) for room, q in ((_FULL, coefficient), (MOST, weight)))
    if fraction < 1 or bits < 4 or fraction + SCALE_BITS - bits < 1 or layer.weight[0, 0].size > 200:
        raise NotImplementedError(f"coefficients up to {coefficient:.1e} in 16 bits")
    rows = layer.weight.transpose(1, 0, 2, 3).reshape(C * maps, -1)  # (channel, map)
    stencils = Weights.of(rows, layer.bias.T.reshape(-1), own.scale, most=_FULL)
    factors = layer.factors
    per_map = np.tile(np.array(factors[:maps]), C)
    (multiplier,), coefficient_shift = fixed_upper(stencils.scale * own.scale * per_map * 2.0**fraction)
    low, high = _CUTS[s.coefficient_act]
    cuts = [sorted(min(max(q * f * 2.0**fraction, -_FULL), _FULL) for q in (low, high)) for f in factors]
    state = largest / _FULL
    inward = [_inward(q / state) for q in (own.scale, other.scale, other.scale * s.dt)]
    unit = to.scale / 2.0**FINE
    (scale,), scale_shift = fixed_upper(layer.scale * state / unit / 2.0**STATE_BITS)
    low, high = (int(np.clip(q / unit, -(2**24), 2**24)) for q in _CUTS[layer.output_act])
    shift = np.rint(layer.shift / unit).astype(np.int64)
    more = round(other.scale / unit)
    if np.abs(shift).max(initial=0) >= 2**30 or more >= 2**20:
        raise NotImplementedError("a Global layer whose input and output are so different")
    return Fixed(
        layer, stencils, multiplier, coefficient_shift, fraction, bits, [(round(q[0]), round(q[1])) for q in cuts],
        [min(_FULL, round(D * f * 2.0**fraction)) for D, f in zip((s.D_x, s.D_y), factors[2:], strict=True)],
        inward, scale, scale_shift, shift, (low, high), more, (own, other, to),
    )  # fmt: skip


def _inward(factor: float) -> tuple[int, int]:
    """From 8 bits to a state: a multiplier and a shift whose product fits in 32 bits."""
    (multiplier,), shift = fixed(factor, bits=_BITS)
    if shift > 30:
        raise NotImplementedError("a Global layer whose input and state are so different")
    return multiplier, shift


def distance(form: Fixed, h: Any, x: Any, expected: Tensor) -> float:
    """How far the integers are from the layer in float on the same inputs, in steps of the output, in the mean."""
    own, other, to = form.quants
    got = form.values(own.of(h), other.of(x))
    return float(
        np.abs(got - to.zero - np.clip(expected.double().numpy() / to.scale, LOW - to.zero, HIGH - to.zero)).mean()
    )
