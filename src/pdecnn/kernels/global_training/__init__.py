"""A Global layer in training, up to its output norm: coefficients with batch norm, then K steps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn.kernels import depthwise_norm


def global_training(
    h: Tensor,
    x: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: Sequence[float],
    act: str = "relu",
    *,
    D: tuple[float, float] | None = None,
    has_source: bool = True,
    previous_is_input: bool = False,
    K: int = 5,
    dt: float = 0.2,
    dx: float = 1.0,
    dy: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """`h^K` of the periodic advection-diffusion equation whose coefficients are normed stencils of `h`.

    `u, v` and, without `D`, `D_x, D_y` are the maps of `depthwise_norm(h, weight, bias, gamma, beta, eps, act)`.

    Args:
        h: The first state, `(N, C, H, W)`.
        x: The layer's input, of the same shape; None or `h` itself if it is the state.
        weight: The stencils of the coefficients, `(4, C, k, k)` or, with `D`, `(2, C, k, k)`; k is odd.
        bias: A number for each stencil and channel, or None.
        gamma: Scales after the norms, shaped likewise.
        beta: Shifts after the norms, shaped likewise.
        eps: Added to the variances, one for each stencil.
        act: `"identity"`, `"relu"` or `"relu6"`.
        D: `D_x` and `D_y` where they are not learned.
        has_source: Whether the input is the source f; else there is none.
        previous_is_input: Whether the input is the state before the first; else the first itself is.
        K: Number of time steps.
        dt: Time step.
        dx: Distance of neighbours along W.
        dy: Distance of neighbours along H.

    Returns:
        The state after K steps, and mean and variance of what each norm got, which have no gradient.

    Example:
        >>> h, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
        >>> out, mean, var = global_training(h, h, weight, None, torch.ones(4, 3), torch.zeros(4, 3), [1e-5] * 4)
        >>> out.shape, mean.shape
        (torch.Size([2, 3, 8, 8]), torch.Size([4, 3]))
    """
    M = depthwise_norm.check(h, weight, bias, gamma, beta, act, name="global_training")
    if (4 if D is None else 2) != M:
        wanted = "4 stencils (u, v, D_x, D_y)" if D is None else "2 stencils (u, v) beside D"
        raise ValueError(f"global_training: expected {wanted}, got {M}.")
    if x is not None and (x.shape, x.dtype, x.device) != (h.shape, h.dtype, h.device):
        kinds = (f"{q.dtype} of shape {tuple(q.shape)} on {q.device}" for q in (h, x))
        raise ValueError(f"global_training: expected x like h, {next(kinds)}, got {next(kinds)}.")
    for name, number in (("dt", dt), ("dx", dx), ("dy", dy)):
        if not number > 0:
            raise ValueError(f"global_training: {name} must be positive, got {name}={number}.")
    if D is not None and not (len(D) == 2 and min(D) >= 0):
        raise ValueError(f"global_training: expected D of two numbers that are not negative, got {D}.")
    if len(eps) != M:
        raise ValueError(f"global_training: expected {M} eps, got {len(eps)}.")
    if K < 1:
        raise ValueError(f"global_training: K (number of time steps) must be at least 1, got {K}.")
    other = None if x is h or not (has_source or previous_is_input) else x
    previous = previous_is_input and other is not None
    arguments = (h, other, weight, bias, gamma, beta, eps, act, D or (), K, dt, dx, dy, has_source, previous)
    return torch.ops.pdecnn.global_training.default(*arguments)  # type: ignore[no-any-return]
