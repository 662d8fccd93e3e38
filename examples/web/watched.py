"""A net that shows what its first Global layer does: beside the logits it gives h^0, the velocities and h^K."""

import copy
from typing import Any

from torch import Tensor, nn

from pdecnn.layers import GlobalLayer


class _OpenLayer(GlobalLayer):
    """A Global layer that lays its fields on a list. Whoever overrides `solve` is not fused, so it is always called."""

    def solve(self, h: Tensor, x: Tensor, coefficients: Any, K: int | None = None) -> Tensor:
        state = super().solve(h, x, coefficients, K)
        u, v = coefficients[:2]
        self.fields.append((h, u, v, state))
        return state


class Watched(nn.Module):
    """`model` with four more outputs: h^0, u, v and h^K of its first Global layer.

    In the C file K is an argument, and the first layer's input does not depend on it: runs with K = 1, 2, ... give the
    states one after the other.

    Args:
        model: It is left as it is.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval()
        found = [layer for layer in self.model.modules() if isinstance(layer, GlobalLayer)]
        if not found:
            raise ValueError(f"Watched: {type(model).__name__} has no Global layer to watch.")
        self.layer = found[0]
        self.layer.__class__ = _OpenLayer  # the same parameters
        self.layer.fields = []

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Logits, h^0, u, v, h^K."""
        logits = self.model(x)
        return logits, *self.layer.fields.pop()
