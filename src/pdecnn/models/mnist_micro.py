"""The smallest net of ours that reads digits: at most 700 parameters, space by PDEs, channels by 1x1 convolutions.

Between a strided 3x3 convolution and the classifier, nothing but Global layers with a velocity and a diffusivity of
each channel moves values between pixels: four numbers a channel, where a depth-wise convolution has nine.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import nn

from pdecnn.layers.coefficients import ChannelPair
from pdecnn.models._base import ConvNet, build, mnist_cfg
from pdecnn.models._options import GlobalOptions
from pdecnn.models._weights import shipped

CONSTANTS = GlobalOptions(K=3, velocity="channel", diffusion="channel", h_prev="init", boundary="neumann")
FASTEST = 3.0  # velocity at the start: 0.6 pixels in a time step, 1.8 in the three of a layer


@dataclass(frozen=True)
class MicroConfig:
    """Channels of the stem and of the features, and how the Global layers are built."""

    stem: int = 8
    width: int = 12
    options: GlobalOptions = CONSTANTS


class MnistMicro(ConvNet):
    """Strided convolution, Global layer, 1x1, pooling, Global layer, 1x1, Global layer, average pooling, classifier.

    The velocities start at random, so that the channels look in different directions from the first step on.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        global_pool: timm's name of the pooling.
        K: Time steps of the Global layers; the config's by default.
        global_options: Changes to the config's `GlobalOptions`, by name.
        no_global: Whether norm and activation alone stand in place of the Global layers: the null.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Example:
        >>> import timm
        >>> sum(p.numel() for p in timm.create_model("mnist_micro_global").parameters())
        698
    """

    def __init__(
        self,
        cfg: MicroConfig,
        num_classes: int = 10,
        in_chans: int = 1,
        drop_rate: float = 0.0,
        global_pool: str = "avg",
        K: int | None = None,
        global_options: Mapping[str, Any] | None = None,
        no_global: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        options = cfg.options.changed(K, global_options)

        def space(channels: int) -> nn.Module:
            if no_global:
                return nn.Sequential(nn.BatchNorm2d(channels, **dd), nn.ReLU())
            layer = options.build(channels, **dd)
            if isinstance(layer.velocity, ChannelPair):
                for component in (layer.velocity.x, layer.velocity.y):
                    nn.init.uniform_(component, -FASTEST, FASTEST)
            return layer

        def mix(n: int, m: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(n, m, 1, bias=False, **dd), nn.BatchNorm2d(m, **dd), nn.ReLU())

        n, m = cfg.stem, cfg.width
        self.stem = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(in_chans, n, 3, 2, 1, bias=False, **dd), bn=nn.BatchNorm2d(n, **dd), act=nn.ReLU()
            )
        )
        self.stages.append(nn.Sequential(space(n), mix(n, m)))
        self.stages.append(nn.Sequential(nn.MaxPool2d(2), space(m), mix(m, m), space(m)))
        self.feature_info = [
            {"num_chs": m, "reduction": 2, "module": "stages.0"},
            {"num_chs": m, "reduction": 4, "module": "stages.1"},
        ]
        self.make_head(m, global_pool, dd)


default_cfgs = generate_default_cfgs(
    {"mnist_micro_global.untrained": mnist_cfg(7), **shipped("mnist_micro_global.mnist", mnist_cfg(7))}
)


@register_model
def mnist_micro_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Ours: 698 parameters, Global layers with constants of each channel. `no_global=True` is its null."""
    return build(MnistMicro, "mnist_micro_global", 2, pretrained, model_cfg=MicroConfig(), **kwargs)
