"""MNIST nets with and without a Global layer [KS22, Table 2 and the toy of Sec. 3].

The toys have one channel and 524 parameters each: convolution, residual sum or PDE of the same two convolutions. The
nets of 64 channels are those of the Neural ODE literature; the tiny ones have fewer than 6M MAC.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from pdecnn.layers.blocks import LayerFactory
from pdecnn.models._base import ConvNet, build, drop_path_rates, mnist_cfg, resolve_layers
from pdecnn.models._options import PUBLISHED, GlobalOptions, check_sizes, is_block, merge_changes
from pdecnn.models._weights import shipped

TOYS = ("conv", "residual", "global")


class PreActBlock(nn.Module):
    """The pre-activation residual block norm-act-3x3-norm-act-3x3 + x.

    With a stride, x goes through a strided 1x1 convolution without norm.
    """

    def __init__(
        self, channels: int, stride: int, drop_path: float, act_layer: LayerFactory, norm_layer: LayerFactory, **dd: Any
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            norm_layer(channels, **dd),
            act_layer(),
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False, **dd),
            norm_layer(channels, **dd),
            act_layer(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False, **dd),
            DropPath(drop_path) if drop_path > 0 else nn.Identity(),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Conv2d(channels, channels, 1, stride, bias=False, **dd)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out: Tensor = self.body(x) + self.shortcut(x)
        return out


@dataclass(frozen=True)
class MnistConfig:
    """An MNIST net.

    Attributes:
        channels: Channels throughout.
        has_global: Whether the features are Global layers, or else pre-activation blocks.
        strided_convs: Whether downsampling is by two strided 4x4 convolutions and the norms are group norms, or else
            by one strided residual block with batch norms.
        blocks: How many of these there are.
        block_init: Whether the first guess of a Global layer is a pre-activation block of its input.
        options: How the Global layers are built.
    """

    channels: int
    has_global: bool
    strided_convs: bool
    blocks: int
    block_init: bool = False
    options: GlobalOptions = PUBLISHED

    def changed(self, channels: int | None, blocks: int | None, init: str | None, no_global: bool) -> "MnistConfig":
        """A copy with what is given; a ValueError names what cannot be."""
        check_sizes("MnistNet", channels=channels, blocks=blocks)
        return dataclasses.replace(
            self,
            channels=channels or self.channels,
            blocks=0 if self.has_global and no_global else blocks or self.blocks,
            block_init=is_block("MnistNet", init, self.block_init),
        )


class MnistNet(ConvNet):
    """A net for 28x28 images: 3x3 convolution without padding, downsampling, features, average pooling, classifier.

    The arguments are those of `CifarResNet`, with `channels` instead of `widths`; `blocks` counts blocks or Global
    layers. `norm_layer` is for the blocks, Global layers have batch norms. The weights start as torch's default,
    since no other init is published.

    Example:
        >>> import timm
        >>> timm.create_model("mnist_resnet_global")(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        cfg: MnistConfig,
        num_classes: int = 10,
        in_chans: int = 1,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        act_layer: LayerFactory | str | None = None,
        norm_layer: LayerFactory | str | None = None,
        global_pool: str = "avg",
        K: int | None = None,
        global_options: Mapping[str, Any] | None = None,
        reading: str = "counts",
        channels: int | None = None,
        blocks: int | None = None,
        init: str | None = None,
        no_global: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        cfg = cfg.changed(channels, blocks, init, no_global)
        act, norm = resolve_layers(act_layer, norm_layer)
        if norm_layer is None and cfg.strided_convs:
            norm = partial(nn.GroupNorm, 32)
        layers: dict[str, Any] = {"act_layer": act, "norm_layer": norm, **dd}
        options = cfg.options.changed(K, global_options, reading)
        rates = drop_path_rates(drop_path_rate, 1 + cfg.blocks)
        C = cfg.channels

        def norm_act() -> nn.Sequential:
            return nn.Sequential(norm(C, **dd), act())

        self.stem = nn.Sequential(OrderedDict(conv=nn.Conv2d(in_chans, C, 3, **dd)))
        last = nn.Sequential()
        for rate in rates[1:]:
            if cfg.has_global:
                guess = PreActBlock(C, 1, 0.0, **layers) if cfg.block_init else None
                last.append(options.build(C, guess, rate, act_layer=act, **dd))
            else:
                last.append(PreActBlock(C, 1, rate, **layers))
        if cfg.strided_convs:
            down = [nn.Conv2d(C, C, 4, 2, 1, **dd) for _ in range(2)]
            self.stages.append(norm_act())
            self.stages.append(nn.Sequential(down[0], norm_act()))
            self.stages.append(nn.Sequential(down[1], *last))
        else:
            self.stages.append(nn.Sequential(nn.Identity()))
            self.stages.append(nn.Sequential(PreActBlock(C, 2, rates[0], **layers)))
            self.stages.append(last)
        for i in range(3):
            reduction = 2 ** (i if cfg.strided_convs else min(i, 1))
            self.feature_info.append({"num_chs": C, "reduction": reduction, "module": f"stages.{i}"})
        self.norm = norm_act()
        self.make_head(C, global_pool, dd)


MNIST_RESNET = MnistConfig(64, has_global=False, strided_convs=True, blocks=6)
MNIST_RESNET_GLOBAL = MnistConfig(64, has_global=True, strided_convs=True, blocks=1)
MNIST_RESNET_TINY = MnistConfig(16, has_global=False, strided_convs=False, blocks=6)
MNIST_RESNET_TINY_GLOBAL = MnistConfig(
    16, has_global=True, strided_convs=False, blocks=1, options=GlobalOptions(velocity="full", diffusion=1.0)
)


class ToyBlock(nn.Module):
    """What the plain toys do with `z` and `q = branch(z)`: `q`, or `act(norm(z + q))` if `residual`.

    Without `residual` the norm is there, so that all toys have 524 parameters, and is not used.
    """

    def __init__(
        self, branch: nn.Module, residual: bool, act_layer: LayerFactory, norm_layer: LayerFactory, **dd: Any
    ) -> None:
        super().__init__()
        self.branch = branch
        self.norm = norm_layer(1, **dd)
        self.act = act_layer()
        self.residual = residual

    def forward(self, z: Tensor) -> Tensor:
        """`(N, 1, H, W) -> (N, 1, H, W)`."""
        q = self.branch(z)
        out: Tensor = self.act(self.norm(z + q)) if self.residual else q
        return out


class MnistToy(ConvNet):
    """The toy: `z = conv(act(norm(x)))`, a block, activation, average pooling by 4, a classifier of 49 values.

    The block is `q = conv(act(norm(z)))` itself (`"conv"`), `act(norm(z + q))` (`"residual"`), or a Global layer of z
    whose velocities are `u = v = q`, without norm and of either sign, with D = 1 (`"global"`); `global_options` may
    ask for another velocity, and `no_global` leaves the layer out: the null. Gives logits; the published net ends in a
    log-softmax, which belongs to the loss here.

    Feature levels are z, the block's output, and that pooled. `global_pool=""` leaves the 7x7 map as it is.

    Example:
        >>> import timm
        >>> sum(p.numel() for p in timm.create_model("mnist_toy_global").parameters())
        524
    """

    def __init__(
        self,
        cfg: str,
        num_classes: int = 10,
        in_chans: int = 1,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        act_layer: LayerFactory | str | None = None,
        norm_layer: LayerFactory | str | None = None,
        global_pool: str = "avg",
        K: int | None = None,
        global_options: Mapping[str, Any] | None = None,
        no_global: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        act, norm = resolve_layers(act_layer, norm_layer)
        layers: dict[str, Any] = {"act_layer": act, "norm_layer": norm, **dd}
        if cfg not in TOYS:
            raise ValueError(f"MnistToy: cfg must be one of {', '.join(map(repr, TOYS))}, got {cfg!r}.")
        changes = merge_changes(K, global_options)
        options = PUBLISHED.replace({"diffusion": 1.0, **changes})
        self.stem = _norm_act_conv(in_chans, act, norm, dd)
        branch = _norm_act_conv(1, act, norm, dd)
        block: nn.Module
        if cfg != "global":
            block = ToyBlock(branch, cfg == "residual", **layers)
        elif no_global:
            block = nn.Identity()
        else:
            own = {} if "velocity" in changes else {"velocity": branch}
            block = options.build(1, None, drop_path_rate, **own, **layers)
        self.stages.append(nn.Sequential(nn.Identity()))
        self.stages.append(nn.Sequential(block))
        self.stages.append(nn.Sequential(act(), nn.AvgPool2d(4)))
        for i, reduction in enumerate((1, 1, 4)):
            self.feature_info.append({"num_chs": 1, "reduction": reduction, "module": f"stages.{i}"})
        self.make_head(49, global_pool, dd)

    def make_head(self, num_features: int, global_pool: str, dd: dict[str, Any]) -> None:
        """As in `ConvNet`, on the flattened map instead of its mean."""
        super().make_head(num_features, global_pool, dd)
        self.global_pool = nn.Flatten(1) if global_pool else nn.Identity()

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """As in `ConvNet`."""
        kept = "avg" if isinstance(self.global_pool, nn.Flatten) else ""
        super().reset_classifier(num_classes, kept if global_pool is None else global_pool)


def _norm_act_conv(
    in_channels: int, act_layer: LayerFactory, norm_layer: LayerFactory, dd: dict[str, Any]
) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, 1, 3, padding=1, bias=False, **dd)
    return nn.Sequential(OrderedDict(bn=norm_layer(in_channels, **dd), act=act_layer(), conv=conv))


default_cfgs = generate_default_cfgs(
    {
        "mnist_resnet.untrained": mnist_cfg(6),
        "mnist_resnet_global.untrained": mnist_cfg(6),
        "mnist_resnet_tiny.untrained": mnist_cfg(13),
        "mnist_resnet_tiny_global.untrained": mnist_cfg(13),
        "mnist_toy_conv.untrained": mnist_cfg(7),
        "mnist_toy_residual.untrained": mnist_cfg(7),
        "mnist_toy_global.untrained": mnist_cfg(7),
        **shipped("mnist_toy_conv.mnist", mnist_cfg(7)),
        **shipped("mnist_toy_residual.mnist", mnist_cfg(7)),
        **shipped("mnist_toy_global.mnist", mnist_cfg(7)),
    }
)


@register_model
def mnist_resnet(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Six residual blocks of 64 channels: 576,778 parameters, 29.8M MAC. Published 600K, 30M; 99.59 %."""
    return build(MnistNet, "mnist_resnet", 3, pretrained, model_cfg=MNIST_RESNET, **kwargs)


@register_model
def mnist_resnet_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """One Global layer of 64 channels, learned D, for the blocks: 136,074 parameters. Published 136K; 99.51 %."""
    return build(MnistNet, "mnist_resnet_global", 3, pretrained, model_cfg=MNIST_RESNET_GLOBAL, **kwargs)


@register_model
def mnist_resnet_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The budget ResNet of 16 channels (inferred): 33,322 parameters, 5.7M MAC. Published 33.3K, 5.7M; 99.61 %."""
    return build(MnistNet, "mnist_resnet_tiny", 3, pretrained, model_cfg=MNIST_RESNET_TINY, **kwargs)


@register_model
def mnist_resnet_tiny_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The budget Global net, velocities from full 3x3 convolutions, D = 1: 10,026 parameters, 1.77M MAC.

    Published 9.94K, 1.7M; 99.43 %. No configuration matches: this is the nearest that was found (+0.9 %).
    """
    return build(MnistNet, "mnist_resnet_tiny_global", 3, pretrained, model_cfg=MNIST_RESNET_TINY_GLOBAL, **kwargs)


@register_model
def mnist_toy_conv(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The toy of two convolutions: 524 parameters. Published 92.01 %."""
    return build(MnistToy, "mnist_toy_conv", 3, pretrained, model_cfg="conv", **kwargs)


@register_model
def mnist_toy_residual(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The toy of a residual block: 524 parameters. Published 92.53 %."""
    return build(MnistToy, "mnist_toy_residual", 3, pretrained, model_cfg="residual", **kwargs)


@register_model
def mnist_toy_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The toy of one PDE: 524 parameters. Published 95.03 %."""
    return build(MnistToy, "mnist_toy_global", 3, pretrained, model_cfg="global", **kwargs)
