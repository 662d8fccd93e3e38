"""What the operators of a Global layer take, by name, and what they refuse."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.kernels.library import BOUNDARIES, is_interleaved
from pdecnn.reference.advection_diffusion import MAX_STEPS

ACTIVATIONS: dict[str, Any] = {
    "identity": lambda q: q,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "tanh": torch.tanh,
    "hardtanh": functional.hardtanh,
}


class Steps(NamedTuple):
    """The K steps of a layer. `D_x` and `D_y` count where u and v alone are learned."""

    D_x: float
    D_y: float
    K: int
    dt: float
    dx: float
    dy: float
    boundary: str
    flow_sign: int  # -1 negates u and v
    has_source: bool  # the source is the layer's input; else there is none
    previous_is_input: bool  # so is the state before the first; else it is the first
    coefficient_act: str

    def solve(self, h: Tensor, x: Tensor, maps: Sequence[Tensor]) -> tuple[Any, ...]:
        """What `pdecnn::advection_diffusion` takes, with these learned coefficients."""
        D = maps[2:] if len(maps) == 4 else (h.new_full((), self.D_x), h.new_full((), self.D_y))
        # x and y against the index: the same as negative velocities
        u, v = maps[:2] if self.flow_sign > 0 else (-maps[0], -maps[1])
        h_prev, f = x if self.previous_is_input else None, x if self.has_source else None
        return h, h_prev, u, v, *D, f, self.K, self.dt, self.dx, self.dy, self.boundary

    @property
    def numbers(self) -> tuple[float, ...]:
        """`dt, dx, dy, D_x, D_y` as the native kernels take them: x and y against the index are negative."""
        return self.dt, self.flow_sign * self.dx, self.flow_sign * self.dy, self.D_x, self.D_y


STEPS = (
    "float D_x, float D_y, int K, float dt, float dx, float dy, str boundary, int flow_sign, bool has_source, "
    "bool previous_is_input, str coefficient_act"
)


def layout(h: Tensor) -> torch.memory_format:
    """The order of all maps: channels side by side where those of `h` are, else planes one after another."""
    return torch.channels_last if is_interleaved(h) and not h.is_contiguous() else torch.contiguous_format


def in_order(q: Tensor, h: Tensor) -> Tensor:
    """A copy of `q` in the order of `h`, unless it is so."""
    return q.contiguous(memory_format=layout(h))


def check_steps(name: str, h: Tensor, x: Tensor | None, weight: Tensor, steps: Steps) -> None:
    """A ValueError if the steps cannot be made."""
    if x is not None and (x.shape, x.dtype, x.device) != (h.shape, h.dtype, h.device):
        kinds = (f"{q.dtype} of shape {tuple(q.shape)} on {q.device}" for q in (h, x))
        raise ValueError(f"{name}: expected x like h, {next(kinds)}, got {next(kinds)}.")
    if not 1 <= steps.K <= MAX_STEPS:
        raise ValueError(f"{name}: K (number of time steps) must be 1 to {MAX_STEPS}, got K={steps.K}.")
    for part in ("dt", "dx", "dy"):
        value = getattr(steps, part)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}: {part} must be positive, got {part}={value}.")
    for part, valid in (("boundary", BOUNDARIES), ("coefficient_act", ACTIVATIONS), ("flow_sign", (1, -1))):
        if getattr(steps, part) not in valid:
            raise _not_one_of(name, part, getattr(steps, part), valid)
    if len(weight) not in (2, 4):
        raise ValueError(f"{name}: expected 2 stencils (u, v) or 4 (u, v, D_x, D_y), got {len(weight)}.")
    if len(weight) == 2 and min(steps.D_x, steps.D_y) < 0:
        raise ValueError(f"{name}: D_x and D_y must not be negative, got {steps.D_x} and {steps.D_y}.")


def check_maps(name: str, h: Tensor, weight: Tensor | None, **others: Tensor | None) -> None:
    """A ValueError if stencils, norms and state do not fit together; `others` are `(maps, C)`, or `(C,)` by name."""
    if h.ndim != 4 or h.shape[2] < 1 or h.shape[3] < 1:
        raise ValueError(f"{name}: expected h of shape (N, C, H, W), H and W at least 1, got {tuple(h.shape)}.")
    C, M = h.shape[1], 1 if weight is None else len(weight)
    if weight is not None:
        k = weight.shape[-1]
        if weight.shape != (M, C, k, k) or k % 2 == 0:
            raise ValueError(f"{name}: expected weight of shape (maps, {C}, k, k), k odd, got {tuple(weight.shape)}.")
    for part, q in (("weight", weight), *others.items()):
        if q is None:
            continue
        shape = (C,) if part in ("scale", "shift") else (M, C)
        if part != "weight" and q.shape != shape:
            raise ValueError(f"{name}: expected {part} of shape {shape}, got {tuple(q.shape)}.")
        if q.dtype != h.dtype or q.device != h.device:
            raise ValueError(f"{name}: expected {part} like h, {h.dtype} on {h.device}, got {q.dtype} on {q.device}.")


def check_act(name: str, part: str, act: str) -> None:
    """A ValueError if there is no such activation."""
    if act not in ACTIVATIONS:
        raise _not_one_of(name, part, act, ACTIVATIONS)


def _not_one_of(name: str, part: str, value: Any, valid: Any) -> ValueError:
    return ValueError(f"{name}: {part} must be one of {', '.join(map(repr, valid))}, got {value!r}.")
