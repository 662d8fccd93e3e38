"""The networks of the low-cost parameterisations: six kinds of step in one frame [RD, Sec. 4].

A 5x5 opening, then for each width four steps and a connecting layer, which doubles the channels and halves the image;
then average pooling and a linear classifier. Only the steps differ. Widths A = 32-64-128, B = 48-96-192,
C = 32-64-128-256. The published parameter counts hold with batch norms without weights, which is the default.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model, register_notrace_module
from torch import Tensor, nn

from pdecnn.layers.depthwise import DepthwiseConv2d
from pdecnn.layers.linear_mix import LinearMixConv2d
from pdecnn.layers.reaction_diffusion import (
    CirculantReactionDiffusion,
    ExplicitReactionDiffusion,
    ImplicitReactionDiffusion,
)
from pdecnn.models._base import ConvNet, build, cifar_cfg


class ResidualStep(nn.Module):
    """`y + K_2 sigma(N(K_1 y))` [RD, Eq. (1), (3)] for two operators of one kind.

    The paper writes the transpose of K_2, which has weights of its own: the same functions, the same count.
    """

    def __init__(self, channels: int, operator: Callable[[], nn.Module], affine: bool, dd: dict[str, Any]) -> None:
        super().__init__()
        self.conv1 = operator()
        self.norm = nn.BatchNorm2d(channels, affine=affine, **dd)
        self.act = nn.ReLU()
        self.conv2 = operator()

    def forward(self, y: Tensor) -> Tensor:
        """One step."""
        out: Tensor = y + self.conv2(self.act(self.norm(self.conv1(y))))
        return out


class MobileStep(nn.Sequential):
    """`sigma(N(M sigma(N(K y))))` with a depth-wise K and without a skip connection [RD, Eq. (13)]."""

    def __init__(self, channels: int, kernel_size: int, affine: bool, dd: dict[str, Any]) -> None:
        super().__init__(
            OrderedDict(
                depthwise=DepthwiseConv2d(channels, kernel_size, **dd),
                norm1=nn.BatchNorm2d(channels, affine=affine, **dd),
                act1=nn.ReLU(),
                pointwise=nn.Conv2d(channels, channels, 1, bias=False, **dd),
                norm2=nn.BatchNorm2d(channels, affine=affine, **dd),
                act2=nn.ReLU(),
            )
        )


class Connect(nn.Module):
    """`N([y; K y])` with a depth-wise K, then 2x2 average pooling: twice the channels, half the image."""

    def __init__(self, channels: int, kernel_size: int, affine: bool, dd: dict[str, Any]) -> None:
        super().__init__()
        self.depthwise = DepthwiseConv2d(channels, kernel_size, **dd)
        self.norm = nn.BatchNorm2d(2 * channels, affine=affine, **dd)
        self.pool = nn.AvgPool2d(2)

    def forward(self, y: Tensor) -> Tensor:
        """`(N, C, H, W) -> (N, 2C, H/2, W/2)`."""
        out: Tensor = self.pool(self.norm(torch.cat([y, self.depthwise(y)], 1)))
        return out


class PointwiseConnect(nn.Sequential):
    """`N(M y)` with a 1x1 convolution M to twice the channels, and 2x2 average pooling; or M strided, without it.

    The other two that the authors tried, with similar accuracy.
    """

    def __init__(self, channels: int, strided: bool, affine: bool, dd: dict[str, Any]) -> None:
        super().__init__(
            OrderedDict(
                pointwise=nn.Conv2d(channels, 2 * channels, 1, stride=2 if strided else 1, bias=False, **dd),
                norm=nn.BatchNorm2d(2 * channels, affine=affine, **dd),
                pool=nn.Identity() if strided else nn.AvgPool2d(2),
            )
        )


CONNECTS = ("concat", "pointwise", "strided")

for _module in (
    DepthwiseConv2d,
    LinearMixConv2d,
    ExplicitReactionDiffusion,
    ImplicitReactionDiffusion,
    CirculantReactionDiffusion,
):
    register_notrace_module(_module)  # torch.fx keeps them whole: their checks read shapes


@dataclass(frozen=True)
class StepOptions:
    """How a step is built: its time step, the size of its stencils, whether norms have weights, and the guard."""

    h: float = 0.1
    kernel_size: int = 3
    affine: bool = False
    guard: bool = False


StepFactory = Callable[[int, StepOptions, dict[str, Any]], nn.Module]


def _resnet(c: int, o: StepOptions, dd: dict[str, Any]) -> nn.Module:
    m = o.kernel_size
    return ResidualStep(c, lambda: nn.Conv2d(c, c, m, padding=m // 2, bias=False, **dd), o.affine, dd)


def _linearmix(c: int, o: StepOptions, dd: dict[str, Any]) -> nn.Module:
    return ResidualStep(c, lambda: LinearMixConv2d(c, o.kernel_size, **dd), o.affine, dd)


def _mobilenet(c: int, o: StepOptions, dd: dict[str, Any]) -> nn.Module:
    return MobileStep(c, o.kernel_size, o.affine, dd)


def _explicit(c: int, o: StepOptions, dd: dict[str, Any]) -> nn.Module:
    return ExplicitReactionDiffusion(c, **dataclasses.asdict(o), **dd)


def _implicit(c: int, o: StepOptions, dd: dict[str, Any]) -> nn.Module:
    return ImplicitReactionDiffusion(c, **{**dataclasses.asdict(o), "guard": False}, **dd)


def _circulant(c: int, o: StepOptions, dd: dict[str, Any]) -> nn.Module:
    return CirculantReactionDiffusion(c, **dataclasses.asdict(o), **dd)


STEPS: dict[str, StepFactory] = {
    "resnet": _resnet,
    "mobilenet": _mobilenet,
    "linearmix": _linearmix,
    "explicit": _explicit,
    "implicit": _implicit,
    "circulant": _circulant,
}
WIDTHS = {"a": (32, 64, 128), "b": (48, 96, 192), "c": (32, 64, 128, 256), "tiny": (8, 16, 32)}


@dataclass(frozen=True)
class LowCostConfig:
    """A network of one kind of step.

    Attributes:
        step: A name in `STEPS`.
        widths: Channels of the steps of each stage.
        steps: Steps per stage.
    """

    step: str
    widths: tuple[int, ...]
    steps: int = 4

    def __post_init__(self) -> None:
        if self.step not in STEPS:
            raise ValueError(f"LowCostConfig: step must be one of {', '.join(STEPS)}, got {self.step!r}.")


class LowCostNet(ConvNet):
    """Opening, stages of steps and connecting layers, average pooling, linear classifier.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        global_pool: timm's name of the pooling.
        h: Time step of the reaction-diffusion steps. The paper gives none.
        affine: Whether the batch norms have weights. The published counts are without.
        guard: Whether explicit steps scale down stencils for which `h` is too large.
        steps: Steps per stage; the config's (4) by default.
        kernel_size: Odd size of the stencils of steps and connecting layers.
        connect: The connecting layer: `"concat"` (the paper's), `"pointwise"` (1x1 convolution, then pooling) or
            `"strided"` (1x1 convolution of stride 2).
        device: Where the parameters live.
        dtype: Type of the parameters.

    Example:
        >>> import timm
        >>> timm.create_model("lowcost_implicit_a", h=0.5)(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        cfg: LowCostConfig,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        global_pool: str = "avg",
        h: float = 0.1,
        affine: bool = False,
        guard: bool = False,
        steps: int | None = None,
        kernel_size: int = 3,
        connect: str = "concat",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        opening: dict[str, nn.Module] = {
            "conv": nn.Conv2d(in_chans, cfg.widths[0], 5, padding=2, bias=False, **dd),
            "bn": nn.BatchNorm2d(cfg.widths[0], affine=affine, **dd),
            "act": nn.ReLU(),
        }
        self.stem = nn.Sequential(OrderedDict(opening))
        options = StepOptions(h, kernel_size, affine, guard)
        if steps is not None and steps < 1:
            raise ValueError(f"LowCostNet: steps must be at least 1, got {steps}.")
        if connect not in CONNECTS:
            raise ValueError(f"LowCostNet: connect must be one of {', '.join(map(repr, CONNECTS))}, got {connect!r}.")
        for i, width in enumerate(cfg.widths):
            blocks = [STEPS[cfg.step](width, options, dd) for _ in range(cfg.steps if steps is None else steps)]
            last = (
                Connect(width, kernel_size, affine, dd)
                if connect == "concat"
                else PointwiseConnect(width, connect == "strided", affine, dd)
            )
            self.stages.append(nn.Sequential(*blocks, last))
            self.feature_info.append({"num_chs": 2 * width, "reduction": 2 ** (i + 1), "module": f"stages.{i}"})
            if i + 1 < len(cfg.widths) and cfg.widths[i + 1] != 2 * width:
                raise ValueError(f"LowCostNet: each width must be twice the one before, got {cfg.widths}.")
        self.make_head(2 * cfg.widths[-1], global_pool, dd)


default_cfgs = generate_default_cfgs(
    {
        f"lowcost_{step}_{size}.untrained": cifar_cfg(32 // 2 ** len(widths))
        for step in STEPS
        for size, widths in WIDTHS.items()
    }
)


def _register(step: str, size: str) -> None:
    """Registers `lowcost_{step}_{size}` in timm."""
    name, cfg = f"lowcost_{step}_{size}", LowCostConfig(step, WIDTHS[size])

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return build(LowCostNet, name, len(cfg.widths), pretrained, model_cfg=cfg, **kwargs)

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"The low-cost network of {step} steps with widths {'-'.join(map(str, cfg.widths))}."
    globals()[name] = create
    register_model(create)


for _step in STEPS:
    for _size in WIDTHS:
        _register(_step, _size)
