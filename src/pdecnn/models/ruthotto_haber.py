r"""The parabolic and hyperbolic CNNs of Ruthotto & Haber, for comparison with the Global nets.

All three are built from one symmetric layer, a gradient flow's right-hand side for a monotone activation:

.. math:: F(h) = -K^T\, \sigma(N(K h))

- parabolic: `h' = F(h)`, forward Euler;
- second order (hyperbolic): `h'' = F(h)`, leapfrog;
- Hamiltonian: `y' = F_1(z), z' = -F_2(y)`, two halves of the channels in turn (Verlet).

Source: L. Ruthotto, E. Haber, Deep Neural Networks Motivated by Partial Differential Equations, JMIV 2020, and the
settings of its published experiments (widths, steps, placement of norms). The parameter counts there are met to the
unit: 502,570 (parabolic, second order) and 264,106 (Hamiltonian) on CIFAR-10; 652,484 and 362,180 on CIFAR-100, whose
nets are wider (`..._wide`). The network: 3x3 opening convolution, three PDE blocks of three steps with dt = 1, after
each a 1x1 connection (convolution, batch norm, ReLU) and pooling. Each step has its own K.
What we did not find stated and chose: N divides by the length of the vector of channels at each pixel (their "tvNorm"),
with eps 1e-3 under the root, and has a learned scale and shift; the second-order net starts at rest
(`h^{-1} = h^0`); convolutions have zero padding. Their regularisers (smoothness of K in time) belong to the training.
"""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn.functional import conv_transpose2d

from pdecnn.layers.blocks import LayerFactory
from pdecnn.models._base import ConvNet, build, cifar_cfg, conv_norm_act, init_fan_out, resolve_layers


class PixelNorm(nn.Module):
    """`h / sqrt(sum_c h_c^2 + eps)` at each pixel, then a learned scale and shift per channel."""

    def __init__(self, channels: int, eps: float = 1e-3, **dd: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels, **dd))
        self.bias = nn.Parameter(torch.zeros(channels, **dd))

    def forward(self, h: Tensor) -> Tensor:
        """`(N, C, H, W) -> (N, C, H, W)`."""
        h = h * torch.rsqrt((h * h).sum(1, keepdim=True) + self.eps)
        return h * self.weight[:, None, None] + self.bias[:, None, None]


class SymmetricLayer(nn.Module):
    """`F(h) = -K^T act(norm(K h))` with a 3x3 convolution K and its transpose.

    Without norm and with an activation of non-negative slope its Jacobian is symmetric and negative semi-definite:
    `h' = F(h)` cannot grow.
    """

    def __init__(
        self, channels: int, *, act_layer: LayerFactory = nn.ReLU, norm_layer: LayerFactory = PixelNorm, **dd: Any
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False, **dd)
        self.norm, self.act = norm_layer(channels, **dd), act_layer()

    def forward(self, h: Tensor) -> Tensor:
        """`(N, C, H, W) -> (N, C, H, W)`."""
        return -conv_transpose2d(self.act(self.norm(self.conv(h))), self.conv.weight, padding=1)


class Parabolic(nn.Module):
    """Forward Euler steps of `h' = F(h)`, one layer per step."""

    def __init__(self, channels: int, steps: int, dt: float, **kwargs: Any) -> None:
        super().__init__()
        self.dt = dt
        self.layers = nn.ModuleList(SymmetricLayer(channels, **kwargs) for _ in range(steps))

    def forward(self, h: Tensor) -> Tensor:
        """The state after all steps."""
        for layer in self.layers:
            h = h + self.dt * layer(h)
        return h


class SecondOrder(nn.Module):
    """Leapfrog steps of `h'' = F(h)` from rest: `h^{j+1} = 2 h^j - h^{j-1} + dt^2 F(h^j)`, which can be undone."""

    def __init__(self, channels: int, steps: int, dt: float, **kwargs: Any) -> None:
        super().__init__()
        self.dt = dt
        self.layers = nn.ModuleList(SymmetricLayer(channels, **kwargs) for _ in range(steps))

    def forward(self, h: Tensor) -> Tensor:
        """The state after all steps."""
        return self.run(h, h)[1]

    def run(self, h_prev: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The last two states."""
        for layer in self.layers:
            h_prev, h = h, 2 * h - h_prev + self.dt**2 * layer(h)
        return h_prev, h

    def undo(self, h_prev: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The first two states of the last two: the scheme is reversible."""
        for layer in reversed(self.layers):
            h_prev, h = 2 * h_prev - h + self.dt**2 * layer(h_prev), h_prev
        return h_prev, h


class Hamiltonian(nn.Module):
    """Verlet steps of `y' = F_1(z), z' = -F_2(y)` on the two halves of the channels, which can be undone."""

    def __init__(self, channels: int, steps: int, dt: float, **kwargs: Any) -> None:
        super().__init__()
        if channels % 2:
            raise ValueError(f"Hamiltonian: channels must be even, as they are two halves, got channels={channels}.")
        self.dt = dt
        self.y_layers = nn.ModuleList(SymmetricLayer(channels // 2, **kwargs) for _ in range(steps))
        self.z_layers = nn.ModuleList(SymmetricLayer(channels // 2, **kwargs) for _ in range(steps))

    def forward(self, h: Tensor) -> Tensor:
        """The state after all steps."""
        y, z = h.chunk(2, dim=1)
        for y_layer, z_layer in zip(self.y_layers, self.z_layers, strict=True):
            y = y + self.dt * y_layer(z)
            z = z - self.dt * z_layer(y)
        return torch.cat([y, z], 1)

    def undo(self, h: Tensor) -> Tensor:
        """The input of an output: the scheme is reversible."""
        y, z = h.chunk(2, dim=1)
        for y_layer, z_layer in zip(reversed(self.y_layers), reversed(self.z_layers), strict=True):
            z = z + self.dt * z_layer(y)
            y = y - self.dt * y_layer(z)
        return torch.cat([y, z], 1)


DYNAMICS: dict[str, type[nn.Module]] = {
    "parabolic": Parabolic,
    "second_order": SecondOrder,
    "hamiltonian": Hamiltonian,
}


@dataclass(frozen=True)
class PDENetConfig:
    """A network of PDE blocks; `widths` are those of the blocks and, last, of the features that are pooled."""

    dynamics: str
    widths: tuple[int, ...] = (32, 64, 112, 112)
    steps: int = 3
    dt: float = 1.0


class CifarPDENet(ConvNet):
    """Opening convolution, PDE blocks with 1x1 connections and pooling between them, linear classifier.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        act_layer: Activation, by class or timm's name.
        norm_layer: Norm of the opening and the connections, by class or timm's name.
        global_pool: timm's name of the pooling.
        device: Where the parameters live.
        dtype: Type of the parameters.
    """

    def __init__(
        self,
        cfg: PDENetConfig,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        act_layer: LayerFactory | str | None = None,
        norm_layer: LayerFactory | str | None = None,
        global_pool: str = "avg",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        if cfg.dynamics not in DYNAMICS:
            raise ValueError(f"CifarPDENet: dynamics must be one of {', '.join(DYNAMICS)}, got {cfg.dynamics!r}.")
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        act, norm = resolve_layers(act_layer, norm_layer)
        self.stem = conv_norm_act(in_chans, cfg.widths[0], act, norm, dd)
        for i, (width, next_width) in enumerate(pairwise(cfg.widths)):
            layers: dict[str, nn.Module] = {} if i == 0 else {"pool": nn.AvgPool2d(2)}
            layers["pde"] = DYNAMICS[cfg.dynamics](width, cfg.steps, cfg.dt, act_layer=act, **dd)
            layers["connect"] = nn.Sequential(
                nn.Conv2d(width, next_width, 1, bias=False, **dd), norm(next_width, **dd), act()
            )
            self.stages.append(nn.Sequential(OrderedDict(layers)))
            self.feature_info.append({"num_chs": next_width, "reduction": 2**i, "module": f"stages.{i}"})
        self.make_head(cfg.widths[-1], global_pool, dd)
        init_fan_out(self)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Regular expressions for layer-wise learning rates."""
        if coarse:
            return {"stem": r"^stem", "blocks": r"^stages\.(\d+)"}
        layers, connect = r"^stages\.(\d+)\.pde\.\w*layers\.(\d+)", r"^stages\.(\d+)\.connect"
        return {"stem": r"^stem", "blocks": [(layers, None), (connect, (99999,))]}


WIDE = (32, 64, 128, 256)
default_cfgs = generate_default_cfgs(
    {
        f"{name}.untrained": cifar_cfg(8)
        for name in (f"cifar_{dynamics}{suffix}" for dynamics in DYNAMICS for suffix in ("", "_wide"))
    }
)


def _create(variant: str, cfg: PDENetConfig, pretrained: bool, **kwargs: Any) -> nn.Module:
    return build(CifarPDENet, variant, len(cfg.widths) - 1, pretrained, model_cfg=cfg, **kwargs)


@register_model
def cifar_parabolic(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The parabolic CNN of the CIFAR-10 experiments: 502,570 parameters, as published."""
    return _create("cifar_parabolic", PDENetConfig("parabolic"), pretrained, **kwargs)


@register_model
def cifar_parabolic_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The parabolic CNN of the CIFAR-100 experiments: 652,484 parameters for 100 classes, as published."""
    return _create("cifar_parabolic_wide", PDENetConfig("parabolic", WIDE), pretrained, **kwargs)


@register_model
def cifar_second_order(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The second-order CNN of the CIFAR-10 experiments: 502,570 parameters, as published."""
    return _create("cifar_second_order", PDENetConfig("second_order"), pretrained, **kwargs)


@register_model
def cifar_second_order_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The second-order CNN of the CIFAR-100 experiments: 652,484 parameters for 100 classes, as published."""
    return _create("cifar_second_order_wide", PDENetConfig("second_order", WIDE), pretrained, **kwargs)


@register_model
def cifar_hamiltonian(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The Hamiltonian CNN of the CIFAR-10 experiments: 264,106 parameters, as published; [KS22] prints 262K, 89.3 %."""
    return _create("cifar_hamiltonian", PDENetConfig("hamiltonian"), pretrained, **kwargs)


@register_model
def cifar_hamiltonian_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The Hamiltonian CNN of the CIFAR-100 experiments: 362,180 parameters for 100 classes, as published; 64.9 %."""
    return _create("cifar_hamiltonian_wide", PDENetConfig("hamiltonian", WIDE), pretrained, **kwargs)
