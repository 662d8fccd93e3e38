"""Depth-wise stencils with batch norm in training mode and activation, several of one state at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn.kernels.depthwise_norm.op import LIMITS


def depthwise_norm(
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: float | Sequence[float] = 1e-5,
    act: str = "relu",
) -> tuple[list[Tensor], Tensor, Tensor]:
    """`M` maps `act(norm(conv(h)))` of one state, and the batch statistics of the norms.

    Map m is `act(gamma[m] (q - mean) / sqrt(var + eps[m]) + beta[m])`, where `q` is the depth-wise correlation of `h`
    with `weight[m]`, zeros beyond the border, plus `bias[m]`; mean and var are those of q over samples and pixels, and
    differentiated as such. The norm takes the bias away with the mean: its gradient is zero.

    Args:
        h: The state, `(N, C, H, W)`.
        weight: The stencils, `(M, C, k, k)` with k odd; None for `q = h` and `M = 1`.
        bias: `(M, C)` or None.
        gamma: Scales after the norm, `(M, C)`.
        beta: Shifts after the norm, `(M, C)`.
        eps: Added to the variance; one number or one for each map.
        act: `"identity"`, `"relu"` or `"relu6"`.

    Returns:
        The maps, their means `(M, C)` and their variances `(M, C)` (divided by `N H W`), which have no gradient.

    Example:
        >>> h, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
        >>> maps, mean, var = depthwise_norm(h, weight, None, torch.ones(4, 3), torch.zeros(4, 3))
        >>> len(maps), maps[0].shape, mean.shape
        (4, torch.Size([2, 3, 8, 8]), torch.Size([4, 3]))
    """
    M = check(h, weight, bias, gamma, beta, act)
    all_eps = [float(eps)] * M if isinstance(eps, (int, float)) else list(eps)
    if len(all_eps) != M:
        raise ValueError(f"depthwise_norm: expected one eps or {M}, got {len(all_eps)}.")
    maps, mean, var = torch.ops.pdecnn.depthwise_norm.default(h, weight, bias, gamma, beta, all_eps, act)
    return list(maps), mean, var


def check(
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    act: str,
    name: str = "depthwise_norm",
) -> int:
    """Refuses arguments that do not fit together; returns the number of maps."""
    if act not in LIMITS:
        raise ValueError(f"{name}: act must be one of {', '.join(map(repr, LIMITS))}, got {act!r}.")
    if h.ndim != 4 or h.shape[0] * h.shape[2:].numel() < 2:
        raise ValueError(
            f"{name}: expected h of shape (N, C, H, W) of several values per channel, got {tuple(h.shape)}."
        )
    C, M = h.shape[1], 1 if weight is None else len(weight)
    if weight is not None and not (weight.shape == (M, C, *[weight.shape[-1]] * 2) and weight.shape[-1] % 2 == 1):
        raise ValueError(f"{name}: expected weight of shape (M, {C}, k, k), k odd, got {tuple(weight.shape)}.")
    if weight is None and bias is not None:
        raise ValueError(f"{name}: a bias needs a weight; without one the map is h itself.")
    for part, q in (("bias", bias), ("gamma", gamma), ("beta", beta)):
        if q is not None and q.shape != (M, C):
            raise ValueError(f"{name}: expected {part} of shape ({M}, {C}), got {tuple(q.shape)}.")
    return M
