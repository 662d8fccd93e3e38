"""MobileNetV2, MobileNetV3 and EfficientNet-B0 with Global layers [KS22, Table 5], built from timm's own blocks.

Each stage of repeated inverted residuals becomes one block and a Global layer whose first guess is either a further
inverted residual or the block's output itself. The baselines are timm's `mobilenetv2_100`, `mobilenetv3_large_100` and
`efficientnet_b0`.

Which stages have which first guess is not published. The default configurations are fits to the published counts, which
leave out the classifier (as the spec of the counts had to conclude); `layout="code"` builds the configuration of the
authors' code instead, which does not give the published counts. All have K = 1, D constant, convolutions without bias
and the input as state before the first, as that code has, unless said otherwise. The paper's text speaks of depth-wise
coefficients in all experiments and of `h^-1 = F(I)`:
`global_options={"velocity": "depthwise", "diffusion": "depthwise", "h_prev": "init"}`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from timm.models import generate_default_cfgs, register_model
from timm.models._efficientnet_blocks import SqueezeExcite
from timm.models._efficientnet_builder import decode_arch_def, efficientnet_init_weights, round_channels
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from torch import nn

from pdecnn.models._base import HasSteps, build, imagenet_cfg, resolve_layers
from pdecnn.models._options import GlobalOptions, merge_changes

ONE_STEP = GlobalOptions(K=1, diffusion=1.0, coef_bias=False, coef_bn_eps=1e-5)
GATED = dataclasses.replace(ONE_STEP, velocity="dot")
LEARNED = dataclasses.replace(ONE_STEP, diffusion="depthwise")


@dataclass(frozen=True)
class MobileStage:
    """A stage: timm's block strings, and what becomes a Global layer.

    Attributes:
        blocks: The strings, as in timm's architecture definitions.
        guess: `"block"` (the last block is the first guess of a Global layer), `"identity"` (a Global layer follows
            the last block) or `""` (no Global layer).
        options: How the Global layer is built; its kernel size and activation are those of the last block.
    """

    blocks: tuple[str, ...]
    guess: str = ""
    options: GlobalOptions = ONE_STEP


@dataclass(frozen=True)
class MobileConfig:
    """A mobile net.

    Attributes:
        stages: The stages.
        stem: Channels of the stem.
        act: timm's name of the activation.
        width: What all channels are multiplied with.
        scale_head: Whether this includes the 1280 channels of the head.
        se_gate: timm's name of the gate of squeeze-and-excite; with "hard_sigmoid" its activation is ReLU.
    """

    stages: tuple[MobileStage, ...]
    stem: int
    act: str
    width: float = 1.0
    scale_head: bool = False
    se_gate: str = "sigmoid"

    def timm_kwargs(self) -> dict[str, Any]:
        """What timm's class is built with."""
        round_chs = partial(round_channels, multiplier=self.width)
        se_layer = SqueezeExcite
        if self.se_gate == "hard_sigmoid":
            se_layer = partial(
                SqueezeExcite, gate_layer=self.se_gate, force_act_layer=nn.ReLU, rd_round_fn=round_channels
            )
        return {
            "block_args": decode_arch_def([list(stage.blocks) for stage in self.stages]),
            "num_features": round_chs(1280) if self.scale_head else 1280,
            "stem_size": self.stem,
            "round_chs_fn": round_chs,
            "se_layer": se_layer,
        }


def insert_global_layers(
    model: Any,
    cfg: MobileConfig,
    block_args: list[list[dict[str, Any]]],
    changes: Mapping[str, Any],
    norm_layer: Any,
    dd: dict[str, Any],
) -> None:
    """Turns the stages of `model` that `cfg` marks into stages that end in a Global layer, in place."""
    for stage, stage_cfg, args in zip(model.blocks, cfg.stages, block_args, strict=True):
        if not stage_cfg.guess:
            continue
        last = stage[-1]
        options = stage_cfg.options.replace({"kernel_size": args[-1]["dw_kernel_size"], **changes})
        guess = last if stage_cfg.guess == "block" else None
        layer = options.build(
            last.conv_pwl.out_channels, guess, act_layer=args[-1]["act_layer"], norm_layer=norm_layer, **dd
        )
        efficientnet_init_weights(layer)
        if guess is None:
            stage.append(layer)
        else:
            stage[-1] = layer


def _start(
    cfg: MobileConfig, kwargs: dict[str, Any], K: int | None, global_options: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The kwargs of timm's class, the changes to the options, device and dtype."""
    act, norm = resolve_layers(kwargs.pop("act_layer", None) or cfg.act, kwargs.pop("norm_layer", None))
    dd = {"device": kwargs.get("device"), "dtype": kwargs.get("dtype")}
    timm_kwargs = {**cfg.timm_kwargs(), "act_layer": act, "norm_layer": norm, **kwargs}
    return timm_kwargs, merge_changes(K, global_options), dd


class EfficientNetGlobal(EfficientNet, HasSteps):
    """timm's `EfficientNet` (MobileNetV2 too) with Global layers.

    Args:
        cfg: The architecture.
        K: Time steps of the Global layers; the config's by default.
        global_options: Changes to the options of every Global layer, by name.
        kwargs: As for timm's class: `num_classes`, `in_chans`, `drop_rate`, `drop_path_rate`, `act_layer`, ...

    Example:
        >>> import timm, torch
        >>> timm.create_model("mobilenetv2_100_global")(torch.randn(1, 3, 64, 64)).shape
        torch.Size([1, 1000])
    """

    def __init__(
        self, cfg: MobileConfig, K: int | None = None, global_options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        kwargs, changes, dd = _start(cfg, kwargs, K, global_options)
        super().__init__(**kwargs)
        insert_global_layers(self, cfg, kwargs["block_args"], changes, kwargs["norm_layer"], dd)


class MobileNetV3Global(MobileNetV3, HasSteps):
    """timm's `MobileNetV3` with Global layers; the arguments are those of `EfficientNetGlobal`."""

    def __init__(
        self, cfg: MobileConfig, K: int | None = None, global_options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        kwargs, changes, dd = _start(cfg, kwargs, K, global_options)
        super().__init__(**kwargs)
        insert_global_layers(self, cfg, kwargs["block_args"], changes, kwargs["norm_layer"], dd)


def _mobilenetv2(guesses: tuple[str, ...], options: GlobalOptions = ONE_STEP, act: str = "") -> MobileConfig:
    """MobileNetV2 with the given first guesses of stages c24, c32, c64, c96, c160."""
    stages = [MobileStage(("ds_r1_k3_s1_c16",))]
    for (s, c), guess in zip(((2, 24), (2, 32), (2, 64), (1, 96), (2, 160)), guesses, strict=True):
        blocks = [f"ir_r1_k3_s{s}_e6_c{c}"]
        if guess == "block":
            blocks.append(f"ir_r1_k3_s1_e6_c{c}" + (act if c <= 64 else ""))
        stages.append(MobileStage(tuple(blocks), guess, options))
    return MobileConfig((*stages, MobileStage(("ir_r1_k3_s1_e6_c320",))), 32, "relu6")


def _mobilenetv3(
    guesses: tuple[str, ...], gated: GlobalOptions = GATED, plain: GlobalOptions = ONE_STEP, width: float = 1.0
) -> MobileConfig:
    """MobileNetV3-Large with the given first guesses of stages c24, c40, c80, c112, c160."""
    first = (
        "ir_r1_k3_s2_e4_c24_nre",
        "ir_r1_k5_s2_e3_c40_se0.25_nre",
        "ir_r1_k3_s2_e6_c80",
        "ir_r1_k3_s1_e6_c112_se0.25",
        "ir_r1_k5_s2_e6_c160_se0.25",
    )
    further = (
        "ir_r1_k3_s1_e3_c24_nre",
        "ir_r1_k5_s1_e3_c40_se0.25_nre",
        "ir_r1_k3_s1_e6_c80",
        "ir_r1_k3_s1_e6_c112_se0.25",
        "ir_r1_k5_s1_e6_c160_se0.25",
    )
    stages = [MobileStage(("ds_r1_k3_s1_e1_c16_nre",))]
    for i, guess in enumerate(guesses):
        options = plain if i == 0 else gated
        match guess:
            case "strided":  # the strided block itself is the first guess
                stages.append(MobileStage((first[i],), "block", options))
            case "block":
                stages.append(MobileStage((first[i], further[i]), guess, options))
            case _:
                stages.append(MobileStage((first[i],), guess, options))
    stages.append(MobileStage(("cn_r1_k1_s1_c960",)))
    return MobileConfig(tuple(stages), 16, "hard_swish", width, se_gate="hard_sigmoid")


def _efficientnet_b0(guesses: tuple[str, ...], width: float = 1.0) -> MobileConfig:
    """EfficientNet-B0 with the given first guesses of stages c24, c40, c80, c112, c192."""
    stages = [MobileStage(("ds_r1_k3_s1_e1_c16_se0.25",))]
    slow = dataclasses.replace(GATED, dt=0.1, diffusion=2.0)
    options = (slow, dataclasses.replace(slow, dilation=2), GATED, GATED, GATED)
    shapes = ((3, 2, 24), (5, 2, 40), (3, 2, 80), (5, 1, 112), (5, 2, 192))
    for (k, s, c), guess, stage_options in zip(shapes, guesses, options, strict=True):
        blocks = [f"ir_r1_k{k}_s{s}_e6_c{c}_se0.25"]
        if guess == "block":
            blocks.append(f"ir_r1_k{k}_s1_e6_c{c}_se0.25")
        stages.append(MobileStage(tuple(blocks), guess, stage_options))
    stages.append(MobileStage(("ir_r1_k3_s1_e6_c320_se0.25",)))
    return MobileConfig(tuple(stages), 32, "swish", width, scale_head=True)


CONFIGS = {
    "mobilenetv2_100_global": {
        "counts": _mobilenetv2(("", "", "", "block", "block")),
        "code": _mobilenetv2(("block",) * 5, act="_nre"),
    },
    "mobilenetv2_100_global_s": {"counts": _mobilenetv2(("identity",) * 5, LEARNED)},
    "mobilenetv3_large_100_global": {
        "counts": _mobilenetv3(("block", "", "block", "", "block")),
        "code": _mobilenetv3(("block", "block", "block", "block", "strided")),
    },
    "mobilenetv3_large_100_global_s": {
        "counts": _mobilenetv3(
            ("identity", "identity", "identity", "block", "identity"),
            dataclasses.replace(GATED, diffusion="dot"),
            LEARNED,
            width=0.8,
        )
    },
    "efficientnet_b0_global": {
        "counts": _efficientnet_b0(("identity", "identity", "identity", "block", "block")),
        "code": _efficientnet_b0(("block",) * 5),
    },
    "efficientnet_b0_global_s": {
        "counts": _efficientnet_b0(("identity", "identity", "block", "block", "block"), width=0.85)
    },
}

default_cfgs = generate_default_cfgs(
    {
        f"{name}.untrained": imagenet_cfg(first_conv="conv_stem", classifier="classifier", interpolation="bicubic")
        for name in CONFIGS
    }
)


def _create(variant: str, pretrained: bool, layout: str = "counts", **kwargs: Any) -> nn.Module:
    configs = CONFIGS[variant]
    if layout not in configs:
        raise ValueError(f"{variant}: layout must be one of {', '.join(map(repr, configs))}, got {layout!r}.")
    model_cls = MobileNetV3Global if "v3" in variant else EfficientNetGlobal
    return build(model_cls, variant, 5, pretrained, model_cfg=configs[layout], **kwargs)


@register_model
def mobilenetv2_100_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """MobileNetV2-Global: 1,590,400 parameters without the classifier of 1,281,000. Published 1.6M, 193M MAC; 71.63 %.

    Global layers at c96 and c160, first guess an inverted residual. `layout="code"`: at all five stages, 2,952,232
    parameters with the classifier.
    """
    return _create("mobilenetv2_100_global", pretrained, **kwargs)


@register_model
def mobilenetv2_100_global_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The smaller MobileNetV2-Global: 1,163,280 parameters without the classifier. Published 1.2M, 150M MAC; 69.03 %.

    Global layers with learned D at all five stages, first guess the block's output. No part of it is published; it fits
    the MACs only if batch norms are not counted (150.8M).
    """
    return _create("mobilenetv2_100_global_s", pretrained, **kwargs)


@register_model
def mobilenetv3_large_100_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """MobileNetV3-Large-Global: 2,972,480 parameters without the classifier. Published 3.0M, 156M MAC; 74.11 %.

    Global layers at c24, c80, c160, first guess an inverted residual. `layout="code"`: at all five stages, the last one
    with a strided first guess, 3,868,160 parameters with the classifier.
    """
    return _create("mobilenetv3_large_100_global", pretrained, **kwargs)


@register_model
def mobilenetv3_large_100_global_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The smaller MobileNetV3-Global: 1,800,904 parameters without the classifier. Published 1.8M, 110M MAC; 71.89 %.

    Nothing of width 1 matches; this has width 0.8 and learned D, first guess an inverted residual at c112 and the
    block's output elsewhere.
    """
    return _create("mobilenetv3_large_100_global_s", pretrained, **kwargs)


@register_model
def efficientnet_b0_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """EfficientNet-B0-Global: 2,397,032 parameters without the classifier. Published 2.4M, 244M MAC; 76.12 %.

    First guess the block's output at c24, c40, c80 and an inverted residual at c112, c192. As in the authors' code,
    dt = 0.1 and D = 2 at c24 and c40, and neighbours at c40 are two pixels away. `layout="code"`: inverted residuals at
    all five stages, 3,822,932 parameters with the classifier.
    """
    return _create("efficientnet_b0_global", pretrained, **kwargs)


@register_model
def efficientnet_b0_global_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The smaller EfficientNet-B0-Global: 1,817,422 parameters without the classifier. Published 1.8M, 201M; 74.53 %.

    Nothing of width 1 matches; this has width 0.85, first guess an inverted residual at c80, c112, c192 and the block's
    output elsewhere.
    """
    return _create("efficientnet_b0_global_s", pretrained, **kwargs)
