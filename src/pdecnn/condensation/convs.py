"""Swap the convolutions of any CNN for low-cost operators of the same shape."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from pdecnn.layers.depthwise import DepthwiseConv2d
from pdecnn.layers.linear_mix import LinearMixConv2d
from pdecnn.shared.modules import replace

KINDS = ("linearmix", "depthwise")


@dataclass(frozen=True)
class Swap:
    """One convolution: its name, its weights before and after, and why it stayed if it did."""

    name: str
    before: int
    after: int
    reason: str = ""

    @property
    def swapped(self) -> bool:
        """Whether it was replaced."""
        return not self.reason


@dataclass(frozen=True)
class ReplaceReport:
    """What `replace_convs` did to every convolution of a model."""

    kind: str
    rows: tuple[Swap, ...]

    @property
    def swapped(self) -> tuple[Swap, ...]:
        """The convolutions that were replaced."""
        return tuple(row for row in self.rows if row.swapped)

    @property
    def kept(self) -> tuple[Swap, ...]:
        """The convolutions that were not, each with its reason."""
        return tuple(row for row in self.rows if not row.swapped)

    def __str__(self) -> str:
        before, after = (sum(getattr(row, f) for row in self.rows) for f in ("before", "after"))
        many = f"{len(self.swapped)} of {len(self.rows)} convolutions swapped"
        lines = [f"{self.kind}: {many}, {before:,} -> {after:,} weights"]
        for row in self.rows:
            what = f"{row.before:,} -> {row.after:,}" if row.swapped else f"kept: {row.reason}"
            lines.append(f"  {row.name}: {what}")
        return "\n".join(lines)


def replace_convs(
    model: nn.Module, kind: str = "linearmix", *, fit: bool = True, only: Callable[[str, nn.Conv2d], bool] | None = None
) -> tuple[nn.Module, ReplaceReport]:
    """Returns a copy of `model` with every eligible convolution swapped, and a report on all of them.

    Eligible is an `nn.Conv2d` with as many channels in as out, one group, an odd square kernel larger than 1, stride
    and dilation 1, and the zero or circular padding that keeps the image size.

    Args:
        model: Any CNN. It is not changed.
        kind: `"linearmix"` (depth-wise + 1x1) or `"depthwise"` (one stencil per channel; nothing mixes channels).
        fit: Whether the new weights are the best approximation of the old ones, instead of random: the diagonal
            stencils, and for LinearMix the centre taps off the diagonal. Exact for convolutions that are of the kind.
        only: Says of a name and a convolution whether it may be swapped.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        >>> small, report = replace_convs(net)
        >>> print(report)
        linearmix: 1 of 2 convolutions swapped, 792 -> 352 weights
          0: kept: 3 channels in but 8 out
          2: 576 -> 136
    """
    if kind not in KINDS:
        raise ValueError(f"replace_convs: kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
    model = copy.deepcopy(model)
    rows: list[Swap] = []
    swaps: dict[nn.Module, nn.Module] = {}
    for name, conv in model.named_modules():
        if not isinstance(conv, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            continue
        before = after = conv.weight.numel()
        reason = why_not(conv)
        if isinstance(conv, nn.Conv2d) and not reason:
            if only is not None and not only(name, conv):
                reason = "not chosen"
            else:
                swaps[conv] = _swap(conv, kind, fit)
                after = sum(p.numel() for n, p in swaps[conv].named_parameters() if n != "bias")
        rows.append(Swap(name, before, after, reason))
    if not rows:
        raise ValueError(f"replace_convs: {type(model).__name__} has no convolution.")
    model = replace(model, lambda module: swaps.get(module, module))
    return model, ReplaceReport(kind, tuple(rows))


def why_not(conv: nn.Module) -> str:
    """Why a convolution cannot be swapped; empty if it can."""
    if not isinstance(conv, nn.Conv2d):
        return f"{type(conv).__name__} is not Conv2d"
    if conv.in_channels != conv.out_channels:
        return f"{conv.in_channels} channels in but {conv.out_channels} out"
    if conv.groups != 1:
        return f"{conv.groups} groups"
    if conv.stride != (1, 1):
        return f"stride {conv.stride}"
    if conv.dilation != (1, 1):
        return f"dilation {conv.dilation}"
    m, n = conv.kernel_size
    if m == n == 1:
        return "1x1 already"
    if m != n or m % 2 == 0:
        return f"kernel {m}x{n} is not square and odd"
    if conv.padding not in ("same", (m // 2, m // 2)):
        return f"padding {conv.padding} changes the image size"
    if conv.padding_mode not in ("zeros", "circular"):
        return f"padding mode {conv.padding_mode!r}"
    return ""


def _swap(conv: nn.Conv2d, kind: str, fit: bool) -> nn.Module:
    boundary = "periodic" if conv.padding_mode == "circular" else "dirichlet"
    C, m = conv.out_channels, conv.kernel_size[0]
    make = DepthwiseConv2d if kind == "depthwise" else LinearMixConv2d
    layer = make(
        C, m, bias=conv.bias is not None, boundary=boundary, device=conv.weight.device, dtype=conv.weight.dtype
    )
    diagonal = torch.arange(C, device=conv.weight.device)
    with torch.no_grad():
        if fit:
            layer.stencil.copy_(conv.weight[diagonal, diagonal])
            if isinstance(layer, LinearMixConv2d):
                layer.weight.copy_(conv.weight[:, :, m // 2, m // 2])
                layer.weight[diagonal, diagonal] = 0  # the stencils have it
        if conv.bias is not None and layer.bias is not None:
            layer.bias.copy_(conv.bias)
    return layer.train(conv.training)
