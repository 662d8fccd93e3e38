r"""Transport and diffusion with constants of each channel: K explicit steps, which are one depth-wise convolution.

.. math::

    \partial_t h + \sum_i u_i\, \partial_i h = \sum_i D_i\, \partial_i^2 h

With constants the steps are a stencil applied K times, and so one stencil of `2K + 1` pixels: a large receptive field
for two numbers per channel and axis, at the price of a depth-wise convolution in every runtime.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from pdecnn.reference.advection_diffusion import check_steps

MAX_K = 16
_CONVS = {1: nnf.conv1d, 2: nnf.conv2d, 3: nnf.conv3d}


class Transport(nn.Module):
    """K steps of the equation above; beyond its border the map is zero.

    Args:
        channels: Channels C, which are not mixed.
        K: Number of time steps.
        axes: Dimensions of space, 1 to 3.
        share: How many neighbouring channels have the same coefficients; it divides C.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Attributes:
        velocity: `(axes, C / share)`: pixels per step along each axis of the map, in their order.
        diffusion: `(axes, C / share)`: in pixels squared per step.

    Example:
        >>> layer = Transport(4, K=2)
        >>> layer(torch.ones(1, 4, 8, 8)).shape, layer.kernel().shape
        (torch.Size([1, 4, 8, 8]), torch.Size([4, 1, 5, 5]))
    """

    basis: Tensor

    def __init__(
        self,
        channels: int,
        *,
        K: int = 1,
        axes: int = 2,
        share: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if axes not in _CONVS:
            raise ValueError(f"Transport: axes must be 1, 2 or 3, got axes={axes}.")
        check_share("Transport", channels, share)
        self.channels, self.axes, self.share = channels, axes, share
        self.set_steps(K)
        self.velocity = nn.Parameter(torch.empty(axes, channels // share, device=device, dtype=dtype))
        self.diffusion = nn.Parameter(torch.empty(axes, channels // share, device=device, dtype=dtype))
        self.register_buffer("basis", _differences(axes).to(device=device, dtype=dtype), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Velocities of either sign, and a diffusion that keeps a step from making maps larger."""
        nn.init.normal_(self.velocity, std=0.5)
        nn.init.constant_(self.diffusion, 0.6 / self.axes)

    def set_steps(self, K: int) -> None:
        """Changes the number of time steps; no parameter depends on it."""
        check_steps("Transport", K)
        if K > MAX_K:
            raise ValueError(f"Transport: K must be at most {MAX_K}, a stencil of {2 * MAX_K + 1} pixels; got K={K}.")
        self.K = K

    def kernel(self) -> Tensor:
        """The stencil of all steps, `(C, 1, 2K + 1, ...)`."""
        rates = torch.cat([self.velocity, self.diffusion])
        change = torch.tensordot(rates, self.basis[1:], dims=([0], [0]))
        step = (self.basis[0] + change).unsqueeze(1)
        mirrored, kernel = step.flip(tuple(range(2, step.ndim))), step.transpose(0, 1)
        for _ in range(self.K - 1):
            kernel = _CONVS[self.axes](kernel, mirrored, padding=2, groups=self.channels // self.share)
        kernel = kernel.transpose(0, 1)
        return kernel if self.share == 1 else kernel.repeat_interleave(self.share, 0)

    def forward(self, h: Tensor) -> Tensor:
        """`(N, C, ...) -> (N, C, ...)`."""
        return _CONVS[self.axes](h, self.kernel(), padding=self.K, groups=self.channels)

    @torch.no_grad()
    def to_conv(self) -> nn.Module:
        """The same as a convolution with fixed weights, for inference."""
        conv: nn.Module = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[self.axes - 1](
            self.channels, self.channels, 2 * self.K + 1, padding=self.K, groups=self.channels, bias=False
        )
        conv.weight = nn.Parameter(self.kernel().contiguous(), requires_grad=False)
        return conv.train(self.training)

    def extra_repr(self) -> str:
        """What the module shows of itself."""
        others = {"axes": (self.axes, 2), "share": (self.share, 1)}
        return f"{self.channels}, K={self.K}" + "".join(f", {n}={v}" for n, (v, usual) in others.items() if v != usual)


def check_share(who: str, channels: int, share: int) -> None:
    """A ValueError unless groups of `share` channels make up all of them."""
    if share < 1 or channels % share:
        raise ValueError(f"{who}: share must divide the {channels} channels, got share={share}.")


def _differences(axes: int) -> Tensor:
    """Stencils of three pixels a side: the identity, minus the first derivative along each axis, then the second."""
    identity = torch.tensor([0.0, 1.0, 0.0])
    lines = [torch.tensor([0.5, 0.0, -0.5])] * axes + [torch.tensor([1.0, -2.0, 1.0])] * axes
    found = []
    for i, line in enumerate([identity, *lines]):
        stencil = torch.ones(())
        for axis in range(axes):
            along = line if i == 0 or axis == (i - 1) % axes else identity
            stencil = stencil.unsqueeze(-1) * along
        found.append(stencil)
    return torch.stack(found)
