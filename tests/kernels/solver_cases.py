"""Fields of every layout and form for the solver, and the comparison of its operator with the definition."""

import torch

from pdecnn import functional, reference
from pdecnn.testing import assert_matches_reference

BOUNDARIES = ("periodic", "neumann", "dirichlet")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
LAYOUTS = ("contiguous", "channels_last", "sliced", "sliced channels_last", "transposed", "expanded", "one column")
FORMS = ("map", "channel", "0-d")
NAMES = ("h", "h_prev", "u", "v", "D_x", "D_y", "f")
WIDTHS = (7, 8, 9, 14, 16, 17, 28, 32, 33, 56, 112)  # one vector, whole ones, a bit more, and of usual maps


def with_layout(q, layout):
    """The same values with other strides; those of "expanded" and "one column" are made equal first."""
    N, C, H, W = q.shape
    if layout == "channels_last":
        return q.contiguous(memory_format=torch.channels_last)
    if layout == "sliced":
        big = torch.full((N, C + 1, H + 2, 2 * W), torch.nan, dtype=q.dtype)
        big[:, 1:, 1:-1, ::2] = q
        return big[:, 1:, 1:-1, ::2]
    if layout == "sliced channels_last":
        big = torch.full((N, C + 3, H + 2, W + 1), torch.nan, dtype=q.dtype).to(memory_format=torch.channels_last)
        big[:, 2:-1, 1:-1, 1:] = q
        return big[:, 2:-1, 1:-1, 1:]
    if layout == "transposed":
        return q.transpose(2, 3).contiguous().transpose(2, 3)
    if layout == "expanded":
        return q[:, :, :1, :1].clone().expand(N, C, H, W)
    if layout == "one column":  # channels side by side, columns all one
        return q[..., :1].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).expand(N, C, H, W)
    return q


def field(shape, dtype=torch.float32, seed=0, layout="contiguous", form="map", positive=False):
    size = {"map": shape, "channel": (1, shape[1], 1, 1), "0-d": ()}[form]
    q = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q = (q.abs() if positive else q).to(dtype)
    return with_layout(q, layout) if form == "map" else q


def fields(shape, dtype=torch.float32, layouts=("contiguous",) * 7, forms=("map",) * 4, seed=0):
    """h, h_prev, u, v, D_x, D_y, f as the operator takes them."""
    forms = ("map", "map", *forms, "map")
    return [field(shape, dtype, 7 * seed + i, layouts[i], forms[i], positive=i in (4, 5)) for i in range(7)]


def solve(room, h, h_prev, u, v, D_x, D_y, f, **options):
    return room.advection_diffusion(h, u, v, D_x, D_y, f, h_prev=h_prev, **options)


def compare(inputs, K=3, dt=0.2, dx=1.3, dy=0.8, boundary="periodic"):
    """Values and all gradients against the definition in float64; the inputs must stay as they are."""
    before = [None if q is None else q.clone() for q in inputs]
    options = {"K": K, "dt": dt, "dx": dx, "dy": dy, "boundary": boundary}
    # the gradient of a coefficient that is no map is a sum of terms of order 1 with either sign
    summed = max(inputs[0].numel() // max(1, q.numel()) for q in inputs if q is not None)
    assert_matches_reference(
        lambda *q: solve(functional, *q, **options),
        lambda *q: solve(reference, *q, **options),
        *inputs,
        steps=K,
        scale=max(1, summed) ** 0.5,
    )
    for name, q, copy in zip(NAMES, inputs, before, strict=True):
        assert q is None or torch.equal(q, copy), f"{name} was modified"


def values_and_gradients(inputs, room=functional, seed=0, **options):
    """The output and the gradient of each of the inputs that is a tensor."""
    leaves = [None if q is None else q.detach().requires_grad_() for q in inputs]
    out = solve(room, *leaves, **options)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [q for q in leaves if q is not None], grad)]
