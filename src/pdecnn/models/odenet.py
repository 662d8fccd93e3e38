"""Neural-ODE classifiers, for comparison with the Global nets: `mnist_odenet` and `cifar_odenet`.

What was taken from where:

- `mnist_odenet` is the ODE-Net of Chen et al. 2018 (Neural Ordinary Differential Equations, Sec. 3, and the MNIST
  example of torchdiffeq; a row of [KS22, Table 2]): two strided convolutions, one ODE block of two 3x3
  convolutions with a time channel and group norms, solved by dopri5 with tolerance 1e-3 over t in [0, 1].
  It has 208,266 parameters; the paper prints 0.22M.
- `cifar_odenet` is the ODE ResNet-18 of ANODE (Gholami, Keutzer, Biros 2019): every residual block that does not change
  shape becomes an ODE block with the same parameters; Euler, two steps, discretise-then-optimise gradients.
  It has the 11M parameters that [KS22, Table 3] prints. What the paper leaves open and we chose: the vector field is
  the branch of the post-activation block (3x3, BN, ReLU, 3x3, BN), one ReLU follows each ODE block.

`gradient`, `method` and `steps` of `create_model` change the solver; with gradient "direct" or "adjoint" it is
torchdiffeq's, which is the extra `pdecnn[ode]`. A solver that chooses its steps cannot be traced: `torch.compile` and
`torch.export` take the fixed-step form (`gradient="anode"`) only.
"""

from dataclasses import dataclass
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from pdecnn.layers.blocks import BasicBlock, LayerFactory
from pdecnn.layers.ode_block import ODEBlock
from pdecnn.models._base import ConvNet, build, cifar_cfg, conv_norm_act, init_fan_out, mnist_cfg, resolve_layers


class TimeConv(nn.Module):
    """A 3x3 convolution of the state and a constant channel that holds the time t."""

    def __init__(self, channels: int, **dd: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels + 1, channels, 3, padding=1, **dd)

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """`(N, C, H, W) -> (N, C, H, W)`."""
        time = t.to(h.dtype).expand(h.shape[0], 1, *h.shape[2:])
        out: Tensor = self.conv(torch.cat([time, h], 1))
        return out


class TimeField(nn.Module):
    """The vector field of `mnist_odenet`: GN-ReLU-conv-GN-ReLU-conv-GN with the time in both convolutions."""

    def __init__(self, channels: int, **dd: Any) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (group_norm(channels, **dd) for _ in range(3))
        self.conv1, self.conv2 = TimeConv(channels, **dd), TimeConv(channels, **dd)

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """`dh/dt` at time t."""
        h = self.conv1(t, self.norm1(h).relu())
        out: Tensor = self.norm3(self.conv2(t, self.norm2(h).relu()))
        return out


class ResidualField(nn.Module):
    """The vector field of `cifar_odenet`: the branch of a residual block, the same at all times."""

    def __init__(self, channels: int, act_layer: LayerFactory, norm_layer: LayerFactory, **dd: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, **dd)
        self.bn1, self.act = norm_layer(channels, **dd), act_layer()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, **dd)
        self.bn2 = norm_layer(channels, **dd)

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """`dh/dt`, which does not depend on t."""
        out: Tensor = self.bn2(self.conv2(self.act(self.bn1(self.conv1(h)))))
        return out


def group_norm(channels: int, **dd: Any) -> nn.GroupNorm:
    """Group norm of 32 groups, or of as many as there are channels."""
    return nn.GroupNorm(min(32, channels), channels, **dd)


class MnistODENet(ConvNet):
    """The ODE-Net for 28x28 images: two strided convolutions, one ODE block, group norm, pooling, classifier.

    Args:
        width: Number of channels.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        global_pool: timm's name of the pooling.
        gradient: `"direct"`, `"adjoint"` or `"anode"`, see `ODEBlock`.
        method: Method of the solver.
        steps: Number of equal steps, None for adaptive ones.
        tol: Relative and absolute tolerance of adaptive steps.
        device: Where the parameters live.
        dtype: Type of the parameters.
    """

    def __init__(
        self,
        width: int = 64,
        num_classes: int = 10,
        in_chans: int = 1,
        drop_rate: float = 0.0,
        global_pool: str = "avg",
        gradient: str = "adjoint",
        method: str = "dopri5",
        steps: int | None = None,
        tol: float = 1e-3,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.stem = nn.Sequential()
        self.stem.add_module("conv", nn.Conv2d(in_chans, width, 3, **dd))
        for i in (1, 2):
            self.stem.add_module(f"norm{i}", group_norm(width, **dd))
            self.stem.add_module(f"act{i}", nn.ReLU())
            self.stem.add_module(f"down{i}", nn.Conv2d(width, width, 4, 2, 1, **dd))
        block = ODEBlock(TimeField(width, **dd), gradient=gradient, method=method, steps=steps, rtol=tol, atol=tol)
        self.stages.append(nn.Sequential(block))
        self.norm = nn.Sequential(group_norm(width, **dd), nn.ReLU())
        self.feature_info.append({"num_chs": width, "reduction": 4, "module": "stages.0"})
        self.make_head(width, global_pool, dd)


@dataclass(frozen=True)
class ODENetConfig:
    """A CIFAR ResNet whose shape-preserving blocks are ODE blocks."""

    widths: tuple[int, ...] = (64, 128, 256, 512)
    blocks: int = 2


class CifarODENet(ConvNet):
    """A ResNet for 32x32 images with ODE blocks in place of its shape-preserving residual blocks.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        act_layer: Activation, by class or timm's name.
        norm_layer: Norm, by class or timm's name.
        global_pool: timm's name of the pooling.
        gradient: `"anode"`, `"direct"` or `"adjoint"`, see `ODEBlock`.
        method: Method of the solver.
        steps: Number of equal steps, None for adaptive ones.
        tol: Relative and absolute tolerance of adaptive steps.
        device: Where the parameters live.
        dtype: Type of the parameters.
    """

    def __init__(
        self,
        cfg: ODENetConfig,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        act_layer: LayerFactory | str | None = None,
        norm_layer: LayerFactory | str | None = None,
        global_pool: str = "avg",
        gradient: str = "anode",
        method: str = "euler",
        steps: int | None = 2,
        tol: float = 1e-3,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        act, norm = resolve_layers(act_layer, norm_layer)
        solver: dict[str, Any] = {"gradient": gradient, "method": method, "steps": steps, "rtol": tol, "atol": tol}
        channels = cfg.widths[0]
        self.stem = conv_norm_act(in_chans, channels, act, norm, dd)
        for i, width in enumerate(cfg.widths):
            stage = nn.Sequential()
            for j in range(cfg.blocks):
                stride = 2 if i > 0 and j == 0 else 1
                if stride == 1 and channels == width:
                    stage.append(nn.Sequential(ODEBlock(ResidualField(width, act, norm, **dd), **solver), act()))
                else:
                    stage.append(BasicBlock(channels, width, stride=stride, act_layer=act, norm_layer=norm, **dd))
                channels = width
            self.stages.append(stage)
            self.feature_info.append({"num_chs": width, "reduction": 2**i, "module": f"stages.{i}"})
        self.make_head(channels, global_pool, dd)
        init_fan_out(self)


default_cfgs = generate_default_cfgs(
    {
        "mnist_odenet.untrained": mnist_cfg(6),
        "cifar_odenet.untrained": cifar_cfg(4),
    }
)


@register_model
def mnist_odenet(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ODE-Net on MNIST: 208,266 parameters. Published 220K; 99.49 %. Needs `pdecnn[ode]`."""
    return build(MnistODENet, "mnist_odenet", 1, pretrained, **kwargs)


@register_model
def cifar_odenet(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ANODE's ResNet-18: 11,173,962 parameters (11,220,132 for 100 classes). Published 11M; 94.96 / 71.28 %."""
    return build(CifarODENet, "cifar_odenet", 4, pretrained, model_cfg=ODENetConfig(), **kwargs)
