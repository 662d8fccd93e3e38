"""Hyperbolic ConvNets: ResNets whose blocks are Euler steps of a quasi-linear hyperbolic system [LSB23].

Stem, four stages of [3, 4, 6, 3] quasi-linear blocks at 64, 128, 256, 512 channels, average pooling, linear classifier.
The nonlinearity is the product inside a block; activations on the residual stream are few ("@ds": after the
downsampling blocks and after the last block) and may be balls, which leave the orthogonal group of channel mixings as a
symmetry of the network. `hyperbolic50_cp` is the model on which that group really acts; see `pdecnn.symmetry`.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import generate_default_cfgs, register_model
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from pdecnn.layers.ball import make_activation
from pdecnn.layers.cp_block import CPBlock, LiftedBlock
from pdecnn.layers.quasilinear import Equation3, Equation4, Equation5, Equation6, Equation7, QuasilinearBlock
from pdecnn.layers.tensor_block import TensorBlock
from pdecnn.models._base import ConvNet, build, cifar_cfg, drop_path_rates, imagenet_cfg, mnist_cfg
from pdecnn.models._weights import shipped
from pdecnn.shared.modules import replace

BLOCKS: dict[str, type[QuasilinearBlock]] = {
    "eq3": Equation3,
    "eq4": Equation4,
    "eq5": Equation5,
    "eq6": Equation6,
    "eq7": Equation7,
    "cp": CPBlock,
    "lifted": LiftedBlock,
    "tensor": TensorBlock,
}
PLACES = ("all", "ds")
FACTORED = ("eq3", "eq4", "eq5", "eq6", "eq7")


@dataclass(frozen=True)
class HyperbolicConfig:
    """A hyperbolic network.

    Attributes:
        equation: `"eq3"` to `"eq7"`, `"cp"`, `"lifted"` (Equation (3) in CP form), or `"tensor"`, not factored.
        widths: Channels of each stage.
        depths: Blocks of each stage.
        f: Stencils per channel (rank factor k for `"cp"`); the block's own default if None.
        shared: Whether all channels share the stencils ("ws").
        activation: `"none"`, `"relu"`, `"hardtanh"`, `"hardball"` or `"softball"`.
        activation_at: `"all"` blocks, or `"ds"`: the downsampling blocks and the last block.
        stem_kernel: Side of the stem's convolution.
        stem_stride: Stride of the stem's convolution, followed by pooling of the same stride.
        linear_stem: Whether the stem has average pooling and no ReLU, which frees the symmetry of the first stage.
        reading: `"counts"` or `"text"`: what Equations (4) and (5) follow, see `pdecnn.layers.quasilinear`.
        groups: Diagonal blocks of the tensor of `"tensor"`.
    """

    equation: str = "eq3"
    widths: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    f: int | None = None
    shared: bool = True
    activation: str = "softball"
    activation_at: str = "ds"
    stem_kernel: int = 7
    stem_stride: int = 2
    linear_stem: bool = False
    reading: str = "counts"
    groups: int = 1

    def __post_init__(self) -> None:
        if self.equation not in BLOCKS:
            raise ValueError(f"HyperbolicConfig: equation must be one of {', '.join(BLOCKS)}, got {self.equation!r}.")
        if self.activation_at not in PLACES:
            raise ValueError(f"HyperbolicConfig: activation_at must be 'all' or 'ds', got {self.activation_at!r}.")
        if len(self.widths) != len(self.depths) or min(self.depths, default=0) < 1:
            raise ValueError(
                f"HyperbolicConfig: widths {self.widths} and depths {self.depths} must be of the same length, and "
                "every stage needs a block."
            )

    def changed(self, **changes: Any) -> "HyperbolicConfig":
        """A copy with the changes that are not None; another equation brings its own f."""
        given = {name: value for name, value in changes.items() if value is not None}
        for name in {"widths", "depths"} & given.keys():
            given[name] = tuple(given[name])
        if given.get("equation", self.equation) != self.equation:
            given = {"f": None, **given}
        return dataclasses.replace(self, **given)


class HyperbolicNet(ConvNet):
    """A hyperbolic network with timm's interface.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        drop_path_rate: Rate of stochastic depth at the last block; it rises evenly from 0.
        global_pool: timm's name of the pooling.
        equation: Instead of the config's, as all that follow; with another equation f is that of its blocks by default.
        f: Stencils per channel, 4 ("x4") or 6 ("x6") in the paper.
        shared: Whether all channels share the stencils ("ws").
        widths: Channels of each stage.
        depths: Blocks of each stage.
        activation: `"none"`, `"relu"`, `"hardtanh"`, `"hardball"` or `"softball"`.
        activation_at: `"all"` or `"ds"`.
        linear_stem: Whether the stem is linear.
        reading: `"counts"` or `"text"`.
        groups: Diagonal blocks of the tensor.
        folded: Whether the norms on the stream are folded into convolutions: the form that `pdecnn.symmetry` transforms
            and saves, for inference.
        zero_init_last: Whether every block starts as its skip.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Example:
        >>> import timm
        >>> timm.create_model("cifar_hyperbolic_eq3")(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        cfg: HyperbolicConfig,
        num_classes: int = 1000,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        global_pool: str = "avg",
        equation: str | None = None,
        f: int | None = None,
        shared: bool | None = None,
        widths: Sequence[int] | None = None,
        depths: Sequence[int] | None = None,
        activation: str | None = None,
        activation_at: str | None = None,
        linear_stem: bool | None = None,
        reading: str | None = None,
        groups: int | None = None,
        folded: bool = False,
        zero_init_last: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        cfg = cfg.changed(
            equation=equation,
            f=f,
            shared=shared,
            widths=widths,
            depths=depths,
            activation=activation,
            activation_at=activation_at,
            linear_stem=linear_stem,
            reading=reading,
            groups=groups,
        )
        self.cfg = cfg
        self.stem = make_stem(cfg, in_chans, dd)
        rates = iter(drop_path_rates(drop_path_rate, sum(cfg.depths)))
        own: dict[str, Any] = {} if cfg.equation == "cp" else {"shared": cfg.shared}
        own |= {"groups": cfg.groups} if cfg.equation == "tensor" else {}
        n, last = cfg.widths[0], (len(cfg.widths) - 1, cfg.depths[-1] - 1)
        for s, (m, depth) in enumerate(zip(cfg.widths, cfg.depths, strict=True)):
            stage = nn.Sequential()
            for i in range(depth):
                downsampling = s > 0 and i == 0
                activated = cfg.activation_at == "all" or downsampling or (s, i) == last
                stage.append(
                    BLOCKS[cfg.equation](
                        n,
                        m,
                        f=cfg.f,
                        stride=2 if downsampling else 1,
                        act=make_activation(cfg.activation, m) if activated else None,
                        drop_path=_drop_path(next(rates)),
                        reading=cfg.reading,
                        **own,
                        **dd,
                    )
                )
                n = m
            self.stages.append(stage)
            reduction = cfg.stem_stride**2 * 2**s
            self.feature_info.append({"num_chs": m, "reduction": reduction, "module": f"stages.{s}"})
        self.make_head(n, global_pool, dd)
        self.init_weights(zero_init_last)
        if folded:
            self.eval()
            fold_stream(self)

    def init_weights(self, zero_init_last: bool = True) -> None:
        """Kaiming-normal fan-out convolutions; every block equal to its skip if `zero_init_last`."""
        tensors = {block.mix for block in self.blocks() if isinstance(block, TensorBlock)}  # have an init of their own
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module not in tensors:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if zero_init_last:
            for block in self.blocks():
                block.zero_init_last()

    def blocks(self) -> list[QuasilinearBlock]:
        """All blocks, in order."""
        return [block for stage in self.stages for block in stage]  # type: ignore[attr-defined]


def fold_stream(net: HyperbolicNet) -> None:
    """Folds the norms on the stream (stem, end of block, skip) into the convolutions before them, in place.

    Norms inside a block stay. So does the norm after the product of Equations (4), (5), which no convolution precedes.
    """
    pairs = [(net.stem, "conv", "bn")]
    for block in net.blocks():
        if hasattr(block, "mix") and not isinstance(block, Equation4):
            pairs.append((block, "mix", "norm"))
        if isinstance(block.skip, nn.Sequential):
            pairs.append((block.skip, "0", "1"))
        if isinstance(block, Equation5) and block.order is None:  # the group will change it
            block.order = torch.arange(block.f * block.n)
    new: dict[nn.Module, nn.Module] = {}
    for parent, conv_name, norm_name in pairs:
        conv, norm = parent.get_submodule(conv_name), parent.get_submodule(norm_name)
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            new |= {conv: fuse_conv_bn_eval(conv, norm), norm: nn.Identity()}
        elif not isinstance(norm, nn.Identity):
            raise TypeError(
                f"fold_norms: expected a BatchNorm2d at '{norm_name}' after '{conv_name}', got {type(norm).__name__}, "
                "which cannot be folded."
            )
    replace(net, lambda module: new.get(module, module))


def make_stem(cfg: HyperbolicConfig, in_chans: int, dd: dict[str, Any]) -> nn.Sequential:
    """Convolution, norm, ReLU and max-pooling; without ReLU and with average pooling if it is to be linear."""
    k, width, linear = cfg.stem_kernel, cfg.widths[0], cfg.linear_stem
    stem = nn.Sequential()
    conv = nn.Conv2d(in_chans, width, k, stride=cfg.stem_stride, padding=k // 2, bias=False, **dd)
    stem.add_module("conv", conv)
    stem.add_module("bn", nn.BatchNorm2d(width, **dd))
    stem.add_module("act", nn.Identity() if linear else nn.ReLU())
    if cfg.stem_stride > 1:
        pool = nn.AvgPool2d if linear else nn.MaxPool2d
        stem.add_module("pool", pool(3, stride=2, padding=1))
    return stem


def _drop_path(rate: float) -> nn.Module | None:
    return DropPath(rate) if rate > 0 else None


CIFAR: dict[str, Any] = {"widths": (16, 32, 64), "depths": (3, 3, 3), "stem_kernel": 3, "stem_stride": 1}
CIFAR_CP = HyperbolicConfig("cp", f=2, activation="hardball", **CIFAR)
CP = HyperbolicConfig("cp", activation="hardball", shared=False)
EQUATIONS: dict[str, HyperbolicConfig] = {
    f"hyperbolic50_{equation}{suffix}": HyperbolicConfig(equation, f=f, shared=shared)
    for equation in FACTORED
    for suffix, f, shared in (("", 4, True), ("_nows", 4, False), ("_x6", 6, True), ("_nows_x6", 6, False))
}
CONFIGS: dict[str, HyperbolicConfig] = {
    **EQUATIONS,
    "hyperbolic50_cp": CP,
    **{f"cifar_hyperbolic_{equation}": HyperbolicConfig(equation, **CIFAR) for equation in FACTORED},
    "cifar_hyperbolic_cp": CIFAR_CP,
    "cifar_hyperbolic_tensor": HyperbolicConfig("tensor", **{**CIFAR, "widths": (8, 16, 32)}),
    "fashion_hyperbolic_cp": dataclasses.replace(CIFAR_CP, widths=(8, 16, 32), depths=(2, 2, 2)),
}
FASHION = {**mnist_cfg(7), "mean": (0.2860,), "std": (0.3530,)}
DEFAULTS = {"cifar": cifar_cfg(8), "fashion": FASHION, "hyperbolic50": imagenet_cfg(first_conv="stem.conv")}

default_cfgs = generate_default_cfgs(
    {
        **{f"{name}.untrained": DEFAULTS[name.partition("_")[0]] for name in CONFIGS},
        **shipped("fashion_hyperbolic_cp.fashion_mini", FASHION),
    }
)


def create_hyperbolic(variant: str, cfg: HyperbolicConfig, pretrained: bool, **kwargs: Any) -> nn.Module:
    """A `HyperbolicNet` through timm's builder."""
    return build(HyperbolicNet, variant, len(cfg.widths), pretrained, model_cfg=cfg, **kwargs)


def _register(name: str, cfg: HyperbolicConfig) -> None:
    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        channels = {"in_chans": 1} if name.startswith("fashion") else {}
        return create_hyperbolic(name, cfg, pretrained, **{**channels, **kwargs})

    stencils = "" if cfg.f is None else f", f = {cfg.f}"
    sharing = "shared stencils" if cfg.shared else "independent stencils"
    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f"Hyperbolic network of {cfg.equation}{stencils}, {sharing}, {cfg.activation}@ds."
    globals()[name] = register_model(entrypoint)


for _name, _cfg in CONFIGS.items():
    _register(_name, _cfg)
