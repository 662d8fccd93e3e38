r"""Depth-wise expansion by f stencils that all channels share: the spatial derivatives of the hyperbolic networks.

.. math:: d_{j f + a} = D_a u_j, \qquad a = 0 \dots f-1

`D_a` is the correlation with a trainable 3x3 stencil (zeros beyond the border). As the stencils do not depend on the
channel, the expansion commutes with every mixing of channels: `D_a (T u) = T (D_a u)`.

Channel order: the f derivatives of channel j are neighbours, at `j f + a`.
"""

from torch import Tensor
from torch.nn.functional import conv2d


def shared_expand(u: Tensor, stencils: Tensor, stride: int = 1) -> Tensor:
    """Applies each of the `f` stencils to each channel.

    Args:
        u: State, `(N, C, H, W)`.
        stencils: `(f, 1, 3, 3)`.
        stride: 1 or 2.

    Shape:
        `(N, C, H, W) -> (N, C f, ceil(H / stride), ceil(W / stride))`.

    Example:
        >>> import torch
        >>> ramp = 3 * torch.arange(5.0).expand(1, 1, 4, 5)
        >>> d_dx = torch.tensor([[0.0, 0, 0], [-0.5, 0, 0.5], [0, 0, 0]]).view(1, 1, 3, 3)
        >>> shared_expand(ramp, d_dx)[0, 0, :, 1:4].unique()
        tensor([3.])
    """
    check_expand("shared_expand", u, stencils, stride)
    C = u.shape[1]
    return conv2d(u, stencils.repeat(C, 1, 1, 1), stride=stride, padding=1, groups=C)


def shared_expand_moments(u: Tensor, stencils: Tensor, stride: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel of `shared_expand` over batch and plane: two tensors `(C f,)`."""
    d = shared_expand(u, stencils, stride)
    mean = d.mean((0, 2, 3))
    return mean, (d - mean.view(1, -1, 1, 1)).square().mean((0, 2, 3))


def shared_expand_product(
    u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int = 1
) -> Tensor:
    """The nonlinearity of the quasi-linear equation: `c * (scale * D u + shift)`.

    `scale` and `shift`, both `(C f,)`, are a batch normalisation of `D u` written as one affine map; `c` has the shape
    of `shared_expand(u, stencils, stride)`.
    """
    check_product(u, stencils, scale, shift, c, stride)
    d = shared_expand(u, stencils, stride)
    return c * (d * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1))


def check_expand(where: str, u: Tensor, stencils: Tensor, stride: int) -> None:
    """Raises a ValueError that names the argument, what came and what is expected."""
    if u.ndim != 4:
        raise ValueError(f"{where}: expected u of shape (N, C, H, W), got {tuple(u.shape)}.")
    if stencils.ndim != 4 or stencils.shape[1:] != (1, 3, 3):
        raise ValueError(f"{where}: expected stencils of shape (f, 1, 3, 3), got {tuple(stencils.shape)}.")
    if stride not in (1, 2):
        raise ValueError(f"{where}: stride must be 1 or 2, got {stride}.")
    if 0 in u.shape[1:] or not len(stencils):
        raise ValueError(
            f"{where}: nothing to expand in u {tuple(u.shape)} by stencils {tuple(stencils.shape)}; only the batch may "
            "be empty."
        )
    if not u.is_floating_point():
        raise TypeError(f"{where}: u must have a floating-point dtype, got {u.dtype}. Use u.float().")
    check_like(where, "stencils", stencils, u)


def check_product(u: Tensor, stencils: Tensor, scale: Tensor, shift: Tensor, c: Tensor, stride: int) -> None:
    """The same for `shared_expand_product`."""
    where = "shared_expand_product"
    check_expand(where, u, stencils, stride)
    shape = expanded_shape(u, stencils, stride)
    if tuple(c.shape) != shape:
        raise ValueError(f"{where}: expected c of shape {shape} like the expansion, got {tuple(c.shape)}.")
    check_like(where, "c", c, u)
    for name, q in (("scale", scale), ("shift", shift)):
        if tuple(q.shape) != shape[1:2]:
            raise ValueError(f"{where}: expected {name} of shape ({shape[1]},), got {tuple(q.shape)}.")
        check_like(where, name, q, u)


def check_like(where: str, name: str, q: Tensor, u: Tensor) -> None:
    """Raises unless `q` has the dtype of `u` and is on its device."""
    if q.dtype != u.dtype:
        raise TypeError(f"{where}: {name} has dtype {q.dtype} but u has {u.dtype}. Use {name}.to(u.dtype).")
    if q.device != u.device:
        raise ValueError(f"{where}: {name} is on {q.device} but u is on {u.device}. Use {name}.to(u.device).")


def expanded_shape(u: Tensor, stencils: Tensor, stride: int) -> tuple[int, ...]:
    """The shape of `D u`."""
    N, C, H, W = u.shape
    return N, C * stencils.shape[0], (H + stride - 1) // stride, (W + stride - 1) // stride
