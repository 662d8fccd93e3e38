"""What the operators of a Global layer take, by name, and what they refuse."""

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.kernels.advection_diffusion.op import Problem
from pdecnn.kernels.library import BOUNDARIES
from pdecnn.reference.advection_diffusion import check_steps

ACTIVATIONS: dict[str, Any] = {
    "identity": lambda q: q,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "tanh": torch.tanh,
    "hardtanh": functional.hardtanh,
}
SIDES = (1, 3, 5)  # of the stencils that kernels are written for
STEPS = (
    "float D_x, float D_y, int K, float dt, float dx, float dy, str boundary, int flow_sign, bool has_source, "
    "bool previous_is_input, str coefficient_act"
)


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

    def solve(self, h: Tensor, x: Tensor | None, maps: Sequence[Tensor]) -> Problem:
        """What is to be solved with these learned coefficients; without x the layer's input is `h`."""
        D_x, D_y = maps[2:] if len(maps) == 4 else (h.new_full((), self.D_x), h.new_full((), self.D_y))
        # x and y against the index: the same as negative velocities
        u, v = maps[:2] if self.flow_sign > 0 else (-maps[0], -maps[1])
        f = None if not self.has_source else h if x is None else x
        h_prev = x if self.previous_is_input else None
        return Problem(h, h_prev, u, v, D_x, D_y, f, self.K, self.dt, self.dx, self.dy, self.boundary)

    def check(self, name: str, h: Tensor, x: Tensor | None, weight: Tensor) -> None:
        """A ValueError if the steps cannot be made."""
        if x is not None and (x.shape, x.dtype, x.device) != (h.shape, h.dtype, h.device):
            kinds = (f"{q.dtype} of shape {tuple(q.shape)} on {q.device}" for q in (h, x))
            raise ValueError(f"{name}: expected x like h, {next(kinds)}, got {next(kinds)}.")
        check_steps(name, self.K)
        for part in ("dt", "dx", "dy"):
            value = getattr(self, part)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}: {part} must be positive, got {part}={value}.")
        for part, valid in (("boundary", BOUNDARIES), ("coefficient_act", ACTIVATIONS), ("flow_sign", (1, -1))):
            check_one_of(name, part, getattr(self, part), valid)
        if len(weight) not in (2, 4):
            raise ValueError(f"{name}: expected 2 stencils (u, v) or 4 (u, v, D_x, D_y), got {len(weight)}.")
        if len(weight) == 2 and min(self.D_x, self.D_y) < 0:
            raise ValueError(f"{name}: D_x and D_y must not be negative, got {self.D_x} and {self.D_y}.")


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


def check_one_of(name: str, part: str, value: Any, valid: Collection[Any]) -> None:
    """A ValueError if it is not."""
    if value not in valid:
        raise ValueError(f"{name}: {part} must be one of {', '.join(map(repr, valid))}, got {value!r}.")
