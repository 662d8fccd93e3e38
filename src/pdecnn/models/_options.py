"""The options of the Global layers of a model, as one frozen value that a config holds and a user can change."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from pdecnn.layers.global_layer import GlobalLayer


@dataclass(frozen=True)
class GlobalOptions:
    """How every Global layer of a model is built; the names are those of `GlobalLayer`.

    The defaults are the ones of the published CIFAR runs: the norms of the coefficients have eps = C, their
    convolutions a bias (this is inferred from the published parameter counts), and the state before the first is the
    layer's input.
    """

    K: int = 5
    dt: float = 0.2
    dx: float = 1.0
    dy: float = 1.0
    kernel_size: int = 3
    velocity: str | float | tuple[float, float] = "depthwise"
    diffusion: str | float | tuple[float, float] = "depthwise"
    source: str = "identity"
    h_prev: str = "input"
    residual: bool = False
    boundary: str = "periodic"
    flow_sign: int = 1
    coef_bias: bool | tuple[bool, bool] = True
    coef_bn_eps: float | str = "channels"
    velocity_bound: bool | float = False
    upwind: bool = False
    dilation: int = 1

    def replace(self, changes: Mapping[str, Any]) -> "GlobalOptions":
        """A copy with `changes`, or a ValueError that lists the options there are.

        Example:
            >>> GlobalOptions().replace({"K": 3}).K
            3
        """
        names = [field.name for field in dataclasses.fields(self)]
        unknown = sorted(set(changes) - set(names))
        if unknown:
            raise ValueError(f"global_options: no option {unknown[0]!r}; there are {', '.join(names)}.")
        return dataclasses.replace(self, **changes)

    def changed(self, K: int | None, global_options: Mapping[str, Any] | None) -> "GlobalOptions":
        """A copy with a model's two keywords applied: `global_options` by name, and `K` where given."""
        return self.replace(merge_changes(K, global_options))

    def build(self, channels: int, init: nn.Module | None = None, drop_path: float = 0.0, **kwargs: Any) -> GlobalLayer:
        """A Global layer with these options; `drop_path` counts only beside a residual."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        drop_path = drop_path if self.residual else 0.0
        return GlobalLayer(channels, init=init, drop_path=drop_path, **{**options, **kwargs})


def merge_changes(K: int | None, global_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The changes that a model's keywords `K` and `global_options` ask for."""
    return {**(global_options or {}), **({} if K is None else {"K": K})}


PUBLISHED = GlobalOptions()
