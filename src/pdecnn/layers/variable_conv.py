"""Convolution with coefficients that are polynomials of the place, and the Euler step that makes a network of it."""

from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.reference.boundary import Boundary
from pdecnn.reference.variable_conv import monomials, variable_conv2d

D_DX = ((0.0, 0.0, 0.0), (-0.5, 0.0, 0.5), (0.0, 0.0, 0.0))
D_DY = ((0.0, -0.5, 0.0), (0.0, 0.0, 0.0), (0.0, 0.5, 0.0))
LAPLACIAN = ((0.0, 1.0, 0.0), (1.0, -4.0, 1.0), (0.0, 1.0, 0.0))


class VariableConv2d(nn.Module):
    r"""A linear differential operator with variable coefficients: `sum_pq x^p y^q (w_pq * u)`.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Odd size k of the kernels.
        degree: Total degree of the polynomials; 0 is an ordinary convolution.
        groups: As in `Conv2d`.
        spacing: Distance of neighbouring pixels; by default `2 / max(H, W)` (coordinates in [-1, 1]).
        boundary: `"periodic"`, `"neumann"` or `"dirichlet"`.

    Shape:
        `(N, in_channels, H, W) -> (N, out_channels, H, W)`.

    Example:
        >>> rotate = VariableConv2d.rotation(1)
        >>> u = torch.arange(3.0).sub(1).expand(1, 1, 3, 3)  # u = x, and (x d/dy - y d/dx) x = -y
        >>> rotate(u)[0, 0, :, 1].tolist()
        [1.0, 0.0, -1.0]
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        degree: int = 1,
        groups: int = 1,
        spacing: float | None = None,
        boundary: str | Boundary = "dirichlet",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if degree < 0:
            raise ValueError(f"VariableConv2d: degree must not be negative, got degree={degree}.")
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"VariableConv2d: in_channels={in_channels} and out_channels={out_channels} must both be divisible "
                f"by groups={groups}."
            )
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.degree, self.groups, self.spacing = degree, groups, spacing
        self.boundary = Boundary.parse(boundary, "VariableConv2d")
        shape = (len(monomials(degree)), out_channels, in_channels // groups, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the constant kernel as a convolution would, and starts the others at zero: constant coefficients."""
        with torch.no_grad():
            self.weight.zero_()
            nn.init.kaiming_normal_(self.weight[0], nonlinearity="linear")

    @classmethod
    def rotation(cls, channels: int, **options: Any) -> "VariableConv2d":
        """The generator of rotation of each channel, `x d/dy - y d/dx`, in units of pixels."""
        return cls._generator(channels, {(1, 0): D_DY, (0, 1): _scaled(D_DX, -1.0)}, options)

    @classmethod
    def dilation(cls, channels: int, **options: Any) -> "VariableConv2d":
        """The generator of dilation of each channel, `x d/dx + y d/dy`, in units of pixels."""
        return cls._generator(channels, {(1, 0): D_DX, (0, 1): D_DY}, options)

    @classmethod
    def laplacian(cls, channels: int, **options: Any) -> "VariableConv2d":
        """The five-point Laplacian of each channel (degree 0)."""
        return cls._generator(channels, {(0, 0): LAPLACIAN}, options)

    @classmethod
    def _generator(
        cls, channels: int, kernels: dict[tuple[int, int], Any], options: dict[str, Any]
    ) -> "VariableConv2d":
        degree = max(p + q for p, q in kernels)
        options = {"spacing": 1.0, "boundary": "neumann", **options}
        layer = cls(channels, channels, degree=degree, groups=channels, **options)
        with torch.no_grad():
            layer.weight.zero_()
            for i, exponents in enumerate(monomials(degree)):
                if exponents in kernels:
                    layer.weight[i] = torch.tensor(kernels[exponents], dtype=layer.weight.dtype)
        return layer

    def forward(self, u: Tensor) -> Tensor:
        """Returns the operator applied to `u`."""
        return variable_conv2d(
            u,
            self.weight,
            degree=self.degree,
            groups=self.groups,
            spacing=self.spacing,
            boundary=self.boundary,
        )

    def extra_repr(self) -> str:
        """The arguments, to be pasted back."""
        return (
            f"{self.in_channels}, {self.out_channels}, {self.kernel_size}, degree={self.degree}, "
            f"groups={self.groups}, spacing={self.spacing}, boundary={self.boundary.value!r}"
        )


class EulerStep(nn.Module):
    """One forward Euler step of `du/dt = L u`: a residual block whose branch is the operator `L`.

    Example:
        >>> heat = nn.Sequential(*[EulerStep(VariableConv2d.laplacian(1), dt=0.2) for _ in range(10)])
        >>> heat(torch.eye(5).view(1, 1, 5, 5)).sum().round()
        tensor(5., grad_fn=<RoundBackward0>)
    """

    def __init__(self, operator: nn.Module, dt: float) -> None:
        super().__init__()
        self.operator, self.dt = operator, dt

    def forward(self, u: Tensor) -> Tensor:
        """Returns `u + dt L u`."""
        return u + self.dt * self.operator(u)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """The time step."""
        return f"dt={self.dt:g}"


class WaveStep(nn.Module):
    r"""One symplectic Euler step of `d^2 u / dt^2 = L u`, written as a first-order system for `(u, v = du/dt)`.

    Shape:
        `(N, 2 C, H, W) -> (N, 2 C, H, W)`: the C states, then their C velocities.
    """

    def __init__(self, operator: nn.Module, dt: float) -> None:
        super().__init__()
        self.operator, self.dt = operator, dt

    def forward(self, uv: Tensor) -> Tensor:
        """Returns `(u + dt v', v')` with `v' = v + dt L u`."""
        u, v = uv.chunk(2, 1)
        v = v + self.dt * self.operator(u)
        return torch.cat([u + self.dt * v, v], 1)

    def extra_repr(self) -> str:
        """The time step."""
        return f"dt={self.dt:g}"


def _scaled(kernel: tuple[tuple[float, ...], ...], factor: float) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(factor * value for value in row) for row in kernel)
