"""A network of waves: blocks that let three fields evolve by the wave equation and then mix them.

[LSB23] names the wave equation as the first of the hyperbolic systems behind its networks. A block is K steps of it, in
which values move between pixels, and a residual reaction of 1x1 convolutions, in which they move between channels.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from pdecnn.layers.wave_system import WaveSystem
from pdecnn.models._base import ConvNet, build, cifar_cfg, conv_norm_act


class WaveBlock(nn.Module):
    """`w -> w' + M2 sigma(N(M1 w'))` with `w'` the fields after K steps of the wave equation."""

    def __init__(self, channels: int, K: int, **dd: Any) -> None:
        super().__init__()
        n = 3 * channels
        self.wave = WaveSystem(channels, K=K, **dd)
        self.conv1 = nn.Conv2d(n, n, 1, bias=False, **dd)
        self.norm, self.act = nn.BatchNorm2d(n, **dd), nn.ReLU()
        self.conv2 = nn.Conv2d(n, n, 1, bias=False, **dd)

    def forward(self, w: Tensor) -> Tensor:
        """One block."""
        w = self.wave(w)
        out: Tensor = w + self.conv2(self.act(self.norm(self.conv1(w))))
        return out


@dataclass(frozen=True)
class WaveConfig:
    """A network of waves: channels of each field and blocks of each stage, and the steps of a block."""

    widths: tuple[int, ...] = (16, 32, 64)
    depths: tuple[int, ...] = (3, 3, 3)
    K: int = 2


class WaveNet(ConvNet):
    """Stem, stages of blocks (`WaveBlock`) joined by strided 1x1 convolutions, average pooling, linear classifier.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        global_pool: timm's name of the pooling.
        K: Steps of each block; the config's by default.
        device: Where the parameters live.
        dtype: Type of the parameters.
    """

    def __init__(
        self,
        cfg: WaveConfig,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        global_pool: str = "avg",
        K: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        n = 3 * cfg.widths[0]
        self.stem = conv_norm_act(in_chans, n, nn.ReLU, nn.BatchNorm2d, dd)
        for i, (width, depth) in enumerate(zip(cfg.widths, cfg.depths, strict=True)):
            m = 3 * width
            stage = nn.Sequential()
            if i > 0:
                down = {"conv": nn.Conv2d(n, m, 1, stride=2, bias=False, **dd), "bn": nn.BatchNorm2d(m, **dd)}
                stage.append(nn.Sequential(OrderedDict(down)))
            for _ in range(depth):
                stage.append(WaveBlock(width, cfg.K if K is None else K, **dd))
            n = m
            self.stages.append(stage)
            self.feature_info.append({"num_chs": m, "reduction": 2**i, "module": f"stages.{i}"})
        self.norm = nn.Sequential(nn.BatchNorm2d(n, **dd), nn.ReLU())
        self.make_head(n, global_pool, dd)

    def set_steps(self, K: int) -> None:
        """Changes the number of time steps of every block."""
        for module in self.modules():
            if isinstance(module, WaveSystem):
                module.K = K


default_cfgs = generate_default_cfgs({"cifar_wave.untrained": cifar_cfg(8)})


@register_model
def cifar_wave(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The three-field wave system as a network for 32x32 images."""
    return build(WaveNet, "cifar_wave", 3, pretrained, model_cfg=WaveConfig(), **kwargs)
