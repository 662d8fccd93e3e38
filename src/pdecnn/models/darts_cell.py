"""The cell found by second-order DARTS: its operations, its two genotypes, its auxiliary head.

A cell has two inputs (the outputs of the two cells before it) and four nodes; a node is the sum of two edges, an edge
an operation on an earlier state. The output is the concatenation of the nodes, four times as wide as a node.
"""

from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from pdecnn.layers.blocks import LayerFactory

Edges = tuple[tuple[str, int], ...]

# Two edges (operation, state) for each of the nodes 2, 3, 4, 5; states 0 and 1 are the inputs.
NORMAL: Edges = (
    *(("sep3", 0), ("sep3", 1)),
    *(("sep3", 0), ("sep3", 1)),
    *(("sep3", 1), ("skip", 0)),
    *(("skip", 0), ("dil3", 2)),
)
REDUCE: Edges = (
    *(("max3", 0), ("max3", 1)),
    *(("skip", 2), ("max3", 1)),
    *(("max3", 0), ("skip", 2)),
    *(("skip", 2), ("max3", 1)),
)
NODES = 4


class FactorizedReduce(nn.Module):
    """Halves the resolution: two strided 1x1 convolutions, the second on the input shifted by a pixel, concatenated."""

    def __init__(
        self, in_channels: int, out_channels: int, act_layer: LayerFactory, norm_layer: LayerFactory, dd: dict[str, Any]
    ) -> None:
        super().__init__()
        self.act = act_layer()
        self.conv1 = nn.Conv2d(in_channels, out_channels // 2, 1, stride=2, bias=False, **dd)
        self.conv2 = nn.Conv2d(in_channels, out_channels - out_channels // 2, 1, stride=2, bias=False, **dd)
        self.bn = norm_layer(out_channels, **dd)

    def forward(self, x: Tensor) -> Tensor:
        """`(N, C, H, W) -> (N, C_out, H / 2, W / 2)`, rounded up."""
        x = self.act(x)
        shifted = nn.functional.pad(x, (-1, 1, -1, 1))
        out: Tensor = self.bn(torch.cat([self.conv1(x), self.conv2(shifted)], 1))
        return out


class Cell(nn.Module):
    """A DARTS cell of `channels` per node: `(s1, s0) -> 4 * channels` maps, of half the resolution if `reduction`.

    Args:
        s0_channels: Channels of the older input.
        s1_channels: Channels of the newer input.
        channels: Channels of a node.
        reduction: Whether the cell halves the resolution.
        s0_is_larger: Whether the older input still has twice the resolution of the newer.
        drop_path: Probability of dropping an edge for a sample; identities are never dropped.
        act_layer: Makes the activations.
        norm_layer: Makes the norms.
        dd: Device and dtype.
    """

    def __init__(
        self,
        s0_channels: int,
        s1_channels: int,
        channels: int,
        *,
        reduction: bool,
        s0_is_larger: bool,
        drop_path: float,
        act_layer: LayerFactory,
        norm_layer: LayerFactory,
        dd: dict[str, Any],
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"act_layer": act_layer, "norm_layer": norm_layer, "dd": dd}
        self.prepare0: nn.Module = (
            FactorizedReduce(s0_channels, channels, **made) if s0_is_larger else _conv(s0_channels, channels, **made)
        )
        self.prepare1 = _conv(s1_channels, channels, **made)
        edges = REDUCE if reduction else NORMAL
        self.inputs = [index for _, index in edges]
        self.edges = nn.ModuleList()
        for op, index in edges:
            module = _edge(op, channels, 2 if reduction and index < 2 else 1, **made)
            if not isinstance(module, nn.Identity):
                module = nn.Sequential(module, DropPath(drop_path))
            self.edges.append(module)

    def forward(self, s1: Tensor, s0: Tensor) -> Tensor:
        """The concatenated nodes, from the newer and the older input."""
        states = [self.prepare0(s0), self.prepare1(s1)]
        edges = list(zip(self.edges, self.inputs, strict=True))
        for node in range(NODES):
            (op_a, a), (op_b, b) = edges[2 * node : 2 * node + 2]
            states.append(op_a(states[a]) + op_b(states[b]))
        return torch.cat(states[-NODES:], 1)


class AuxiliaryHead(nn.Sequential):
    """The second classifier of the training, on 8x8 maps: pooling to 2x2, 1x1 to 128, 2x2 to 768, linear."""

    def __init__(
        self, channels: int, num_classes: int, act_layer: LayerFactory, norm_layer: LayerFactory, dd: dict[str, Any]
    ) -> None:
        super().__init__(
            act_layer(),
            nn.AvgPool2d(5, stride=3, count_include_pad=False),
            nn.Conv2d(channels, 128, 1, bias=False, **dd),
            norm_layer(128, **dd),
            act_layer(),
            nn.Conv2d(128, 768, 2, bias=False, **dd),
            norm_layer(768, **dd),
            act_layer(),
            nn.Flatten(),
            nn.Linear(768, num_classes, **dd),
        )


def _conv(
    in_channels: int, out_channels: int, act_layer: LayerFactory, norm_layer: LayerFactory, dd: dict[str, Any]
) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, 1, bias=False, **dd)
    return nn.Sequential(act_layer(), conv, norm_layer(out_channels, **dd))


def _separable(
    C: int, stride: int, dilation: int, act_layer: LayerFactory, norm_layer: LayerFactory, dd: dict[str, Any]
) -> list[nn.Module]:
    depthwise = nn.Conv2d(C, C, 3, stride, dilation, dilation=dilation, groups=C, bias=False, **dd)
    return [act_layer(), depthwise, nn.Conv2d(C, C, 1, bias=False, **dd), norm_layer(C, **dd)]


def _edge(
    op: str, C: int, stride: int, act_layer: LayerFactory, norm_layer: LayerFactory, dd: dict[str, Any]
) -> nn.Module:
    made: dict[str, Any] = {"act_layer": act_layer, "norm_layer": norm_layer, "dd": dd}
    match op:
        case "sep3":
            return nn.Sequential(*_separable(C, stride, 1, **made), *_separable(C, 1, 1, **made))
        case "dil3":
            return nn.Sequential(*_separable(C, stride, 2, **made))
        case "max3":
            return nn.MaxPool2d(3, stride, padding=1)
        case "skip":
            return nn.Identity() if stride == 1 else FactorizedReduce(C, C, **made)
    raise ValueError(f"DARTS cell: an edge must be one of 'sep3', 'dil3', 'max3', 'skip', got {op!r}.")
