r"""NeuPDE on images, for comparison with the Global nets: features evolve by a learned partial differential equation.

.. math:: \partial_t h = \mathcal{N}_\theta(h, h_x, h_y, h_{xx}, h_{xy}, h_{yy})

Source: Y. Sun, L. Zhang, H. Schaeffer, NeuPDE: Neural Network Based Ordinary and Partial Differential Equations for
Modeling Time-Dependent Data, MSML 2020 (arXiv 1908.03190): the unknown right-hand side is a shallow perceptron of the
state and its spatial derivatives, the same at all times and pixels. Only the general description was at hand, not the
CIFAR architecture: [KS22, Table 3] prints 9M parameters, 95.39 / 76.39 %. What is ours, therefore: central differences
with reflecting borders, one hidden layer (1x1 convolution to three times the width, batch norm, ReLU, 1x1 convolution),
five Euler steps over unit time, four stages of widths 64 to 512 joined by strided 3x3 convolutions: 8.9M parameters.
For MNIST it is one such block in the frame of the ODE-Net, its hidden layer chosen to meet the 180K parameters of
[KS22, Table 2].
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from pdecnn.layers.blocks import LayerFactory
from pdecnn.models._base import ConvNet, build, cifar_cfg, conv_norm_act, init_fan_out, mnist_cfg, resolve_layers
from pdecnn.reference.boundary import Boundary, neighbours

TERMS = 6


def derivative_features(h: Tensor) -> Tensor:
    """`h, h_x, h_y, h_xx, h_xy, h_yy` by central differences on the unit grid, `(N, C, H, W) -> (N, 6 C, H, W)`.

    Example:
        >>> x = torch.arange(5.0).expand(1, 1, 5, 5)
        >>> derivative_features(3 * x)[0, :, 2, 2]
        tensor([6., 3., 0., 0., 0., 0.])
    """
    wall = Boundary.NEUMANN
    x_plus, x_minus = neighbours(h, -1, wall, wall.state_parity)
    y_plus, y_minus = neighbours(h, -2, wall, wall.state_parity)
    h_x, h_y = (x_plus - x_minus) / 2, (y_plus - y_minus) / 2
    h_xx, h_yy = x_plus - 2 * h + x_minus, y_plus - 2 * h + y_minus
    xy_plus, xy_minus = neighbours(h_x, -2, wall, wall.state_parity)
    return torch.cat([h, h_x, h_y, h_xx, (xy_plus - xy_minus) / 2, h_yy], 1)


class NeuPDEBlock(nn.Module):
    """`steps` Euler steps over unit time of the equation above; all steps share the perceptron."""

    def __init__(
        self,
        channels: int,
        *,
        expansion: int = 3,
        hidden: int | None = None,
        steps: int = 5,
        act_layer: LayerFactory = nn.ReLU,
        norm_layer: LayerFactory = nn.BatchNorm2d,
        **dd: Any,
    ) -> None:
        super().__init__()
        if steps < 1:
            raise ValueError(f"NeuPDEBlock: steps must be at least 1, got steps={steps}.")
        self.steps = steps
        hidden = expansion * channels if hidden is None else hidden
        self.conv1 = nn.Conv2d(TERMS * channels, hidden, 1, bias=False, **dd)
        self.bn1, self.act1 = norm_layer(hidden, **dd), act_layer()
        self.conv2 = nn.Conv2d(hidden, channels, 1, **dd)
        self.bn2, self.act2 = norm_layer(channels, **dd), act_layer()

    def rate(self, h: Tensor) -> Tensor:
        """`dh/dt`."""
        out: Tensor = self.conv2(self.act1(self.bn1(self.conv1(derivative_features(h)))))
        return out

    def forward(self, h: Tensor) -> Tensor:
        """The state at time 1, then norm and activation."""
        for _ in range(self.steps):
            h = h + self.rate(h) / self.steps
        out: Tensor = self.act2(self.bn2(h))
        return out


@dataclass(frozen=True)
class NeuPDEConfig:
    """A network of one NeuPDE block per stage."""

    widths: tuple[int, ...] = (64, 128, 256, 512)
    expansion: int = 3
    steps: int = 5


class CifarNeuPDE(ConvNet):
    """Stem, stages of one NeuPDE block each, pooling, linear classifier.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        act_layer: Activation, by class or timm's name.
        norm_layer: Norm, by class or timm's name.
        global_pool: timm's name of the pooling.
        device: Where the parameters live.
        dtype: Type of the parameters.
    """

    def __init__(
        self,
        cfg: NeuPDEConfig,
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
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        act, norm = resolve_layers(act_layer, norm_layer)
        options: dict[str, Any] = {"expansion": cfg.expansion, "steps": cfg.steps, "act_layer": act, "norm_layer": norm}
        channels = cfg.widths[0]
        self.stem = conv_norm_act(in_chans, channels, act, norm, dd)
        for i, width in enumerate(cfg.widths):
            layers: dict[str, nn.Module] = {}
            if i > 0:
                layers["down"] = nn.Conv2d(channels, width, 3, 2, 1, bias=False, **dd)
                layers["bn"], layers["act"] = norm(width, **dd), act()
            layers["pde"] = NeuPDEBlock(width, **options, **dd)
            channels = width
            self.stages.append(nn.Sequential(OrderedDict(layers)))
            self.feature_info.append({"num_chs": width, "reduction": 2**i, "module": f"stages.{i}"})
        self.make_head(channels, global_pool, dd)
        init_fan_out(self)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Regular expressions for layer-wise learning rates."""
        return {"stem": r"^stem", "blocks": r"^stages\.(\d+)"}


class MnistNeuPDE(ConvNet):
    """The frame of the ODE-Net for 28x28 images, with one NeuPDE block for its features.

    Args:
        width: Number of channels.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        global_pool: timm's name of the pooling.
        hidden: Width of the perceptron's hidden layer.
        steps: Euler steps.
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
        hidden: int = 104,
        steps: int = 5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.stem = nn.Sequential()
        self.stem.add_module("conv", nn.Conv2d(in_chans, width, 3, **dd))
        for i in (1, 2):
            self.stem.add_module(f"norm{i}", nn.GroupNorm(min(32, width), width, **dd))
            self.stem.add_module(f"act{i}", nn.ReLU())
            self.stem.add_module(f"down{i}", nn.Conv2d(width, width, 4, 2, 1, **dd))
        self.stages.append(nn.Sequential(NeuPDEBlock(width, hidden=hidden, steps=steps, **dd)))
        self.feature_info.append({"num_chs": width, "reduction": 4, "module": "stages.0"})
        self.make_head(width, global_pool, dd)


default_cfgs = generate_default_cfgs({"cifar_neupde.untrained": cifar_cfg(4), "mnist_neupde.untrained": mnist_cfg(6)})


@register_model
def cifar_neupde(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A NeuPDE of our making at the published size of 9M parameters. Published 95.39 / 76.39 %."""
    return build(CifarNeuPDE, "cifar_neupde", 4, pretrained, model_cfg=NeuPDEConfig(), **kwargs)


@register_model
def mnist_neupde(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A NeuPDE of our making for MNIST: 179,738 parameters. Published 180K; 99.49 %."""
    return build(MnistNeuPDE, "mnist_neupde", 1, pretrained, **kwargs)
