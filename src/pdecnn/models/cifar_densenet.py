"""CIFAR DenseNets with bottleneck and compression, plain and with Global layers [KS22, Tables 3, 4, 7].

The Global nets have half the layers per dense block and a Global layer after each transition; its first guess is a
bottleneck (1x1 to twice the channels, 3x3 back) without a skip.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from pdecnn.layers.blocks import LayerFactory
from pdecnn.models._base import ConvNet, build, cifar_cfg, drop_path_rates, init_fan_out, resolve_layers
from pdecnn.models._options import PUBLISHED, GlobalOptions, check_sizes, is_block


@dataclass(frozen=True)
class DenseNetConfig:
    """A DenseNet-BC.

    Attributes:
        layers: Dense layers per block.
        growth: Channels that each layer adds.
        blocks: Number of dense blocks.
        has_global: Whether a Global layer follows each transition.
        block_init: Whether the first guess of a Global layer is a dense layer of its input, not the input itself.
        options: How the Global layers are built.
    """

    layers: int
    growth: int = 12
    blocks: int = 3
    has_global: bool = False
    block_init: bool = True
    options: GlobalOptions = PUBLISHED

    def changed(self, layers: int | None, growth: int | None, init: str | None, no_global: bool) -> "DenseNetConfig":
        """A copy with what is given; a ValueError names what cannot be."""
        check_sizes("CifarDenseNet", layers=layers, growth=growth)
        return dataclasses.replace(
            self,
            layers=layers or self.layers,
            growth=growth or self.growth,
            block_init=is_block("CifarDenseNet", init, self.block_init),
            has_global=self.has_global and not no_global,
        )


class DenseLayer(nn.Sequential):
    """norm-act-1x1-norm-act-3x3, in this order; the concatenation is the caller's."""

    def __init__(
        self,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        act_layer: LayerFactory,
        norm_layer: LayerFactory,
        drop_path: float = 0.0,
        **dd: Any,
    ) -> None:
        super().__init__(
            OrderedDict(
                bn1=norm_layer(in_channels, **dd),
                act1=act_layer(),
                conv1=nn.Conv2d(in_channels, mid_channels, 1, bias=False, **dd),
                bn2=norm_layer(mid_channels, **dd),
                act2=act_layer(),
                conv2=nn.Conv2d(mid_channels, out_channels, 3, padding=1, bias=False, **dd),
                drop_path=DropPath(drop_path) if drop_path > 0 else nn.Identity(),
            )
        )


class Concatenate(nn.Module):
    """`x` with the output of `body` appended as further channels."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """`(N, C, H, W) -> (N, C + growth, H, W)`."""
        return torch.cat([x, self.body(x)], 1)


class CifarDenseNet(ConvNet):
    """A DenseNet-BC for 32x32 images; the arguments are those of `CifarResNet`, but for its sizes.

    Args:
        layers: Dense layers per block, instead of the config's.
        growth: Channels that each layer adds, instead of the config's.
        init: F, the first guess of the Global layers: `"identity"` or `"block"` (a dense layer).

    Each stage but the first begins with a transition (norm-act-1x1 to half the channels, average pooling by 2) and, in
    the Global nets, the Global layer after it. `drop_path_rate` drops what a dense layer adds.

    Example:
        >>> import timm
        >>> timm.create_model("cifar_densenet_bc100_global", num_classes=100)(torch.randn(1, 3, 32, 32)).shape
        torch.Size([1, 100])
    """

    def __init__(
        self,
        cfg: DenseNetConfig,
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
        layers: int | None = None,
        growth: int | None = None,
        init: str | None = None,
        no_global: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        cfg = cfg.changed(layers, growth, init, no_global)
        act, norm = resolve_layers(act_layer, norm_layer)
        kinds: dict[str, Any] = {"act_layer": act, "norm_layer": norm, **dd}
        options = cfg.options.changed(K, global_options, reading)
        rates = drop_path_rates(drop_path_rate, cfg.blocks * cfg.layers)

        C, g = 2 * cfg.growth, cfg.growth
        self.stem = nn.Sequential(OrderedDict(conv=nn.Conv2d(in_chans, C, 3, padding=1, bias=False, **dd)))
        for i in range(cfg.blocks):
            stage = nn.Sequential()
            if i > 0:
                stage.append(_transition(C, C // 2, act, norm, dd))
                C //= 2
                if cfg.has_global:
                    guess = DenseLayer(C, 2 * C, C, **kinds) if cfg.block_init else None
                    stage.append(options.build(C, guess, **kinds))
            for j in range(cfg.layers):
                stage.append(Concatenate(DenseLayer(C, 4 * g, g, drop_path=rates[i * cfg.layers + j], **kinds)))
                C += g
            self.stages.append(stage)
            self.feature_info.append({"num_chs": C, "reduction": 2**i, "module": f"stages.{i}"})
        self.norm = nn.Sequential(OrderedDict(bn=norm(C, **dd), act=act()))
        self.make_head(C, global_pool, dd)
        init_fan_out(self)
        if isinstance(self.fc, nn.Linear):
            nn.init.zeros_(self.fc.bias)


def _transition(
    in_channels: int, out_channels: int, act_layer: LayerFactory, norm_layer: LayerFactory, dd: dict[str, Any]
) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            bn=norm_layer(in_channels, **dd),
            act=act_layer(),
            conv=nn.Conv2d(in_channels, out_channels, 1, bias=False, **dd),
            pool=nn.AvgPool2d(2),
        )
    )


BC100 = DenseNetConfig(16)
BC100_GLOBAL = DenseNetConfig(8, has_global=True, options=GlobalOptions(coef_bias=False))
BC100_GLOBAL_WIDE = DenseNetConfig(12, has_global=True)

default_cfgs = generate_default_cfgs(
    {
        "cifar_densenet_bc100.untrained": cifar_cfg(8),
        "cifar_densenet_bc100_global.untrained": cifar_cfg(8),
        "cifar_densenet_bc100_global_wide.untrained": cifar_cfg(8),
    }
)


def _create(variant: str, cfg: DenseNetConfig, pretrained: bool, **kwargs: Any) -> nn.Module:
    return build(CifarDenseNet, variant, cfg.blocks, pretrained, model_cfg=cfg, **kwargs)


@register_model
def cifar_densenet_bc100(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DenseNet-BC, L = 100, k = 12: 769,162 parameters (800,032). Published 769K / 800K; 95.32 / 77.21 %."""
    return _create("cifar_densenet_bc100", BC100, pretrained, **kwargs)


@register_model
def cifar_densenet_bc100_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DenseNet-Global, learned D, no biases: 465,442 parameters (481,192). Published 465K / 481K; 95.01 / 75.69 %."""
    return _create("cifar_densenet_bc100_global", BC100_GLOBAL, pretrained, **kwargs)


@register_model
def cifar_densenet_bc100_global_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DenseNet-Global at the budget of Table 7, 12 layers per block: 922,168 parameters for 100 classes.

    Published: 922K, 247M MAC, 78.91 % on CIFAR-100.
    """
    return _create("cifar_densenet_bc100_global_wide", BC100_GLOBAL_WIDE, pretrained, **kwargs)
