"""Activations that bound the length of a feature vector, and the table of activations of the hyperbolic networks."""

import math

from torch import Tensor, nn

from pdecnn.reference.ball import check_radius, hardball, softball


class _Ball(nn.Module):
    def __init__(self, channels: int, R: float | None = None) -> None:
        super().__init__()
        self.channels = channels
        self.R = math.sqrt(channels) if R is None else R
        check_radius(type(self).__name__, self.R)

    def check(self, h: Tensor) -> None:
        if h.ndim < 2 or h.shape[1] != self.channels:
            raise ValueError(
                f"{type(self).__name__}: expected h of shape (N, {self.channels}, ...), got {tuple(h.shape)}."
            )

    def extra_repr(self) -> str:
        return f"{self.channels}, R={self.R:g}"


class HardBall(_Ball):
    """Projects every pixel's feature vector onto the ball of radius `R`, by default `sqrt(channels)`.

    Commutes with O(channels). The gradient is finite everywhere, also at zero.

    Shape:
        `(N, C, ...) -> (N, C, ...)`.

    Example:
        >>> import torch
        >>> HardBall(2, R=1.0)(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    def forward(self, h: Tensor) -> Tensor:
        """Returns `h` inside the ball and `R h / |h|` outside."""
        self.check(h)
        return hardball(h, self.R)


class SoftBall(_Ball):
    """Maps every pixel's feature vector into the open ball of radius `R`, by default `sqrt(channels)`.

    `h / sqrt(1 + |h|^2 / R^2)`; commutes with O(channels).

    Shape:
        `(N, C, ...) -> (N, C, ...)`.
    """

    def forward(self, h: Tensor) -> Tensor:
        """Returns `h / sqrt(1 + |h|^2 / R^2)`."""
        self.check(h)
        return softball(h, self.R)


ACTIVATIONS = ("none", "relu", "hardtanh", "hardball", "softball")


def make_activation(kind: str, channels: int) -> nn.Module:
    """The activation of one of the `ACTIVATIONS` names, for a stream of that many channels."""
    if kind == "none":
        return nn.Identity()
    if kind == "relu":
        return nn.ReLU()
    if kind == "hardtanh":
        return nn.Hardtanh()
    if kind == "hardball":
        return HardBall(channels)
    if kind == "softball":
        return SoftBall(channels)
    raise ValueError(f"make_activation: kind must be one of {', '.join(map(repr, ACTIVATIONS))}, got {kind!r}.")
