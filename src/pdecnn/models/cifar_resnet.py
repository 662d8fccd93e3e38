"""CIFAR ResNets, plain and with Global layers [KS22, Sec. 4 and Tables 1, 3, 4, 7, 8].

The plain nets are three stages of m post-activation blocks of widths 16, 32, 64. The Global nets have a fourth stage
and a Global layer after each of the first three, whose first guess is the stage's output: m = 1 replaces ResNet-32,
m = 2 replaces ResNet-56.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import nn

from pdecnn.layers.blocks import BasicBlock, LayerFactory
from pdecnn.models._base import (
    ConvNet,
    build,
    cifar_cfg,
    conv_norm_act,
    drop_path_rates,
    init_fan_out,
    resolve_layers,
)
from pdecnn.models._options import PUBLISHED, GlobalOptions, check_sizes, is_block
from pdecnn.models._weights import shipped


@dataclass(frozen=True)
class ResNetConfig:
    """A CIFAR ResNet.

    Attributes:
        widths: Channels of each stage; the stem has those of the first.
        blocks: Residual blocks per stage, m.
        global_after: Indices of the stages that end in a Global layer.
        block_init: Whether the first guess of a Global layer is a residual block of its input, not the input itself.
        options: How the Global layers are built.
        low_budget: Whether it is one of the nets of fewer than 10M MAC, for which the text has D = 1 on CIFAR-10.
    """

    widths: tuple[int, ...]
    blocks: int
    global_after: tuple[int, ...] = ()
    block_init: bool = False
    options: GlobalOptions = PUBLISHED
    low_budget: bool = False

    def changed(
        self, widths: Sequence[int] | None, blocks: int | None, init: str | None, no_global: bool
    ) -> "ResNetConfig":
        """A copy with what is given; a ValueError names what cannot be."""
        widths = self.widths if widths is None else tuple(widths)
        if len(widths) != len(self.widths):
            raise ValueError(f"CifarResNet: expected {len(self.widths)} widths, got {list(widths)}.")
        check_sizes("CifarResNet", blocks=blocks, widths=min(widths))
        return dataclasses.replace(
            self,
            widths=widths,
            blocks=self.blocks if blocks is None else blocks,
            block_init=is_block("CifarResNet", init, self.block_init),
            global_after=() if no_global else self.global_after,
        )


class CifarResNet(ConvNet):
    """A ResNet for 32x32 images: 3x3 stem, stages of halving resolution, average pooling, linear classifier.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        drop_path_rate: Rate of stochastic depth at the last block; it rises evenly from 0.
        act_layer: Activation, by class or timm's name.
        norm_layer: Norm, by class or timm's name.
        global_pool: timm's name of the pooling.
        K: Time steps of the Global layers; the config's by default.
        global_options: Changes to the config's `GlobalOptions`, by name.
        reading: `"counts"` or `"text"`: which of the two the Global layers follow, see `GlobalOptions`.
        widths: Channels of each stage, as many as the config has; the config's by default.
        blocks: Residual blocks per stage, m; the config's by default.
        init: F, the first guess of the Global layers: `"identity"` or `"block"` (a residual block); the config's by
            default. The side of the coefficient convolutions is `global_options={"kernel_size": 5}`.
        no_global: Whether to leave the Global layers out: the null of such a net.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Example:
        >>> import timm
        >>> timm.create_model("cifar_resnet32_global", K=3)(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        cfg: ResNetConfig,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        act_layer: LayerFactory | str | None = None,
        norm_layer: LayerFactory | str | None = None,
        global_pool: str = "avg",
        K: int | None = None,
        global_options: Mapping[str, Any] | None = None,
        reading: str = "counts",
        widths: Sequence[int] | None = None,
        blocks: int | None = None,
        init: str | None = None,
        no_global: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        cfg = cfg.changed(widths, blocks, init, no_global)
        act, norm = resolve_layers(act_layer, norm_layer)
        layers: dict[str, Any] = {"act_layer": act, "norm_layer": norm, **dd}
        options = cfg.options.changed(K, global_options, reading, cfg.low_budget and num_classes != 100)
        rates = drop_path_rates(drop_path_rate, cfg.blocks * len(cfg.widths))

        channels = cfg.widths[0]
        self.stem = conv_norm_act(in_chans, channels, act, norm, dd)
        for i, width in enumerate(cfg.widths):
            stage = nn.Sequential()
            for j in range(cfg.blocks):
                stride = 2 if i > 0 and j == 0 else 1
                stage.append(BasicBlock(channels, width, stride=stride, drop_path=rates[i * cfg.blocks + j], **layers))
                channels = width
            if i in cfg.global_after:
                guess = BasicBlock(width, width, **layers) if cfg.block_init else None
                stage.append(options.build(width, guess, rates[(i + 1) * cfg.blocks - 1], **layers))
            self.stages.append(stage)
            self.feature_info.append({"num_chs": width, "reduction": 2**i, "module": f"stages.{i}"})
        self.make_head(channels, global_pool, dd)
        init_fan_out(self)


RESNET32 = ResNetConfig((16, 32, 64), 5)
RESNET56 = ResNetConfig((16, 32, 64), 9)
RESNET32_GLOBAL = ResNetConfig((16, 32, 64, 64), 1, (0, 1, 2))
RESNET56_GLOBAL = ResNetConfig((16, 32, 64, 64), 2, (0, 1, 2), options=GlobalOptions(diffusion=1.0))
RESNET56_GLOBAL_WIDE = ResNetConfig((32, 64, 128, 128), 2, (0, 1, 2))
RESNET32_GLOBAL_RESIDUAL = ResNetConfig(
    (16, 32, 64, 64), 1, (0, 1, 2), options=GlobalOptions(source="residual_each_step")
)
RESNET_TINY = ResNetConfig((6, 8, 8, 8), 3, low_budget=True)
RESNET_TINY_GLOBAL = ResNetConfig(
    (10, 9, 16, 16), 1, (0, 1, 2), options=GlobalOptions(coef_bias=False), low_budget=True
)

default_cfgs = generate_default_cfgs(
    {
        "cifar_resnet32.untrained": cifar_cfg(8),
        "cifar_resnet56.untrained": cifar_cfg(8),
        "cifar_resnet32_global.untrained": cifar_cfg(4),
        "cifar_resnet56_global.untrained": cifar_cfg(4),
        "cifar_resnet56_global_wide.untrained": cifar_cfg(4),
        "cifar_resnet32_global_residual.untrained": cifar_cfg(4),
        "cifar_resnet_tiny.untrained": cifar_cfg(4),
        "cifar_resnet_tiny_global.untrained": cifar_cfg(4),
        **shipped("cifar_resnet32.cifar10", cifar_cfg(8)),
        **shipped("cifar_resnet32_global.cifar10", cifar_cfg(4)),
        **shipped("cifar_resnet_tiny.cifar10", cifar_cfg(4)),
        **shipped("cifar_resnet_tiny_global.cifar10", cifar_cfg(4)),
    }
)


def create_resnet(variant: str, cfg: ResNetConfig, pretrained: bool, **kwargs: Any) -> nn.Module:
    """A `CifarResNet` through timm's builder."""
    return build(CifarResNet, variant, len(cfg.widths), pretrained, model_cfg=cfg, **kwargs)


@register_model
def cifar_resnet32(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-32: 466,906 parameters (472,756 for 100 classes). Published 460K / 473K; 92.49 / 68.57 %."""
    return create_resnet("cifar_resnet32", RESNET32, pretrained, **kwargs)


@register_model
def cifar_resnet56(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-56: 855,770 parameters (861,620 for 100 classes). Published 850K / 861K; 93.03 / 70.48 %."""
    return create_resnet("cifar_resnet56", RESNET56, pretrained, **kwargs)


@register_model
def cifar_resnet32_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-Global, m = 1, learned D: 161,850 parameters (167,700). Published 162K / 168K; 91.93 / 68.01 %."""
    return create_resnet("cifar_resnet32_global", RESNET32_GLOBAL, pretrained, **kwargs)


@register_model
def cifar_resnet56_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-Global, m = 2, D = 1: 330,362 parameters (336,212). Published 330K / 336K; 93.01 / 70.06 %.

    In the reading of the text D is depth-wise: 333,050 parameters (338,900).
    """
    return create_resnet("cifar_resnet56_global", RESNET56_GLOBAL, pretrained, **kwargs)


@register_model
def cifar_resnet56_global_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-Global at ResNet-56's budget, twice as wide, learned diffusivities: 1,326,916 parameters for 100 classes.

    Published (Table 7): 1.32M, 119M MAC, 74.33 % on CIFAR-100. This fits the MACs; the parameters round to 1.33M.
    """
    return create_resnet("cifar_resnet56_global_wide", RESNET56_GLOBAL_WIDE, pretrained, **kwargs)


@register_model
def cifar_resnet32_global_residual(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-Global, m = 1, with a separable residual block as source in each step: 175,066 parameters (180,916).

    Published (Table 8): 175K / 181K; 92.28 / 68.37 %. How state and input enter the block is not published: here it is
    given their sum.
    """
    return create_resnet("cifar_resnet32_global_residual", RESNET32_GLOBAL_RESIDUAL, pretrained, **kwargs)


@register_model
def cifar_resnet_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The ResNet of fewer than 10M MAC: 13,016 parameters (13,826). Published 13K / 14K; 80.76 / 35.21 %."""
    return create_resnet("cifar_resnet_tiny", RESNET_TINY, pretrained, **kwargs)


@register_model
def cifar_resnet_tiny_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The ResNet-Global of fewer than 10M MAC, learned D: 14,393 parameters (15,923).

    Published 14K / 16K; 82.55 / 43.62 %. In the reading of the text D = 1 on CIFAR-10: 13,623 parameters.
    """
    return create_resnet("cifar_resnet_tiny_global", RESNET_TINY_GLOBAL, pretrained, **kwargs)
