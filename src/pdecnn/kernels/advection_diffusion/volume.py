"""`pdecnn::advection_diffusion_3d`: the solver for volumes `(N, C, D, H, W)`, and its native kernel.

The same scheme with a third axis, and the same kernel: a volume is D planes that stay in cache together. All tensors
are brought into the order of NCDHW first; coefficients are maps, `(1, C, 1, 1, 1)` or of no dimension.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pdecnn.kernels.library import (
    BOUNDARIES,
    DTYPES,
    LIBRARY,
    differentiate,
    refuse_second_derivative,
    register,
    save_inputs,
)
from pdecnn.kernels.native import Library
from pdecnn.reference import advection_diffusion_3d as reference
from pdecnn.reference.advection_diffusion import check_arguments

_ARGUMENTS = (
    "Tensor h, Tensor? h_prev, Tensor u, Tensor v, Tensor w, Tensor D_x, Tensor D_y, Tensor D_z, Tensor? f, "
    "int K, float dt, float dx, float dy, float dz, str boundary"
)
_ABSENT = (0, 0, 0, 0, 0)


class Volume(NamedTuple):
    """The operator's arguments, in the order of its schema."""

    h: Tensor
    h_prev: Tensor | None
    u: Tensor
    v: Tensor
    w: Tensor
    D_x: Tensor
    D_y: Tensor
    D_z: Tensor
    f: Tensor | None
    K: int
    dt: float
    dx: float
    dy: float
    dz: float
    boundary: str

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Those that may have a gradient."""
        return self[:9]

    def check(self) -> None:
        """Raises what the front door raises: the operator may be called by anyone."""
        h, h_prev, u, v, w, D_x, D_y, D_z, f, K, dt, dx, dy, dz, boundary = self
        check_arguments(h, (u, v, w), (D_x, D_y, D_z), f, h_prev, K, dt, (dx, dy, dz), boundary)

    def solve(self) -> Tensor:
        """`h^K` by the definition; bfloat16 is storage, here as in every kernel."""
        wide: Any = [q if q is None else q.to(torch.promote_types(q.dtype, torch.float32)) for q in self.tensors]
        h, h_prev, u, v, w, D_x, D_y, D_z, f = wide
        *_, K, dt, dx, dy, dz, boundary = self
        options: Any = {"K": K, "dt": dt, "dx": dx, "dy": dy, "dz": dz, "boundary": boundary}
        return reference(h, u, v, w, D_x, D_y, D_z, f, h_prev=h_prev, **options).to(self.h.dtype)

    def room(self, needs: Sequence[bool]) -> list[Tensor]:
        """Empty gradients, each of its argument's shape, or of no element where it is not needed."""
        pairs = zip(self.tensors, needs, strict=True)
        return [self.h.new_empty(0 if q is None or not need else q.shape) for q, need in pairs]


def forward_default(*arguments: Any) -> Tensor:
    """`h^K` by the definition."""
    return Volume(*arguments).solve().contiguous()


def backward_default(grad: Tensor, *arguments: Any) -> list[Tensor]:
    """The gradients by autograd of the definition."""
    *given, needs = arguments
    volume = Volume(*given)
    grads = iter(differentiate(lambda *q: Volume(*q, *given[9:]).solve(), volume.tensors, needs, grad))
    return [g.copy_(next(grads)) if need else g for g, need in zip(volume.room(needs), needs, strict=True)]


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    inputs = ctx.saved_tensors
    needs = [q is not None and need for q, need in zip(inputs, ctx.needs_input_grad, strict=False)]
    grads = torch.ops.pdecnn.advection_diffusion_3d_backward(grad, *inputs, *ctx.options, needs)
    return (*(g if need else None for g, need in zip(grads, needs, strict=True)), *[None] * len(ctx.options))


def _forward_flops(h: Any, *others: Any, **_: Any) -> int:
    return int(2 * torch.Size(h).numel() * (8 * others[8] + 20))


def _backward_flops(grad: Any, *others: Any, **_: Any) -> int:
    return int(2 * torch.Size(grad).numel() * (24 * others[9] + 28))


register(
    f"advection_diffusion_3d({_ARGUMENTS}) -> Tensor",
    forward_default,
    lambda h, *_: torch.empty_like(h, memory_format=torch.contiguous_format),
    _forward_flops,
    gradient=_gradient,
    save=save_inputs,
)
register(
    f"advection_diffusion_3d_backward(Tensor grad, {_ARGUMENTS}, bool[9] needs) -> Tensor[]",
    backward_default,
    lambda grad, *arguments: Volume(*arguments[:-1]).room(arguments[-1]),
    _backward_flops,
    gradient=refuse_second_derivative("advection_diffusion_3d", "pdecnn.reference.advection_diffusion_3d"),
)
for _device in ("cpu", "cuda"):
    torch.library.register_autocast("pdecnn::advection_diffusion_3d", _device, torch.float32, lib=LIBRARY)


def _map(q: Tensor | None, shape: torch.Size) -> tuple[int, ...]:
    """Address and strides of a contiguous field, whose planes' rows follow each other; 0 where it is broadcast."""
    if q is None:
        return _ABSENT
    if q.shape == shape:
        return (q.data_ptr(), q.stride(0), q.stride(1), q.stride(3), 1)
    return (q.data_ptr(), 0, 1 if q.ndim == 5 else 0, 0, 0)


def _fields(volume: Volume) -> tuple[int | float, ...]:
    """The fields of `Problem` in `common/abi.h`."""
    *_, K, dt, dx, dy, dz, boundary = volume
    shape = volume.h.shape
    maps = [x for q in volume.tensors for x in _map(q, shape)]
    return (DTYPES[volume.h.dtype], *shape, K, BOUNDARIES[boundary], 0, dt, dx, dy, dz, *maps)


def register_native(library: Library) -> None:
    """Makes the native kernel the implementation on the CPU."""
    run_forward = library.function("pdecnn_advection_diffusion_forward")
    run_backward = library.function("pdecnn_advection_diffusion_backward")

    def ordered(*arguments: Any) -> Volume:
        volume = Volume(*arguments)
        volume.check()
        tensors: Any = [None if q is None else q.contiguous() for q in volume.tensors]
        return Volume(*tensors, *arguments[9:])

    def forward(*arguments: Any) -> Tensor:
        if arguments[0].dtype not in DTYPES:
            return forward_default(*arguments)
        volume = ordered(*arguments)
        out = torch.empty_like(volume.h)
        run_forward(*_fields(volume), *_map(out, out.shape))
        return out

    def backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
        *given, needs = arguments
        if grad.dtype not in DTYPES:
            return backward_default(grad, *arguments)
        volume = ordered(*given)
        grad, shape = grad.contiguous(), grad.shape
        grads = volume.room(needs)
        # coefficients that are no map have one number for each volume, which are added up here
        made = [
            g if need and g.shape == shape else g.new_empty(shape[:2] if need else 0, dtype=torch.float64)
            for g, need in zip(grads, needs, strict=True)
        ]
        places: list[int] = []
        for g in made:
            places += (*_map(g, shape), 0) if g.shape == shape else (*_ABSENT, g.data_ptr() if g.ndim == 2 else 0)
        run_backward(*_fields(volume), *_map(grad, shape), *places)
        totals = zip(made, grads, strict=True)
        return [g if g is m or m.ndim != 2 else g.copy_(_total(m, g)) for m, g in totals]

    LIBRARY.impl("advection_diffusion_3d", forward, "CPU")
    LIBRARY.impl("advection_diffusion_3d_backward", backward, "CPU")


def _total(sums: Tensor, c: Tensor) -> Tensor:
    per_channel = sums.sum(0)
    return (per_channel if c.ndim == 5 else per_channel.sum()).view(c.shape)
