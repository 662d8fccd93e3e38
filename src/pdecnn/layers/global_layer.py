r"""The Global layer: a feature map is the state of an advection-diffusion equation after K time steps [KS22].

.. math::

    \partial_t h + \partial_x (u h) + \partial_y (v h)
        = \partial_x (D_x\, \partial_x h) + \partial_y (D_y\, \partial_y h) + f, \qquad h(0) = F(I)

A first guess `F(I)` of the input I is transported and smoothed by coefficients that are themselves computed from it,
and pulled back to the input by the source f. The result goes through a norm and an activation.
"""

import math
from collections.abc import Iterator
from functools import reduce
from inspect import signature
from typing import Any, cast

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from pdecnn import functional
from pdecnn.kernels.global_layer.arguments import check_one_of
from pdecnn.layers.blocks import LayerFactory, ResidualChain
from pdecnn.layers.coefficients import make_pair
from pdecnn.layers.global_fusion import check_guess, coefficient_pairs, match, norm_act, stand_for
from pdecnn.reference import subgrids
from pdecnn.reference.advection_diffusion import Coefficient, check_steps
from pdecnn.reference.boundary import Boundary
from pdecnn.reference.courant import AdvectionStability, measure_stability

SOURCES = ("identity", "none", "residual", "residual_each_step")
PREVIOUS_STATES = ("init", "input")

Coefficients = tuple[Coefficient, Coefficient, Coefficient, Coefficient]


class GlobalLayer(nn.Module):
    """K Du Fort-Frankel steps of the equation above, then norm and activation: Algorithm 1 of [KS22].

    The defaults are the paper's. What the authors' code does otherwise is reached by name: `flow_sign=-1` (its axes run
    against the index), `h_prev="input"`, `coef_bn_eps="channels"`, `coef_bias=True`.

    The scheme is unstable for large velocities: `stability` measures, `velocity_bound` and `upwind` help.

    Args:
        channels: Number of channels C of the state, which the steps do not mix.
        init: F, any module that maps the input to the first guess; the identity by default. It may change the shape;
            the source and the state before the first are then F(I) instead of the input.
        K: Number of time steps.
        dt: Time step.
        dx: Distance of neighbouring columns.
        dy: Distance of neighbouring rows.
        kernel_size: Side of the coefficient convolutions, odd.
        velocity: Producer of `(u, v)`: `"depthwise"`, `"pointwise"`, `"full"` (convolutions), `"residual"`,
            `"bottleneck"` (blocks), `"identity"`, each with norm and activation; `"dot"` (u = v, a product of two
            depth-wise ones); `"channel"` (learned constants); a number, two numbers, or a module that gives `u = v`.
        diffusion: Producer of `(D_x, D_y)`, given likewise.
        source: f: `"identity"` (the input), `"none"`, `"residual"` (a separable residual block of the input),
            `"residual_each_step"` (the same block of state + input, evaluated in each step, [KS22, Table 8]), or a
            module applied to the input once.
        h_prev: The state before the first: `"init"` (F(I), as in the paper) or `"input"` (I, as in the authors' code).
        act_layer: Makes the activations of the coefficients and of the output.
        norm_layer: Makes the norms of the coefficients and of the output.
        residual: Whether the input is added to the output.
        drop_path: Probability of dropping a sample's output, with `residual` only.
        boundary: `"periodic"`, `"neumann"` or `"dirichlet"`.
        flow_sign: 1, or -1 to negate both velocities.
        coef_bias: Whether the coefficient convolutions have a bias; two values for velocity and diffusion apart.
        coef_bn_eps: The eps of the coefficient norms: a number, or `"channels"` for C.
        velocity_bound: False, or the largest `|A_x| + |A_y|` (True: 1), where `A_x = u dt / dx`: larger velocities are
            scaled down, pixel by pixel. 1 is the bound of pure transport, 0.7 serves `D_x = D_y` too (`courant.py`).
        upwind: Whether `|u| dx / 2` is added to D_x and `|v| dy / 2` to D_y. The neighbour that lies downstream then
            has weight `2 B_x - |A_x| = 2 D_x dt / dx^2` and no longer a negative one: first-order upwind differences.
            With constant velocities and `|A_x| + |A_y| + 2 (D_x dt / dx^2 + D_y dt / dy^2) <= 1` no step makes a new
            maximum.
        dilation: Neighbours are this many pixels away, and this many times dx and dy; for a periodic boundary.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Shape:
        `(N, C, H, W) -> (N, C, H, W)`, or any input that `init` maps to it; x runs along W, y along H.

    Example:
        >>> layer = GlobalLayer(16, K=3)
        >>> layer(torch.randn(2, 16, 8, 8)).shape
        torch.Size([2, 16, 8, 8])
        >>> sum(p.numel() for p in layer.parameters()) == 4 * 9 * 16 + 10 * 16
        True
    """

    def __init__(
        self,
        channels: int,
        *,
        init: nn.Module | None = None,
        K: int = 5,
        dt: float = 0.2,
        dx: float = 1.0,
        dy: float = 1.0,
        kernel_size: int = 3,
        velocity: str | float | tuple[float, float] | nn.Module = "depthwise",
        diffusion: str | float | tuple[float, float] | nn.Module = "depthwise",
        source: str | nn.Module = "identity",
        h_prev: str = "init",
        act_layer: LayerFactory = nn.ReLU,
        norm_layer: LayerFactory = nn.BatchNorm2d,
        residual: bool = False,
        drop_path: float = 0.0,
        boundary: str | Boundary = "periodic",
        flow_sign: int = 1,
        coef_bias: bool | tuple[bool, bool] = False,
        coef_bn_eps: float | str = 1e-5,
        velocity_bound: bool | float = False,
        upwind: bool = False,
        dilation: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_one_of("GlobalLayer", "h_prev", h_prev, PREVIOUS_STATES)
        check_one_of("GlobalLayer", "flow_sign", flow_sign, (1, -1))
        self.channels = channels
        self.set_steps(K)
        for name, value in (("dt", dt), ("dx", dx), ("dy", dy)):
            _check(value > 0 and math.isfinite(value), f"{name} must be positive and finite, got {name}={value}.")
        _check(kernel_size % 2 == 1 and kernel_size > 0, f"kernel_size must be odd, got kernel_size={kernel_size}.")
        _check(dilation >= 1, f"dilation must be at least 1, got dilation={dilation}.")
        self.dt, self.dx, self.dy, self.dilation = dt, dx, dy, dilation
        self.boundary = Boundary.parse(boundary, "GlobalLayer").value
        other = f"dilation={dilation} needs boundary='periodic', got boundary={self.boundary!r}."
        _check(dilation == 1 or self.boundary == "periodic", other)
        lone = f"drop_path={drop_path} drops the branch beside a residual; use residual=True or drop_path=0."
        _check(residual or drop_path == 0, lone)
        self.h_prev, self.flow_sign, self.upwind, self.residual = h_prev, flow_sign, upwind, residual
        self.velocity_bound = float(velocity_bound)
        _check(self.velocity_bound >= 0, f"velocity_bound must be False, True or positive, got {velocity_bound}.")

        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        biases = coef_bias if isinstance(coef_bias, (tuple, list)) else (coef_bias, coef_bias)
        pair_options: dict[str, Any] = {
            "kernel_size": kernel_size,
            "eps": _coef_eps(coef_bn_eps, channels),
            "act_layer": act_layer,
            "norm_layer": norm_layer,
            **dd,
        }
        self.init = nn.Identity() if init is None else init
        self.velocity = make_pair(velocity, channels, name="velocity", bias=biases[0], **pair_options)
        self.diffusion = make_pair(diffusion, channels, name="diffusion", bias=biases[1], **pair_options)
        self.source, self.source_each_step = _make_source(source, channels, act_layer, norm_layer, dd)
        self.norm = norm_layer(channels, **dd)
        self.act = act_layer()
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, *context: Tensor, K: int | None = None) -> Tensor:
        """The layer's output; `context` is handed to `init` after `x`. K steps, if given, instead of the layer's."""
        h, x = self.first_guess(x, *context)
        if K is not None:
            check_steps("GlobalLayer", K)
        steps = self.K if K is None else K
        fused = match(self, h, x, steps)
        if fused is None:
            given = {} if K is None else {"K": K}
            out = norm_act(self.norm, self.act, self.solve(h, x, self.coefficients(h), **given), steps)
        elif fused.norm.training:
            out = fused.train(h, x, self.act)
        else:
            out = fused.infer(h, x)
            if fused.residual:
                return out
        return self.drop_path(out) + x if self.residual else out

    def first_guess(self, x: Tensor, *context: Tensor) -> tuple[Tensor, Tensor]:
        """`F(I)` and the input I, the latter replaced by `F(I)` where their shapes differ."""
        h = self.init(x, *context)
        check_guess("GlobalLayer", h, x, self.channels)
        return h, (x if x.shape == h.shape else h)

    def coefficients(self, h: Tensor) -> Coefficients:
        """`u, v, D_x, D_y` as the solver gets them, from the first guess `h`."""
        pairs: Any = coefficient_pairs(self.velocity, self.diffusion, h)
        (u, v), (D_x, D_y) = pairs
        if self.flow_sign < 0:
            u, v = -u, -v
        dx, dy = self.spacings
        if self.velocity_bound:
            excess = (abs(u) * (self.dt / dx) + abs(v) * (self.dt / dy)) / self.velocity_bound
            excess = excess.clamp(min=1.0) if isinstance(excess, Tensor) else max(1.0, excess)
            u, v = u / excess, v / excess
        if self.upwind:
            D_x, D_y = D_x + abs(u) * (dx / 2), D_y + abs(v) * (dy / 2)
        return u, v, D_x, D_y

    def solve(self, h: Tensor, x: Tensor, coefficients: Coefficients, K: int | None = None) -> Tensor:
        """`h^K` from the first guess `h`, the input `x` and the coefficients."""
        K = self.K if K is None else K
        if self.source_each_step:
            return reduce(lambda _, state: state, self._states(h, x, coefficients, K))
        f = None if self.source is None else self.source(x)
        return self._run(h, x if self.h_prev == "input" else h, f, coefficients, K)

    def trajectory(self, x: Tensor, *context: Tensor) -> list[Tensor]:
        """The K+1 states `h^0 ... h^K`, before norm and activation. In training mode, norms update as in `forward`."""
        h, x = self.first_guess(x, *context)
        return list(self._states(h, x, self.coefficients(h), self.K))

    @torch.no_grad()
    def stability(self, x: Tensor, *context: Tensor) -> AdvectionStability:
        """The Courant number and its kin for this input, as the solver sees them."""
        h, _ = self.first_guess(x, *context)
        dx, dy = self.spacings
        return measure_stability(h, *self.coefficients(h), dt=self.dt, dx=dx, dy=dy)

    def set_steps(self, K: int) -> None:
        """Changes the number of time steps; no parameter depends on it."""
        check_steps("GlobalLayer", K)
        self.K = K

    @property
    def spacings(self) -> tuple[float, float]:
        """The distances of the neighbours that the solver uses, along x and y."""
        return self.dilation * self.dx, self.dilation * self.dy

    def extra_repr(self) -> str:
        """The options that differ from the defaults, after channels, K and dt."""
        names = "dx", "dy", "h_prev", "residual", "boundary", "flow_sign", "velocity_bound", "upwind", "dilation"
        options = signature(GlobalLayer).parameters
        values = {name: getattr(self, name) for name in names}
        others = [f", {name}={value!r}" for name, value in values.items() if value != options[name].default]
        return f"{self.channels}, K={self.K}, dt={self.dt:g}" + "".join(others)

    def _run(self, h: Tensor, h_prev: Tensor, f: Tensor | None, coefficients: Coefficients, K: int) -> Tensor:
        H, W = h.shape[2:]
        dx, dy = self.spacings
        same = h_prev is h  # then the solver takes one gradient for both
        h, h_prev, f, u, v, D_x, D_y = self._prepare(h, None if same else h_prev, f, *coefficients)
        h = functional.advection_diffusion(
            h, u, v, D_x, D_y, f, h_prev=h_prev, K=K, dt=self.dt, dx=dx, dy=dy, boundary=self.boundary
        )
        return subgrids.merge(h, self.dilation, H, W) if self.dilation > 1 else h

    def _states(self, h: Tensor, x: Tensor, coefficients: Coefficients, K: int) -> Iterator[Tensor]:
        """The states, step by step."""
        yield h
        h_prev = x if self.h_prev == "input" else h
        f = None if self.source is None or self.source_each_step else self.source(x)
        for _ in range(K):
            if self.source_each_step:
                f = cast(nn.Module, self.source)(h + x)
            h_prev, h = h, self._run(h, h_prev, f, coefficients, 1)
            yield h

    def _prepare(self, h: Tensor, *others: Any) -> list[Any]:
        """All in the dtype of `h` (under autocast they may differ) and on the grids of true neighbours."""
        fields = [q.to(h.dtype) if isinstance(q, Tensor) else q for q in (h, *others)]
        if self.dilation == 1:
            return fields
        is_map = [isinstance(q, Tensor) and q.shape[2:].numel() > 1 for q in fields]
        return [subgrids.split(q, self.dilation) if split else q for q, split in zip(fields, is_map, strict=True)]


stand_for(GlobalLayer)


def _make_source(
    source: str | nn.Module, channels: int, act_layer: LayerFactory, norm_layer: LayerFactory, dd: dict[str, Any]
) -> tuple[nn.Module | None, bool]:
    """The module f and whether it is evaluated in each step."""
    if isinstance(source, nn.Module):
        return source, False
    check_one_of("GlobalLayer", "source", source, SOURCES)
    if source in ("identity", "none"):
        return nn.Identity() if source == "identity" else None, False
    block = ResidualChain(channels, (3, 3), separable=True, act_layer=act_layer, norm_layer=norm_layer, **dd)
    return block, source == "residual_each_step"


def _coef_eps(eps: float | str, channels: int) -> float:
    value = channels if eps == "channels" else eps
    if isinstance(value, str) or not value > 0:
        raise ValueError(f"GlobalLayer: coef_bn_eps must be a positive number or 'channels', got {eps!r}.")
    return float(value)


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"GlobalLayer: {message}")
