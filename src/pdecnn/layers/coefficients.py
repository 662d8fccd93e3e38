"""Where the coefficients of a Global layer come from: each producer maps a state to a pair, `(u, v)` or `(D_x, D_y)`.

The published producers [KS22, Sec. 3 and supplement A.6] are `act(norm(op(h)))` with an op for each of the two axes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.layers.blocks import LayerFactory, ResidualChain
from pdecnn.reference.advection_diffusion import Coefficient

LEARNED = ("depthwise", "pointwise", "full", "residual", "bottleneck", "identity")
KINDS = (*LEARNED, "dot", "channel")

Pair = tuple[Coefficient, Coefficient]


class NumberPair(nn.Module):
    """Two fixed numbers; nothing is learned."""

    def __init__(self, x: float, y: float) -> None:
        super().__init__()
        self.x, self.y = x, y

    def forward(self, h: Tensor) -> Pair:
        """The two numbers, whatever `h`."""
        return self.x, self.y

    def extra_repr(self) -> str:
        """The numbers."""
        return f"{self.x:g}, {self.y:g}"


class ChannelPair(nn.Module):
    """Two learned numbers per channel, of shape `(1, C, 1, 1)`.

    With `positive=True` they are the softplus of the parameters, so that a diffusivity cannot become negative; they
    start at 1. Else they are the parameters themselves and start at 0 (no flow).
    """

    def __init__(
        self,
        channels: int,
        *,
        positive: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.positive = positive
        self.x = nn.Parameter(torch.empty(1, channels, 1, 1, device=device, dtype=dtype))
        self.y = nn.Parameter(torch.empty(1, channels, 1, 1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets both coefficients to their start, 1 or 0."""
        start = 0.541324854612918 if self.positive else 0.0  # softplus(log(e - 1)) = 1
        nn.init.constant_(self.x, start)
        nn.init.constant_(self.y, start)

    def forward(self, h: Tensor) -> Pair:
        """The two coefficients, whatever `h`."""
        if self.positive:
            return nn.functional.softplus(self.x), nn.functional.softplus(self.y)
        return self.x, self.y


class LearnedPair(nn.Module):
    """`act(norm(op_x(h)))` and `act(norm(op_y(h)))`: maps of the shape of `h` from two independent ops.

    The ops keep the shape of `h` (stride 1, zero padding). With `gated=True` both members of the pair are the one map
    `act(norm_x(op_x(h)) * act(norm_y(op_y(h))))`, the "dot" form of the published ImageNet nets.
    """

    def __init__(
        self,
        op_x: nn.Module,
        op_y: nn.Module,
        norm_x: nn.Module,
        norm_y: nn.Module,
        act: nn.Module,
        *,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.op_x, self.norm_x = op_x, norm_x
        self.op_y, self.norm_y = op_y, norm_y
        self.act = act
        self.gated = gated

    def forward(self, h: Tensor) -> Pair:
        """The two maps."""
        x, y = self.norm_x(self.op_x(h)), self.act(self.norm_y(self.op_y(h)))
        if self.gated:
            gate = self.act(x * y)
            return gate, gate
        return self.act(x), y

    def extra_repr(self) -> str:
        """Says whether the pair is gated."""
        return "gated=True" if self.gated else ""


class SharedPair(nn.Module):
    """Both members of the pair are the output of one given module, as in the published MNIST toy net (`u = v`)."""

    def __init__(self, op: nn.Module) -> None:
        super().__init__()
        self.op = op

    def forward(self, h: Tensor) -> Pair:
        """The module's output, twice."""
        q = self.op(h)
        return q, q


def make_pair(
    spec: str | float | tuple[float, float] | nn.Module,
    channels: int,
    *,
    name: str,
    kernel_size: int,
    bias: bool,
    eps: float,
    act_layer: LayerFactory,
    norm_layer: LayerFactory,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """The producer that `spec` names.

    Args:
        spec: One of `KINDS`, a number, two numbers (along x, along y), or a module that gives both members.
        channels: Number of channels C of the state.
        name: `"velocity"` or `"diffusion"`; the latter must not be negative.
        kernel_size: Side of the convolutions of `"depthwise"`, `"full"` and `"dot"`.
        bias: Whether the convolutions of `"depthwise"`, `"pointwise"`, `"full"` and `"dot"` have a bias.
        eps: The eps of the norms.
        act_layer: Makes the activation.
        norm_layer: Makes the norms.
        device: Where the parameters live.
        dtype: Type of the parameters.
    """
    dd: dict[str, Any] = {"device": device, "dtype": dtype}
    if isinstance(spec, nn.Module):
        return SharedPair(spec)
    if not isinstance(spec, str):
        return NumberPair(*_numbers(spec, name))
    if spec not in KINDS:
        names = ", ".join(repr(kind) for kind in KINDS)
        raise ValueError(f"GlobalLayer: {name} must be a number, a module or one of {names}, got {spec!r}.")
    if spec == "channel":
        return ChannelPair(channels, positive=name == "diffusion", **dd)

    def op() -> nn.Module:
        match spec:
            case "identity":
                return nn.Identity()
            case "residual" | "bottleneck":
                sizes = (3, 3) if spec == "residual" else (1, 3, 1)
                return ResidualChain(channels, sizes, act_layer=act_layer, norm_layer=norm_layer, **dd)
        k = 1 if spec == "pointwise" else kernel_size
        groups = channels if spec in ("depthwise", "dot") else 1
        return nn.Conv2d(channels, channels, k, padding=k // 2, groups=groups, bias=bias, **dd)

    norm_x, norm_y = norm_layer(channels, eps=eps, **dd), norm_layer(channels, eps=eps, **dd)
    return LearnedPair(op(), op(), norm_x, norm_y, act_layer(), gated=spec == "dot")


def _numbers(spec: float | tuple[float, float], name: str) -> tuple[float, float]:
    pair = spec if isinstance(spec, (tuple, list)) else (spec, spec)
    if len(pair) != 2 or any(isinstance(c, bool) or not isinstance(c, (int, float)) for c in pair):
        names = ", ".join(repr(kind) for kind in KINDS)
        raise ValueError(
            f"GlobalLayer: {name} must be a number, two numbers, a module or one of {names}, got {spec!r}."
        )
    x, y = float(pair[0]), float(pair[1])
    if name == "diffusion" and (x < 0 or y < 0):
        raise ValueError(f"GlobalLayer: diffusion must not be negative, got {spec!r}.")
    return x, y
