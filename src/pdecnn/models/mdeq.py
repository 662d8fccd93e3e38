"""The multiscale deep equilibrium model (MDEQ), for comparison with the Global nets.

Source: S. Bai, V. Koltun, J. Z. Kolter, Multiscale Deep Equilibrium Models, NeurIPS 2020, and the settings of its
published CIFAR-10 experiments (`large` and `tiny`). Features of several resolutions are driven to the fixed point of
one transformation: a residual block per resolution (3x3 convolutions, five times wider inside, group norm of 8 groups,
the input injected at the highest resolution only), then every resolution receives all others (strided 3x3 convolutions
down, 1x1 convolution and nearest neighbour up), then ReLU, 1x1 convolution, group norm. Weight norm on the convolutions
of the blocks and the last 1x1. Head: a bottleneck per resolution, merged downwards, 1x1 to 1680 channels.

What is ours: Anderson acceleration instead of Broyden's method (18 evaluations forward and 20 backward at most, as
theirs), the gradient by `pdecnn.layers.Equilibrium`. What is left out: variational dropout (0.3 in their runs), the
warm-up in which the transformation is unrolled 10 times, the Jacobian regulariser of a later paper. A compiled or
exported net always makes all evaluations.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.utils.parametrizations import weight_norm

from pdecnn.layers.equilibrium import Equilibrium
from pdecnn.models._base import ConvNet, build, cifar_cfg


def init_normal(model: nn.Module) -> None:
    """Convolution weights ~ N(0, 0.01^2), as published."""
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.normal_(m.weight, std=0.01)


class ResolutionBlock(nn.Module):
    """`GN(ReLU(z + GN(conv(ReLU(GN(conv z))) + injection)))`, with `expansion` times more channels inside."""

    def __init__(self, channels: int, expansion: int, groups: int, **dd: Any) -> None:
        super().__init__()
        inner = expansion * channels
        self.conv1 = nn.Conv2d(channels, inner, 3, padding=1, bias=False, **dd)
        self.norm1 = nn.GroupNorm(groups, inner, **dd)
        self.conv2 = nn.Conv2d(inner, channels, 3, padding=1, bias=False, **dd)
        self.norm2 = nn.GroupNorm(groups, channels, **dd)
        self.norm3 = nn.GroupNorm(groups, channels, **dd)

    def forward(self, z: Tensor, injection: Tensor | None) -> Tensor:
        """`(N, C, H, W) -> (N, C, H, W)`."""
        h = self.conv2(self.norm1(self.conv1(z)).relu())
        h = self.norm2(h if injection is None else h + injection)
        out: Tensor = self.norm3((h + z).relu())
        return out


def resample(source: int, target: int, widths: tuple[int, ...], groups: int, **dd: Any) -> nn.Module:
    """Channels of resolution `source` to those of `target`; upwards the map is still to be enlarged."""
    if source == target:
        return nn.Identity()
    if source > target:
        conv = nn.Conv2d(widths[source], widths[target], 1, bias=False, **dd)
        return nn.Sequential(conv, nn.GroupNorm(groups, widths[target], **dd))
    layers: list[nn.Module] = []
    for level in range(source, target):
        width = widths[target] if level == target - 1 else widths[source]
        layers.append(nn.Conv2d(widths[source], width, 3, 2, 1, bias=False, **dd))
        layers += [nn.GroupNorm(groups, width, **dd), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class MultiscaleCell(nn.Module):
    """The transformation whose fixed point is sought: resolutions side by side, packed into one row per sample."""

    def __init__(self, widths: tuple[int, ...], expansion: int, groups: int, **dd: Any) -> None:
        super().__init__()
        self.widths = widths
        self.blocks = nn.ModuleList(ResolutionBlock(width, expansion, groups, **dd) for width in widths)
        levels = range(len(widths))
        self.fuse = nn.ModuleList(nn.ModuleList(resample(j, i, widths, groups, **dd) for j in levels) for i in levels)
        self.post = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(width, width, 1, bias=False, **dd),
                nn.GroupNorm(groups // 2, width, affine=False, **dd),
            )
            for width in widths
        )
        init_normal(self)
        for m in (*self.blocks.modules(), *self.post.modules()):
            if isinstance(m, nn.Conv2d):
                weight_norm(m, dim=0)

    def shapes(self, x: Tensor) -> list[tuple[int, int, int]]:
        """`(C, H, W)` of each resolution for an injection `x`; each is half of the one before, rounded up."""
        H, W = x.shape[-2:]
        return [(C, -(-H // 2**i), -(-W // 2**i)) for i, C in enumerate(self.widths)]

    def start(self, x: Tensor) -> Tensor:
        """The first guess: zeros."""
        return x.new_zeros(x.shape[0], sum(C * H * W for C, H, W in self.shapes(x)))

    def unpack(self, z: Tensor, x: Tensor) -> list[Tensor]:
        """The maps in a packed state."""
        shapes = self.shapes(x)
        parts = torch.split(z, [C * H * W for C, H, W in shapes], dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """One application, on packed states."""
        maps = self.unpack(z, x)
        maps = [block(h, x if i == 0 else None) for i, (block, h) in enumerate(zip(self.blocks, maps, strict=True))]
        fused = []
        for h, paths, post in zip(maps, self.fuse, self.post, strict=True):
            size = h.shape[-2:]
            terms = [path(h) for path, h in zip(paths.children(), maps, strict=True)]
            terms = [h if h.shape[-2:] == size else interpolate(h, size=size, mode="nearest") for h in terms]
            fused.append(post(sum(terms)).flatten(1))
        return torch.cat(fused, 1)


class EquilibriumStage(nn.Module):
    """Injection in, list of maps at equilibrium out."""

    def __init__(self, cell: MultiscaleCell, **solver: Any) -> None:
        super().__init__()
        self.equilibrium = Equilibrium(cell, **solver)

    def forward(self, x: Tensor) -> list[Tensor]:
        """The maps of all resolutions, finest first."""
        cell: Any = self.equilibrium.g
        return list(cell.unpack(self.equilibrium(cell.start(x), x), x))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 to four times `channels`, with a 1x1 shortcut; norms on the branch have no parameters."""

    def __init__(self, in_channels: int, channels: int, **dd: Any) -> None:
        super().__init__()
        out = 4 * channels
        self.branch = nn.Sequential(
            nn.Conv2d(in_channels, channels, 1, bias=False, **dd),
            nn.BatchNorm2d(channels, affine=False, **dd),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False, **dd),
            nn.BatchNorm2d(channels, affine=False, **dd),
            nn.ReLU(),
            nn.Conv2d(channels, out, 1, bias=False, **dd),
            nn.BatchNorm2d(out, affine=False, **dd),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(in_channels, out, 1, bias=False, **dd), nn.BatchNorm2d(out, **dd))

    def forward(self, x: Tensor) -> Tensor:
        """`(N, in_channels, H, W) -> (N, 4 channels, H, W)`."""
        out: Tensor = (self.branch(x) + self.shortcut(x)).relu()
        return out


class MergeHead(nn.Module):
    """The list of maps to one map of the coarsest resolution."""

    def __init__(self, widths: tuple[int, ...], head: tuple[int, ...], num_features: int, **dd: Any) -> None:
        super().__init__()
        self.widen = nn.ModuleList(Bottleneck(C, c, **dd) for C, c in zip(widths, head, strict=True))
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4 * c, 4 * d, 3, 2, 1, **dd), nn.BatchNorm2d(4 * d, **dd), nn.ReLU())
            for c, d in pairwise(head)
        )
        self.last = nn.Sequential(
            nn.Conv2d(4 * head[-1], num_features, 1, **dd), nn.BatchNorm2d(num_features, **dd), nn.ReLU()
        )
        init_normal(self)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """A list of one map, so that the state stays a list."""
        h = self.widen[0](maps[0])
        for widen, down, z in zip(list(self.widen)[1:], self.down, maps[1:], strict=True):
            h = widen(z) + down(h)
        return [self.last(h)]


@dataclass(frozen=True)
class MDEQConfig:
    """An MDEQ: widths of the resolutions and of the head, finest first."""

    widths: tuple[int, ...] = (32, 64, 128, 256)
    head: tuple[int, ...] = (14, 28, 56, 112)
    num_features: int = 1680
    expansion: int = 5
    groups: int = 8


class CifarMDEQ(ConvNet):
    """A multiscale deep equilibrium classifier for 32x32 images.

    Args:
        cfg: The architecture.
        num_classes: Number of classes; 0 for none.
        in_chans: Channels of the images.
        drop_rate: Dropout before the classifier.
        global_pool: timm's name of the pooling.
        max_evaluations: Limit of the evaluations in the forward solve.
        max_backward_evaluations: Limit of the evaluations in the backward solve.
        tol: Relative residual at which a solve stops.
        device: Where the parameters live.
        dtype: Type of the parameters.
    """

    def __init__(
        self,
        cfg: MDEQConfig,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        global_pool: str = "avg",
        max_evaluations: int = 18,
        max_backward_evaluations: int = 20,
        tol: float = 1e-3,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        width = cfg.widths[0]
        convs = {"conv": nn.Conv2d(in_chans, width, 3, padding=1, bias=False, **dd)}
        convs["conv2"] = nn.Conv2d(width, width, 3, padding=1, bias=False, **dd)
        if len(cfg.widths) > 2:  # the tiny net injects the stem's output as it is
            convs["inject"] = nn.Conv2d(width, width, 1, bias=False, **dd)
        self.stem = nn.Sequential()
        for name, conv in convs.items():
            self.stem.add_module(name, conv)
            self.stem.add_module(f"{name}_bn", nn.BatchNorm2d(width, **dd))
            self.stem.add_module(f"{name}_act", nn.ReLU())
        init_normal(self.stem)
        cell = MultiscaleCell(cfg.widths, cfg.expansion, cfg.groups, **dd)
        solver = {"max_evaluations": max_evaluations, "max_backward_evaluations": max_backward_evaluations, "tol": tol}
        self.stages.append(EquilibriumStage(cell, **solver))
        self.stages.append(MergeHead(cfg.widths, cfg.head, cfg.num_features, **dd))
        reduction = 2 ** (len(cfg.widths) - 1)
        self.feature_info = [
            {"num_chs": width, "reduction": 1, "module": "stages.0"},
            {"num_chs": cfg.num_features, "reduction": reduction, "module": "stages.1"},
        ]
        self.make_head(cfg.num_features, global_pool, dd)

    def leave(self, state: list[Tensor]) -> Tensor:
        """The map of the finest resolution at hand."""
        return state[0]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Regular expressions for layer-wise learning rates: the equilibrium is one group, the head the next."""
        return {"stem": r"^stem", "blocks": r"^stages\.(\d+)"}

    def _run_stage(self, stage: nn.Module, state: Any) -> Any:
        # an equilibrium stores no iterate, so there is nothing to be saved by checkpointing
        return stage(state)


TINY = MDEQConfig((24, 24), (8, 16), 200)
SMALL = MDEQConfig((24, 48, 80), (8, 16, 32), 400)
default_cfgs = generate_default_cfgs(
    {
        "cifar_mdeq.untrained": cifar_cfg(4),
        "cifar_mdeq_small.untrained": cifar_cfg(8),
        "cifar_mdeq_tiny.untrained": cifar_cfg(16),
    }
)


@register_model
def cifar_mdeq(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """MDEQ of four resolutions: 11,097,438 parameters. Published 10M; 93.8 %."""
    return build(CifarMDEQ, "cifar_mdeq", 2, pretrained, model_cfg=MDEQConfig(), **kwargs)


@register_model
def cifar_mdeq_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """MDEQ of three resolutions, widths of our choice: 1,113,850 parameters. [KS22, Table 1] prints 1.1M; 92.28 %."""
    return build(CifarMDEQ, "cifar_mdeq_small", 2, pretrained, model_cfg=SMALL, **kwargs)


@register_model
def cifar_mdeq_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """MDEQ of two resolutions: 158,890 parameters. Published 170K."""
    return build(CifarMDEQ, "cifar_mdeq_tiny", 2, pretrained, model_cfg=TINY, **kwargs)
