"""The options of the Global layers of a model, as one frozen value that a config holds and a user can change."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from pdecnn.layers.global_layer import GlobalLayer

READINGS = ("counts", "text")
INITS = ("identity", "block")


@dataclass(frozen=True)
class GlobalOptions:
    """How every Global layer of a model is built; the names are those of `GlobalLayer`.

    The defaults are the ones of the published CIFAR runs: the norms of the coefficients have eps = C, their
    convolutions a bias (this is inferred from the published parameter counts), and the state before the first is the
    layer's input.

    The paper can be read in two ways, which a model is told by `reading`:

    - `"counts"`, the default and that of the weights that ship: D is learned or 1 as the printed parameters and MACs of
      the net demand, and the state before the first is the input, as in the authors' code. This contradicts the text.
    - `"text"`: u, v and D come from depth-wise convolutions in all nets, but D = 1 in those of a low budget on
      CIFAR-10, and `h^-1 = h^0 = F(I)`. The counts are then others than printed: `pdecnn tables` has both.
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

    def changed(
        self,
        K: int | None,
        global_options: Mapping[str, Any] | None,
        reading: str = "counts",
        low_budget: bool = False,
    ) -> "GlobalOptions":
        """A copy with a model's keywords applied: the reading, then `global_options` by name, and `K` where given."""
        return self.read(reading, low_budget).replace(merge_changes(K, global_options))

    def read(self, reading: str, low_budget: bool = False) -> "GlobalOptions":
        """The options in a reading of the paper; `low_budget` says which D the text gives.

        Example:
            >>> GlobalOptions().read("text", low_budget=True).diffusion, GlobalOptions().read("text").h_prev
            (1.0, 'init')
        """
        if reading not in READINGS:
            raise ValueError(f"reading must be one of {', '.join(map(repr, READINGS))}, got {reading!r}.")
        if reading == "counts":
            return self
        diffusion = 1.0 if low_budget else "depthwise"
        return dataclasses.replace(self, velocity="depthwise", diffusion=diffusion, h_prev="init")

    def build(self, channels: int, init: nn.Module | None = None, drop_path: float = 0.0, **kwargs: Any) -> GlobalLayer:
        """A Global layer with these options; `drop_path` counts only beside a residual."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        drop_path = drop_path if self.residual else 0.0
        return GlobalLayer(channels, init=init, drop_path=drop_path, **{**options, **kwargs})


def merge_changes(K: int | None, global_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The changes that a model's keywords `K` and `global_options` ask for."""
    return {**(global_options or {}), **({} if K is None else {"K": K})}


def is_block(model: str, init: str | None, default: bool) -> bool:
    """Whether the first guess F of a model's Global layers is a block; a ValueError names an `init` that is none.

    Example:
        >>> is_block("CifarResNet", "block", False), is_block("CifarResNet", None, True)
        (True, True)
    """
    if init not in (None, *INITS):
        raise ValueError(f"{model}: init must be {' or '.join(map(repr, INITS))}, got {init!r}.")
    return default if init is None else init == "block"


def check_sizes(model: str, **sizes: int | None) -> None:
    """A ValueError for a size that is given and below 1."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{model}: {name} must be at least 1, got {size}.")


PUBLISHED = GlobalOptions()
