"""A Global layer in training, up to its output norm: coefficients with batch norm, then K steps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn.kernels import depthwise_norm


def global_training(
    h: Tensor,
    f: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: Sequence[float],
    act: str = "relu",
    *,
    K: int = 5,
    dt: float = 0.2,
    dx: float = 1.0,
    dy: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """`h^K` of the periodic advection-diffusion equation whose coefficients are four normed stencils of `h`.

    `u, v, D_x, D_y` are the maps of `depthwise_norm(h, weight, bias, gamma, beta, eps, act)`; the state before the
    first is `h` itself.

    Args:
        h: The first state, `(N, C, H, W)`.
        f: The source, of the same shape, or None. If it is `h`, one gradient is computed for both.
        weight: The stencils of the coefficients, `(4, C, k, k)` with k odd.
        bias: `(4, C)` or None.
        gamma: Scales after the norms, `(4, C)`.
        beta: Shifts after the norms, `(4, C)`.
        eps: Added to the variances, one for each coefficient.
        act: `"identity"`, `"relu"` or `"relu6"`.
        K: Number of time steps.
        dt: Time step.
        dx: Distance of neighbours along W.
        dy: Distance of neighbours along H.

    Returns:
        The state after K steps, and means and variances `(4, C)` of what the norms got, which have no gradient.

    Example:
        >>> h, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
        >>> out, mean, var = global_training(h, h, weight, None, torch.ones(4, 3), torch.zeros(4, 3), [1e-5] * 4)
        >>> out.shape, mean.shape
        (torch.Size([2, 3, 8, 8]), torch.Size([4, 3]))
    """
    if depthwise_norm.check(h, weight, bias, gamma, beta, act, name="global_training") != 4:
        raise ValueError(f"global_training: expected 4 stencils (u, v, D_x, D_y), got {len(weight)}.")
    if f is not None and f.shape != h.shape:
        raise ValueError(f"global_training: expected f of shape {tuple(h.shape)}, got {tuple(f.shape)}.")
    if len(eps) != 4:
        raise ValueError(f"global_training: expected 4 eps, got {len(eps)}.")
    if K < 1:
        raise ValueError(f"global_training: K (number of time steps) must be at least 1, got {K}.")
    source = (None, True) if f is h else (f, False)
    arguments = (h, source[0], weight, bias, gamma, beta, eps, act, K, dt, dx, dy, source[1])
    return torch.ops.pdecnn.global_training.default(*arguments)  # type: ignore[no-any-return]
