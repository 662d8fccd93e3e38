"""CIFAR nets of DARTS cells, plain and with Global layers [KS22, Tables 3, 4, 7].

A Global layer stands before each of the two reduction cells. Its input is the last cell's output s1, its first guess a
normal cell of the last two outputs, and its output takes the place of a cell's.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from timm.layers import DropPath
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from pdecnn.layers.blocks import LayerFactory
from pdecnn.models._base import ConvNet, build, cifar_cfg, conv_norm_act, resolve_layers
from pdecnn.models._options import PUBLISHED, GlobalOptions, check_sizes
from pdecnn.models.darts_cell import NODES, AuxiliaryHead, Cell


@dataclass(frozen=True)
class DartsConfig:
    """A net of DARTS cells.

    Attributes:
        channels: Channels of a node in the first cells; the stem has three times as many.
        cells: Number of cells L, without the first guesses; cells L // 3 and 2 L // 3 are reductions.
        has_global: Whether a Global layer precedes each reduction.
        options: How the Global layers are built.
        low_budget: Whether it is one of the nets of fewer than 10M MAC, for which the text has D = 1 on CIFAR-10.
    """

    channels: int
    cells: int
    has_global: bool = False
    options: GlobalOptions = PUBLISHED
    low_budget: bool = False

    def __post_init__(self) -> None:
        first, second = self.reductions
        if not 0 < first < second:
            raise ValueError(f"DartsConfig: cells must be at least 3 for two distinct reductions, got {self.cells}.")
        if self.has_global and second - first < 2:
            raise ValueError(
                f"DartsConfig: a Global layer needs a normal cell before each reduction, but with cells={self.cells} "
                f"the reductions are {first} and {second}. Use cells >= 5."
            )

    def changed(self, channels: int | None, cells: int | None, no_global: bool) -> "DartsConfig":
        """A copy with what is given; a ValueError names what cannot be."""
        check_sizes("CifarDarts", channels=channels, cells=cells)
        return dataclasses.replace(
            self,
            channels=channels or self.channels,
            cells=cells or self.cells,
            has_global=self.has_global and not no_global,
        )

    @property
    def reductions(self) -> tuple[int, int]:
        """The indices of the two reduction cells."""
        return self.cells // 3, 2 * self.cells // 3


class Step(nn.Module):
    """Runs a cell, or a Global layer whose first guess is one, on the last two outputs; hands on the new last two."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """`(s0, s1) -> (s1, cell(s1, s0))`."""
        s0, s1 = state
        return s1, self.cell(s1, s0)


class CifarDarts(ConvNet):
    """A DARTS net for 32x32 images; the arguments are those of `CifarResNet`, but for its sizes.

    Args:
        channels: Channels of a node in the first cells, instead of the config's.
        cells: Number of cells, instead of the config's. The first guess of a Global layer is a cell in all of them.
        aux_logits: Whether to build the auxiliary head of the published training. In training mode the output is then
            `(logits, aux_logits)`; its loss has weight 0.4. The head is left out of the published counts.

    `drop_path_rate` is the same for all edges; the published training raises it from 0 to 0.2 over the epochs, for
    which there is `set_drop_path`. The weights start as torch's default, since no other init is published.

    Example:
        >>> import timm
        >>> timm.create_model("cifar_darts_tiny_global")(torch.randn(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """

    def __init__(
        self,
        cfg: DartsConfig,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        act_layer: LayerFactory | str | None = None,
        norm_layer: LayerFactory | str | None = None,
        global_pool: str = "avg",
        aux_logits: bool = False,
        K: int | None = None,
        global_options: Mapping[str, Any] | None = None,
        reading: str = "counts",
        channels: int | None = None,
        cells: int | None = None,
        no_global: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        cfg = cfg.changed(channels, cells, no_global)
        act, norm = resolve_layers(act_layer, norm_layer)
        options = cfg.options.changed(K, global_options, reading, cfg.low_budget and num_classes != 100)
        cell_options: dict[str, Any] = {"drop_path": drop_path_rate, "act_layer": act, "norm_layer": norm, "dd": dd}

        C, s0, s1 = cfg.channels, 3 * cfg.channels, 3 * cfg.channels
        self.stem = conv_norm_act(in_chans, s1, None, norm, dd)
        bounds = (0, *cfg.reductions, cfg.cells)
        for i in range(3):
            stage = nn.Sequential()
            for j in range(bounds[i], bounds[i + 1]):
                reduction = i > 0 and j == bounds[i]
                s0_is_larger = i > 0 and j == bounds[i] + 1
                C *= 2 if reduction else 1
                cell = Cell(s0, s1, C, reduction=reduction, s0_is_larger=s0_is_larger, **cell_options)
                stage.append(Step(cell))
                s0, s1 = s1, NODES * C
            if cfg.has_global and i < 2:
                s0_is_larger = i > 0 and bounds[i + 1] - bounds[i] == 1
                guess = Cell(s0, s1, C, reduction=False, s0_is_larger=s0_is_larger, **cell_options)
                stage.append(Step(options.build(s1, guess, act_layer=act, norm_layer=norm, **dd)))
                s0 = s1
            self.stages.append(stage)
            self.feature_info.append({"num_chs": s1, "reduction": 2**i, "module": f"stages.{i}"})
        self.aux = AuxiliaryHead(s1, num_classes, act, norm, dd) if aux_logits and num_classes > 0 else None
        self.make_head(s1, global_pool, dd)

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The stem's output as both of the last two outputs."""
        s = self.stem(x)
        return s, s

    def leave(self, state: tuple[Tensor, Tensor]) -> Tensor:
        """The last output."""
        return state[1]

    def forward(self, x: Tensor) -> Any:
        """Logits `(N, num_classes)`; with the auxiliary head's in training mode, if there is one."""
        if self.aux is None or not self.training:
            return super().forward(x)
        state = self.enter(x)
        last = cast(nn.Sequential, self.stages[-1])
        for stage in self.stages[:-1]:
            state = self._run_stage(stage, state)
        state = self._run_stage(last[0], state)  # the second reduction
        aux = self.aux(state[1])
        state = self._run_stage(last[1:], state)
        return self.forward_head(self.norm(self.leave(state))), aux

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """As in `ConvNet`; the auxiliary head's last layer is replaced too, or the head dropped for 0 classes."""
        super().reset_classifier(num_classes, global_pool)
        if self.aux is not None:
            weight = self.aux[-1].weight
            self.aux[-1] = nn.Linear(768, max(1, num_classes), device=weight.device, dtype=weight.dtype)
            self.aux = self.aux if num_classes > 0 else None

    def set_drop_path(self, rate: float) -> None:
        """Sets the probability of dropping an edge, for a schedule."""
        if not 0 <= rate < 1:
            raise ValueError(f"set_drop_path: rate must be in [0, 1), got {rate}.")
        for m in self.modules():
            if isinstance(m, DropPath):
                m.drop_prob = rate


DARTS = DartsConfig(36, 20)
DARTS_GLOBAL = DartsConfig(36, 6, has_global=True, options=GlobalOptions(diffusion=1.0))
DARTS_GLOBAL_WIDE = DartsConfig(48, 9, has_global=True)
DARTS_TINY = DartsConfig(3, 20, low_budget=True)
DARTS_TINY_GLOBAL = DartsConfig(5, 7, has_global=True, options=GlobalOptions(diffusion=1.0), low_budget=True)

default_cfgs = generate_default_cfgs(
    {
        "cifar_darts.untrained": cifar_cfg(8),
        "cifar_darts_global.untrained": cifar_cfg(8),
        "cifar_darts_global_wide.untrained": cifar_cfg(8),
        "cifar_darts_tiny.untrained": cifar_cfg(8),
        "cifar_darts_tiny_global.untrained": cifar_cfg(8),
    }
)


def _create(variant: str, cfg: DartsConfig, pretrained: bool, **kwargs: Any) -> nn.Module:
    return build(CifarDarts, variant, 3, pretrained, model_cfg=cfg, **kwargs)


@register_model
def cifar_darts(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DARTS, C = 36, L = 20: 3,349,342 parameters (3,401,272). Published 3.3M / 3.4M; 97.11 / 82.51 %."""
    return _create("cifar_darts", DARTS, pretrained, **kwargs)


@register_model
def cifar_darts_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DARTS-Global, C = 36, L = 6, D = 1: 783,298 parameters (835,228). Published 783K / 835K; 96.83 / 81.89 %.

    The paper's Table 4 speaks of three Global layers; its counts are those of two. In the reading of the text D is
    depth-wise: 793,666 parameters (845,596).
    """
    return _create("cifar_darts_global", DARTS_GLOBAL, pretrained, **kwargs)


@register_model
def cifar_darts_global_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DARTS-Global at the budget of Table 7, C = 48, L = 9, learned D: 2,405,524 parameters for 100 classes.

    Published: 2.4M, 519M MAC, 84.19 % on CIFAR-100.
    """
    return _create("cifar_darts_global_wide", DARTS_GLOBAL_WIDE, pretrained, **kwargs)


@register_model
def cifar_darts_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The DARTS net of fewer than 10M MAC, C = 3: 38,452 parameters (42,862). Published 39K / 43K; 86.05 / 54.57 %."""
    return _create("cifar_darts_tiny", DARTS_TINY, pretrained, **kwargs)


@register_model
def cifar_darts_tiny_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The DARTS-Global net of fewer than 10M MAC, C = 5, L = 7, D = 1: 33,650 parameters (40,940).

    Published 34K / 41K; 88.44 / 60.68 %. Here the text and the counts agree on D.
    """
    return _create("cifar_darts_tiny_global", DARTS_TINY_GLOBAL, pretrained, **kwargs)
