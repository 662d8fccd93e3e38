"""What all our classifiers share: timm's model interface over a stem, stages, a last norm and a linear head."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import SelectAdaptivePool2d, get_act_layer, get_norm_layer
from timm.models import build_model_with_cfg, register_notrace_module
from timm.models._features import feature_take_indices
from timm.models._manipulate import checkpoint as timm_checkpoint
from torch import Tensor, nn

from pdecnn.layers.blocks import LayerFactory
from pdecnn.layers.global_layer import GlobalLayer
from pdecnn.layers.steps import set_steps

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)
MNIST_MEAN = (0.1307,)
MNIST_STD = (0.3081,)

register_notrace_module(GlobalLayer)  # torch.fx keeps it whole: its checks read shapes


class HasSteps(nn.Module):
    """What every model with Global layers can do besides what timm asks for."""

    def set_steps(self, K: int) -> None:
        """Changes the number of time steps of every Global layer; no parameter depends on it."""
        if set_steps(self, K) == 0:
            raise ValueError(f"set_steps: {type(self).__name__} has no Global layer here, so no steps to set.")


class ConvNet(HasSteps):
    """A convolutional classifier with timm's interface.

    A subclass sets `stem`, `stages` and calls `make_head`. The stages hand on a *state*, which is a feature map here
    and may be more elsewhere (`enter`, `leave`); `stages[i]` gives feature level i.
    """

    def __init__(self, num_classes: int, in_chans: int, drop_rate: float) -> None:
        super().__init__()
        self.num_classes, self.in_chans, self.drop_rate = num_classes, in_chans, drop_rate
        self.grad_checkpointing = False
        self.stem: nn.Module = nn.Identity()
        self.stages: nn.Sequential = nn.Sequential()
        self.norm: nn.Module = nn.Identity()
        self.feature_info: list[dict[str, Any]] = []

    def make_head(self, num_features: int, global_pool: str, dd: dict[str, Any]) -> None:
        """Sets the pooling and the linear classifier on `num_features` channels."""
        self.num_features = self.head_hidden_size = num_features
        self.global_pool: nn.Module = SelectAdaptivePool2d(pool_type=global_pool, flatten=bool(global_pool))
        self.head_drop = nn.Dropout(self.drop_rate)
        self.fc: nn.Module = nn.Linear(num_features, self.num_classes, **dd) if self.num_classes > 0 else nn.Identity()

    def enter(self, x: Tensor) -> Any:
        """The state after the stem."""
        return self.stem(x)

    def leave(self, state: Any) -> Tensor:
        """The feature map of a state."""
        out: Tensor = state
        return out

    def forward_features(self, x: Tensor) -> Tensor:
        """The last feature map, `(N, C, H, W)`."""
        state = self.enter(x)
        for stage in self.stages:
            state = self._run_stage(stage, state)
        out: Tensor = self.norm(self.leave(state))
        return out

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits `(N, num_classes)` of a feature map, or what the classifier would be given."""
        x = self.head_drop(self.global_pool(x))
        out: Tensor = x if pre_logits else self.fc(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Logits `(N, num_classes)` of images `(N, in_chans, H, W)`."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The feature maps of the stages `indices` (timm's meaning), and the last one unless `intermediates_only`."""
        if str(getattr(output_fmt, "value", output_fmt)) != "NCHW":
            raise ValueError(f"forward_intermediates: output_fmt must be 'NCHW', got {output_fmt!r}.")
        take, last = feature_take_indices(len(self.stages), indices)
        stages = list(self.stages)[: last + 1] if stop_early else list(self.stages)
        intermediates = []
        state = self.enter(x)
        for i, stage in enumerate(stages):
            state = self._run_stage(stage, state)
            if i in take:
                feature = self.leave(state)
                intermediates.append(self.norm(feature) if norm and i == len(self.stages) - 1 else feature)
        if intermediates_only:
            return intermediates
        return self.norm(self.leave(state)), intermediates

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops the stages after the last of `indices`, and norm and head if asked; returns the indices."""
        take, last = feature_take_indices(len(self.stages), indices)
        if prune_norm or last < len(self.stages) - 1:
            self.norm = nn.Identity()
        self.stages = self.stages[: last + 1]
        if prune_head:
            self.reset_classifier(0, "")
        return list(take)

    def get_classifier(self) -> nn.Module:
        """The linear classifier."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replaces the classifier (0: none) and, if given, the pooling (`""`: none)."""
        parameter = next(self.parameters())
        dd = {"device": parameter.device, "dtype": parameter.dtype}
        pool = str(getattr(self.global_pool, "pool_type", "")) if global_pool is None else global_pool
        self.num_classes = num_classes
        self.make_head(self.num_features, pool, dd)
        for module in (self.global_pool, self.head_drop, self.fc):
            module.train(self.training)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Regular expressions for layer-wise learning rates."""
        blocks = r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.(\d+)"
        return {"stem": r"^stem", "blocks": [(blocks, None), (r"^norm", (99999,))]}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Whether training recomputes the stages in the backward pass to save memory."""
        self.grad_checkpointing = enable

    def _run_stage(self, stage: nn.Module, state: Any) -> Any:
        if self.grad_checkpointing and torch.is_grad_enabled():
            return timm_checkpoint(stage, state)
        return stage(state)


def conv_norm_act(
    in_channels: int, out_channels: int, act_layer: LayerFactory | None, norm_layer: LayerFactory, dd: dict[str, Any]
) -> nn.Sequential:
    """The 3x3 stem: convolution without bias, norm and, if given, activation, named `conv`, `bn`, `act`."""
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False, **dd),
        "bn": norm_layer(out_channels, **dd),
    }
    if act_layer is not None:
        layers["act"] = act_layer()
    return nn.Sequential(OrderedDict(layers))


def resolve_layers(act_layer: Any, norm_layer: Any) -> tuple[LayerFactory, LayerFactory]:
    """Activation and norm by timm's names, as classes, or ReLU and batch norm for None."""
    return get_act_layer(act_layer or nn.ReLU), get_norm_layer(norm_layer or nn.BatchNorm2d)


def init_fan_out(model: nn.Module, *, fix_groups: bool = False) -> None:
    """Convolution weights ~ N(0, 2 / (k² C_out)): the init of the published CIFAR nets.

    It ignores groups, so that depth-wise weights come out too small by sqrt(C); `fix_groups=True` divides the fan by
    the groups, as the published ImageNet nets do.
    """
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            fan_out = m.out_channels * math.prod(m.kernel_size) // (m.groups if fix_groups else 1)
            nn.init.normal_(m.weight, 0.0, math.sqrt(2.0 / fan_out))


def drop_path_rates(rate: float, count: int) -> list[float]:
    """Rates that rise evenly from 0 to `rate` over `count` blocks."""
    return [rate * i / max(1, count - 1) for i in range(count)]


def cifar_cfg(pool_size: int, **changes: Any) -> dict[str, Any]:
    """timm's default_cfg of a CIFAR net whose last map has side `pool_size`."""
    return {
        "url": "",
        "num_classes": 10,
        "input_size": (3, 32, 32),
        "pool_size": (pool_size, pool_size),
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": CIFAR_MEAN,
        "std": CIFAR_STD,
        "first_conv": "stem.conv",
        "classifier": "fc",
        "license": "apache-2.0",
        **changes,
    }


def mnist_cfg(pool_size: int, **changes: Any) -> dict[str, Any]:
    """timm's default_cfg of an MNIST net whose last map has side `pool_size`."""
    return cifar_cfg(pool_size, input_size=(1, 28, 28), mean=MNIST_MEAN, std=MNIST_STD, **changes)


def imagenet_cfg(**changes: Any) -> dict[str, Any]:
    """timm's default_cfg of an ImageNet net of output stride 32."""
    size = {"num_classes": 1000, "input_size": (3, 224, 224), "pool_size": (7, 7), "crop_pct": 0.875}
    stats = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}
    return {**cifar_cfg(7), **size, **stats, **changes}


def build(
    model_cls: Callable[..., nn.Module], variant: str, levels: Sequence[int] | int, pretrained: bool, **kwargs: Any
) -> nn.Module:
    """timm's builder; `levels` are the feature levels that `features_only` gives by default."""
    out_indices = tuple(range(levels)) if isinstance(levels, int) else tuple(levels)
    model: nn.Module = build_model_with_cfg(
        model_cls, variant, pretrained, feature_cfg={"out_indices": out_indices, "feature_cls": "getter"}, **kwargs
    )
    return model
