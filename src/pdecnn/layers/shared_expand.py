"""The trainable derivatives of the hyperbolic networks: f stencils, shared by all channels."""

import torch
from torch import Tensor, nn

from pdecnn.functional import shared_expand, shared_expand_moments, shared_expand_product


class SharedDepthwiseExpand(nn.Module):
    r"""Expands `C` channels to `C f` by applying `f` trainable 3x3 stencils to each: `d_{j f + a} = D_a u_j`.

    It has `9 f` weights, whatever the number of channels, and commutes with every mixing of the channels.

    Args:
        channels: Number of input channels C.
        f: Number of stencils.
        stride: 1 or 2.

    Shape:
        `(N, C, H, W) -> (N, C f, ceil(H / stride), ceil(W / stride))`.

    Example:
        >>> expand = SharedDepthwiseExpand(64, f=4)
        >>> expand(torch.zeros(1, 64, 8, 8)).shape, sum(p.numel() for p in expand.parameters())
        (torch.Size([1, 256, 8, 8]), 36)
    """

    def __init__(
        self,
        channels: int,
        f: int = 4,
        *,
        stride: int = 1,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if f < 1:
            raise ValueError(f"SharedDepthwiseExpand: f (number of stencils) must be at least 1, got f={f}.")
        if stride not in (1, 2):
            raise ValueError(f"SharedDepthwiseExpand: stride must be 1 or 2, got {stride}.")
        self.channels, self.f, self.stride = channels, f, stride
        self.weight = nn.Parameter(torch.empty(f, 1, 3, 3, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the stencils as the grouped convolution they stand for would draw its own (fan-out `9 f`)."""
        nn.init.normal_(self.weight, std=(2.0 / (9 * self.f)) ** 0.5)

    def forward(self, u: Tensor) -> Tensor:
        """Returns all derivatives of all channels."""
        self.check(u)
        return shared_expand(u, self.weight, self.stride)

    def normed_product(self, u: Tensor, norm: nn.Module, c: Tensor) -> Tensor:
        """Returns `norm(self(u)) * c`, for a plain `BatchNorm2d` without ever storing the expansion."""
        self.check(u)
        if type(norm) is not nn.BatchNorm2d or not norm.affine or not norm.track_running_stats:
            return norm(self(u)) * c  # type: ignore[no-any-return]
        assert norm.running_mean is not None
        assert norm.running_var is not None
        if norm.training:
            mean, var = shared_expand_moments(u, self.weight, self.stride)
            count = c.numel() // c.shape[1]
            self._update_running_statistics(norm, mean.detach(), var.detach(), count)
        else:
            mean, var = norm.running_mean, norm.running_var
        scale = norm.weight * torch.rsqrt(var + norm.eps)
        return shared_expand_product(u, self.weight, scale, norm.bias - mean * scale, c, self.stride)

    @staticmethod
    def _update_running_statistics(norm: nn.BatchNorm2d, mean: Tensor, var: Tensor, count: int) -> None:
        if count < 2:
            raise ValueError(f"SharedDepthwiseExpand: training needs more than one value per channel, got {count}.")
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        with torch.no_grad():
            share = norm.momentum if norm.momentum is not None else 1.0 / norm.num_batches_tracked
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
            norm.running_var.lerp_(var.to(norm.running_var.dtype) * (count / (count - 1)), share)

    def check(self, u: Tensor) -> None:
        """Raises a ValueError unless `u` has this layer's channels."""
        if u.ndim != 4 or u.shape[1] != self.channels:
            raise ValueError(
                f"SharedDepthwiseExpand: expected u of shape (N, {self.channels}, H, W), got {tuple(u.shape)}."
            )

    def extra_repr(self) -> str:
        """The arguments, to be pasted back."""
        return f"{self.channels}, f={self.f}, stride={self.stride}"
