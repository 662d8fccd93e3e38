"""The smallest net of ours that reads digits: at most 700 parameters, space by PDEs, channels by 1x1 convolutions.

After a 3x3 convolution, nothing but transport and diffusion with constants of each channel and pooling moves values
between pixels: four numbers a channel, where a depth-wise convolution has nine. One mixing of the channels serves all
blocks, which is a reaction with constants of its own in time as well; each has its own norm.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn import functional as nnf

from pdecnn.layers.transport import Transport
from pdecnn.models._base import ConvNet, build, mnist_cfg
from pdecnn.models._weights import shipped


@dataclass(frozen=True)
class MicroConfig:
    """Channels, blocks at each of the two resolutions, time steps of each block."""

    width: int = 12
    blocks: tuple[int, int] = (2, 2)
    K: int = 2


class MicroBlock(nn.Module):
    """Pooling if asked for, transport and diffusion, the mixing that all blocks share, a norm of its own, ReLU."""

    def __init__(self, pool: bool, space: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()
        self.space, self.norm = space, norm

    def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """A feature map and the weight of the mixing; both are handed on."""
        x, mix = state
        y: Tensor = self.norm(nnf.conv2d(self.space(self.pool(x)), mix))
        return y.relu(), mix


class MnistMicro(ConvNet):
    """Convolution, pooling, two blocks, pooling, two blocks, average pooling, classifier.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        global_pool: timm's name of the pooling.
        K: Time steps of each block; the config's by default.
        no_global: Whether the blocks only mix channels: the null.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Example:
        >>> import timm
        >>> sum(p.numel() for p in timm.create_model("mnist_micro_global").parameters())
        694
    """

    def __init__(
        self,
        cfg: MicroConfig,
        num_classes: int = 10,
        in_chans: int = 1,
        drop_rate: float = 0.0,
        global_pool: str = "avg",
        K: int | None = None,
        no_global: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        n, steps = cfg.width, cfg.K if K is None else K

        def block(pool: bool) -> MicroBlock:
            return MicroBlock(pool, nn.Identity() if no_global else transport(n, steps, dd), nn.BatchNorm2d(n, **dd))

        self.stem = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(in_chans, n, 3, 1, 1, bias=False, **dd), bn=nn.BatchNorm2d(n, **dd), act=nn.ReLU()
            )
        )
        self.mix = nn.Parameter(torch.empty(n, n, 1, 1, **dd))
        nn.init.kaiming_uniform_(self.mix, a=5**0.5)
        for i, blocks in enumerate(cfg.blocks):
            self.stages.append(nn.Sequential(*(block(j == 0) for j in range(blocks))))
            self.feature_info.append({"num_chs": n, "reduction": 2 ** (i + 1), "module": f"stages.{i}"})
        self.make_head(n, global_pool, dd)

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The state after the stem: the feature map and the mixing."""
        return self.stem(x), self.mix

    def leave(self, state: tuple[Tensor, Tensor]) -> Tensor:
        """The feature map of a state."""
        return state[0]


def transport(channels: int, K: int, dd: dict[str, Any]) -> Transport:
    """Channels that look in different directions from the first step on."""
    layer = Transport(channels, K=K, **dd)
    nn.init.uniform_(layer.velocity, -1, 1)
    nn.init.constant_(layer.diffusion, 0.1)
    return layer


default_cfgs = generate_default_cfgs(
    {"mnist_micro_global.untrained": mnist_cfg(7), **shipped("mnist_micro_global.mnist", mnist_cfg(7))}
)


@register_model
def mnist_micro_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Ours: 694 parameters, advection and diffusion with constants of each channel. `no_global=True` is its null."""
    return build(MnistMicro, "mnist_micro_global", 2, pretrained, model_cfg=MicroConfig(), **kwargs)
