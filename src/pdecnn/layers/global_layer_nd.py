"""The Global layer for signals `(N, C, W)` and volumes `(N, C, D, H, W)`: the equation of `global_layer.py` there.

Each axis has a velocity and a diffusivity, which are `act(norm(depth-wise convolution))` of the first guess.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pdecnn import functional
from pdecnn.layers.blocks import LayerFactory
from pdecnn.layers.global_layer import GlobalLayer
from pdecnn.layers.step_norm import normed
from pdecnn.reference.advection_diffusion import AXIS_NAMES, check_steps
from pdecnn.reference.boundary import Boundary

SOURCES = ("identity", "none")
PREVIOUS_STATES = ("init", "input")


class _Fields(nn.Module):
    """One map per axis: `act(norm(conv(h)))`, each with its own depth-wise convolution."""

    def __init__(
        self, conv: Any, norm: Any, channels: int, axes: int, k: int, bias: bool, eps: float, act: nn.Module, dd: Any
    ) -> None:
        super().__init__()
        options = {"padding": k // 2, "groups": channels, "bias": bias, **dd}
        self.ops = nn.ModuleList(conv(channels, channels, k, **options) for _ in range(axes))
        self.norms = nn.ModuleList(norm(channels, eps=eps, **dd) for _ in range(axes))
        self.act = act

    def forward(self, h: Tensor) -> list[Tensor]:
        """The maps along x, y and z, as far as there are axes."""
        return [self.act(norm(op(h))) for op, norm in zip(self.ops, self.norms, strict=True)]


class GlobalLayer1d(nn.Module):
    """K Du Fort-Frankel steps of the advection-diffusion equation for signals, then norm and activation.

    Args:
        channels: Number of channels C of the state, which the steps do not mix.
        init: F, any module that maps the input to the first guess; the identity by default.
        K: Number of time steps.
        dt: Time step.
        kernel_size: Side of the coefficient convolutions, odd.
        source: f: `"identity"` (the input) or `"none"`.
        h_prev: The state before the first: `"init"` (F(I)) or `"input"` (I).
        act_layer: Makes the activations of the coefficients and of the output.
        residual: Whether the input is added to the output.
        boundary: `"periodic"`, `"neumann"` or `"dirichlet"`.
        coef_bias: Whether the coefficient convolutions have a bias.
        coef_bn_eps: The eps of the coefficient norms: a number, or `"channels"` for C.
        velocity_bound: False, or the largest sum of `|velocity| dt` over the axes (True: 1): larger ones are scaled
            down, point by point.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Example:
        >>> GlobalLayer1d(16, K=3)(torch.randn(2, 16, 40)).shape
        torch.Size([2, 16, 40])
    """

    axes: ClassVar[int] = 1
    _conv: ClassVar[Any] = nn.Conv1d
    _norm: ClassVar[Any] = nn.BatchNorm1d

    def __init__(
        self,
        channels: int,
        *,
        init: nn.Module | None = None,
        K: int = 5,
        dt: float = 0.2,
        kernel_size: int = 3,
        source: str = "identity",
        h_prev: str = "init",
        act_layer: LayerFactory = nn.ReLU,
        residual: bool = False,
        boundary: str | Boundary = "periodic",
        coef_bias: bool = False,
        coef_bn_eps: float | str = 1e-5,
        velocity_bound: bool | float = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for what, value, valid in (("source", source, SOURCES), ("h_prev", h_prev, PREVIOUS_STATES)):
            if value not in valid:
                raise ValueError(f"{name}: {what} must be one of {', '.join(map(repr, valid))}, got {value!r}.")
        if not (dt > 0 and math.isfinite(dt)):
            raise ValueError(f"{name}: dt must be positive and finite, got dt={dt}.")
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"{name}: kernel_size must be odd, got kernel_size={kernel_size}.")
        self.channels, self.dt, self.source, self.h_prev = channels, dt, source, h_prev
        self.set_steps(K)
        self.boundary = Boundary.parse(boundary, name).value
        self.residual, self.velocity_bound = residual, float(velocity_bound)
        dd = {"device": device, "dtype": dtype}
        eps = float(channels) if coef_bn_eps == "channels" else float(coef_bn_eps)
        shared = (self._conv, self._norm, channels, self.axes, kernel_size, coef_bias, eps)
        self.init = nn.Identity() if init is None else init
        self.velocity = _Fields(*shared, act_layer(), dd)
        self.diffusion = _Fields(*shared, act_layer(), dd)
        self.norm = self._norm(channels, **dd)
        self.act: nn.Module = act_layer()

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        h, x = self.first_guess(x)
        out: Tensor = self.act(normed(self.norm, self.solve(h, x, self.coefficients(h)), self.K))
        return out + x if self.residual else out

    def first_guess(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`F(I)` and the input I, the latter replaced by `F(I)` where their shapes differ."""
        h = self.init(x)
        if h.ndim != self.axes + 2 or h.shape[1] != self.channels:
            sizes = ("W", "H, W", "D, H, W")[self.axes - 1]
            raise ValueError(
                f"{type(self).__name__}: expected a first guess of shape (N, {self.channels}, {sizes}), got "
                f"{tuple(h.shape)} from an input of shape {tuple(x.shape)}."
            )
        return h, (x if x.shape == h.shape else h)

    def coefficients(self, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Velocities and diffusivities along x, y, z from the first guess `h`."""
        velocities, diffusivities = self.velocity(h), self.diffusion(h)
        if self.velocity_bound:
            speed = sum(u.abs() for u in velocities) * (self.dt / self.velocity_bound)
            velocities = [u / speed.clamp(min=1.0) for u in velocities]
        return velocities, diffusivities

    def solve(self, h: Tensor, x: Tensor, coefficients: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Tensor:
        """`h^K` from the first guess `h`, the input `x` and the coefficients."""
        velocities, diffusivities = ([q.to(h.dtype) for q in part] for part in coefficients)
        steps: Any = functional.advection_diffusion_1d if self.axes == 1 else functional.advection_diffusion_3d
        out: Tensor = steps(
            h, *velocities, *diffusivities, x.to(h.dtype) if self.source == "identity" else None,
            h_prev=x.to(h.dtype) if self.h_prev == "input" and x is not h else None, K=self.K, dt=self.dt,
            boundary=self.boundary,
        )  # fmt: skip
        return out

    def set_steps(self, K: int) -> None:
        """Changes the number of time steps; no parameter depends on it."""
        check_steps(type(self).__name__, K)
        self.K = K

    def extra_repr(self) -> str:
        """Channels, K and dt, then what differs from the defaults."""
        shown = {"h_prev": (self.h_prev, "init"), "residual": (self.residual, False)}
        others = [f", {name}={value!r}" for name, (value, default) in shown.items() if value != default]
        return f"{self.channels}, K={self.K}, dt={self.dt:g}, axes={' '.join(AXIS_NAMES[: self.axes])}" + "".join(
            others
        )


class GlobalLayer3d(GlobalLayer1d):
    """`GlobalLayer1d` for volumes: velocities and diffusivities along x, y and z.

    Example:
        >>> GlobalLayer3d(4, K=2)(torch.randn(1, 4, 5, 6, 7)).shape
        torch.Size([1, 4, 5, 6, 7])
    """

    axes: ClassVar[int] = 3
    _conv: ClassVar[Any] = nn.Conv3d
    _norm: ClassVar[Any] = nn.BatchNorm3d


GLOBAL_LAYERS = (GlobalLayer, GlobalLayer1d)  # the layer in two dimensions, and in one or three
AnyGlobalLayer = GlobalLayer | GlobalLayer1d
