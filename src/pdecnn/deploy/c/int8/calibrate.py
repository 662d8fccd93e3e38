"""The ranges of all values of a graph, found on samples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from pdecnn.deploy.c.fixed import Quant

BINS = 2048


class Ranges(fx.Interpreter):
    """Runs a graph on samples: first for the least and the largest value of each node, then for how they lie between.

    Args:
        module: From `program`.
        seen: Called with each node and the arrays that it read and gave.
    """

    def __init__(self, module: fx.GraphModule, seen: Callable[[fx.Node, tuple[Any, ...], Any], None]) -> None:
        super().__init__(module)
        self.seen = seen
        self.ends: dict[fx.Node, tuple[float, float]] = {}
        self.counts: dict[fx.Node, Any] = {}
        self._counting = False

    def fill(self, samples: Sequence[Sequence[Tensor]], done: Callable[[], object]) -> None:
        """Two runs of each sample."""
        with torch.no_grad():
            for self._counting in (False, True):
                for sample in samples:
                    self.run(*sample)
                    done()

    def run_node(self, n: fx.Node) -> Any:
        """Keeps what is needed of the value."""
        value = super().run_node(n)
        if isinstance(value, Tensor) and value.is_floating_point() and n.op != "get_attr" and value.numel():
            low, high = (float(q) for q in torch.aminmax(value))
            if not self._counting:
                a, b = self.ends.get(n, (0.0, 0.0))
                self.ends[n] = min(a, low), max(b, high)
            elif self.ends[n][1] > self.ends[n][0]:
                counts = torch.histc(value.float(), BINS, *self.ends[n]).double().numpy()
                self.counts[n] = self.counts.get(n, 0) + counts
        if self._counting and n.op == "call_function":
            self.seen(n, self.fetch_args_kwargs_from_env(n)[0], value)
        return value

    def quant(self, node: fx.Node) -> Quant:
        """The scale and zero of a node: of all ranges inside the one that was seen, that of the least error."""
        low, high = self.ends[node]
        counts = self.counts.get(node)
        if counts is None:
            return Quant.between(low, high)
        centres = low + (np.arange(BINS) + 0.5) * (high - low) / BINS
        tried = [Quant.between(low * part, high * part) for part in np.linspace(0.4, 1.0, 25)]
        errors = [float((counts * (q.real(q.of(centres)) - centres) ** 2).sum()) for q in tried]
        return tried[int(np.argmin(errors))]
