"""The residual blocks that Global layers are built from and replace: one class per published form, no biases."""

from collections.abc import Callable
from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

LayerFactory = Callable[..., nn.Module]


class BasicBlock(nn.Module):
    """The post-activation residual block `act(BN(conv(act(BN(conv(x))))) + shortcut(x))` with 3x3 convolutions.

    The shortcut is the identity where shapes allow it, else a strided 1x1 convolution with norm ("option B").

    Shape:
        `(N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)`, rounded up.

    Example:
        >>> BasicBlock(8, 16, stride=2)(torch.zeros(1, 8, 6, 6)).shape
        torch.Size([1, 16, 3, 3])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: int = 1,
        act_layer: LayerFactory = nn.ReLU,
        norm_layer: LayerFactory = nn.BatchNorm2d,
        drop_path: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False, **dd)
        self.bn1 = norm_layer(out_channels, **dd)
        self.act1 = act_layer()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False, **dd)
        self.bn2 = norm_layer(out_channels, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.act2 = act_layer()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            conv = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False, **dd)
            self.shortcut = nn.Sequential(conv, norm_layer(out_channels, **dd))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        h = self.act1(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        out: Tensor = self.act2(self.drop_path(h) + self.shortcut(x))
        return out


class ResidualChain(nn.Module):
    """`act(body(x) + x)` where the body is a chain of convolutions of constant width, each with its norm.

    `kernel_sizes` are those of the convolutions; an activation stands between every two. `separable` makes each
    convolution a depth-wise one followed by a 1x1.

    - `(3, 3)` is the residual block, `(1, 3, 1)` the bottleneck of constant width,
    - `(3, 3)` with `separable=True` is the source block of [KS22, Table 8].

    Example:
        >>> sum(p.numel() for p in ResidualChain(16, (3, 3), separable=True).parameters())  # 2 (9 C + C^2 + 2 C)
        864
    """

    def __init__(
        self,
        channels: int,
        kernel_sizes: tuple[int, ...] = (3, 3),
        *,
        separable: bool = False,
        act_layer: LayerFactory = nn.ReLU,
        norm_layer: LayerFactory = nn.BatchNorm2d,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        layers: list[nn.Module] = []
        for k in kernel_sizes:
            groups = channels if separable else 1
            layers.append(nn.Conv2d(channels, channels, k, padding=k // 2, groups=groups, bias=False, **dd))
            if separable:
                layers.append(nn.Conv2d(channels, channels, 1, bias=False, **dd))
            layers += [norm_layer(channels, **dd), act_layer()]
        self.act = layers.pop()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of the shape of `x`."""
        out: Tensor = self.act(self.body(x) + x)
        return out
