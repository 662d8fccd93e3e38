"""The K steps of advection and diffusion, alone or as a whole Global layer; K may be chosen when the file runs."""

from typing import Any

import torch

from pdecnn.deploy.c.constants import number
from pdecnn.deploy.c.convolution import SLACK
from pdecnn.deploy.c.knob import BY_K
from pdecnn.deploy.c.registry import Code, Step, emits, shape, size
from pdecnn.kernels.advection_diffusion.op import macs
from pdecnn.kernels.global_layer.arguments import ACTIVATIONS, Steps
from pdecnn.kernels.global_layer.op import stencil_macs
from pdecnn.reference.boundary import Boundary

_OPS = torch.ops.pdecnn
PLANES, GAPS = 9, 7  # as in parts/steps.c
_KINDS = {name: i for i, name in enumerate(ACTIVATIONS)}


def grid(H: int, W: int, radius: int, boundary: str, dt: float) -> tuple[str, int, int]:
    """The initialiser of a `grid_shape`, its pitch and the floats of scratch memory."""
    where = Boundary(boundary)
    pitch = W + 2 * radius
    places, gap = (H - 1) * pitch + W, max(radius * (pitch + 1), SLACK)
    fields = (H, W, radius, pitch, places + gap, gap, int(where is Boundary.PERIODIC))
    parities = (float(where.state_parity), float(where.velocity_parity), dt)
    return f"{{{', '.join([*map(str, fields), *map(number, parities)])}}}", pitch, PLANES * places + GAPS * gap


def scales(dt: float, dx: float, dy: float, sign: int = 1) -> list[float]:
    """What makes `a_x`, `a_y`, `b_x`, `b_y` of the velocities and diffusivities."""
    return [sign * dt / (2 * dx), sign * dt / (2 * dy), dt / dx**2, dt / dy**2]


@emits(_OPS.global_layer.default)
def global_layer(step: Step) -> Code:
    """One call of `global_layer`: coefficients, K steps, affine map, activation and residual, channel by channel."""
    a: dict[str, Any] = step.arguments()
    N, C, H, W = shape(a["h"])
    s = Steps(*(a[name] for name in Steps._fields))
    weight, bias, scale, shift = (step.constant(a[name]) for name in ("weight", "bias", "scale", "shift"))
    if weight is None or bias is None or scale is None or shift is None or N != 1:
        raise NotImplementedError("a Global layer with computed weights or of several samples")
    maps, side = len(weight), weight.shape[-1]
    radius = max(1, side // 2)
    form, pitch, scratch = grid(H, W, radius, s.boundary, s.dt)
    edge = radius - side // 2
    taps = [(i + edge) * pitch + j + edge for i in range(side) for j in range(side)]
    stencils = weight.numpy().reshape(maps, C, -1).transpose(1, 2, 0)  # four maps side by side, two one by one
    c = step.constants
    w = c.floats(stencils if maps == 4 else stencils.transpose(0, 2, 1))
    b, K = c.floats(bias.numpy().T), step.steps(s.K)
    by_K = step.main.meta.get("by_K")
    if by_K is None:
        per_channel = [c.floats(q.numpy()) for q in (scale, shift)]
    else:
        row = f"(({K}) - {step.module.meta['steps'].start}) * {C}"
        per_channel = [f"{c.floats(by_K[name].numpy())} + {row}" for name in BY_K]
    factors = scales(s.dt, s.dx, s.dy, s.flow_sign)
    numbers = (
        C, maps, len(taps), _KINDS[s.coefficient_act], _KINDS[a["output_act"]], int(s.has_source),
        int(s.previous_is_input), int(a["residual"]),
    )  # fmt: skip
    D = [number(s.D_x * factors[2]), number(s.D_y * factors[3])]
    fields = (form, *numbers, f"{{{', '.join(map(number, factors))}}}", *D, c.ints(taps))
    h, x = step.read(a["h"]), step.read(a["x"])
    name = c.struct("global_shape", fields)
    text = f"global_layer(y, {h}, {x}, {w}, {b}, {', '.join(per_channel)}, &{name}, {K}, t);"
    total = stencil_macs((N, C, H, W), tuple(weight.shape)) + macs((N, C, H, W), s.K, learned_diffusion=maps == 4)
    over = tuple({step.number_of(a["h"]), step.number_of(a["x"])} - {-1})
    return Code(text, scratch=scratch, macs=total, over=over)


@emits(_OPS.advection_diffusion.default)
def advection_diffusion(step: Step) -> Code:
    """One call of `advection_diffusion`."""
    a: dict[str, Any] = step.arguments()
    N, C, H, W = shape(a["h"])
    form, _, scratch = grid(H, W, 1, a["boundary"], a["dt"])
    coefficients = [a[name] for name in ("u", "v", "D_x", "D_y")]
    along = [int(size(q) == N * C * H * W and size(q) > 1) for q in coefficients]
    steps = [H * W if is_map else int(size(q) > 1) for q, is_map in zip(coefficients, along, strict=True)]
    lists = [", ".join(map(str, q)) for q in (steps, along, map(number, scales(a["dt"], a["dx"], a["dy"])))]
    c = step.constants
    h = step.read(a["h"])
    before = h if a["h_prev"] is None else step.read(a["h_prev"])
    f = "0" if a["f"] is None else step.read(a["f"])
    names = ", ".join(step.read(q) for q in coefficients)
    shape_name = c.struct("flow_shape", (form, N * C, C, *(f"{{{text}}}" for text in lists)))
    text = (
        f"const float *const q[4] = {{{names}}};\n"
        f"advection_diffusion(y, {h}, {before}, q, {f}, &{shape_name}, {step.steps(a['K'])}, t);"
    )
    over = tuple(range(len(step.reads)))  # a plane is read whole before it is written
    over = tuple(i for i in over if size(step.reads[i]) == size(step.node))
    return Code(text, scratch=scratch, macs=macs((N, C, H, W), a["K"], learned_diffusion=bool(along[2])), over=over)
