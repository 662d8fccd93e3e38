"""What a file in 8 bits computes, in Python: integers bit by bit, the rest as torch computes it."""

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pdecnn.deploy.c.fixed import Quant
from pdecnn.deploy.c.int8.ends import to_float, to_int8
from pdecnn.deploy.c.int8.quantise import Quantised
from pdecnn.deploy.c.int8.steps import Fixed
from pdecnn.deploy.c.registry import Step, quant
from pdecnn.shared.modules import tensors_in


class Exact(fx.Interpreter):
    """Runs a graph that `quantise` changed; values in 8 bits are arrays of int64.

    Args:
        module: The graph.
        found: What `quantise` gave for it.
        steps: The steps after their C was written, which know what they read.
    """

    def __init__(self, module: fx.GraphModule, found: Quantised, steps: Sequence[Step]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.found = found
        self.K: int | None = None
        self.steps = {step.node: step for step in steps}
        self.inside = {
            n for step in steps for n in _members(found, step) if n in found.forms or step.node in found.forms
        }
        self.inside -= set(self.steps)

    def answers(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for batches, sample by sample."""
        runs = [tensors_in(self.run(*(x[i : i + 1] for x in inputs))) for i in range(len(inputs[0]))]
        return [torch.cat(outputs) for outputs in zip(*runs, strict=True)]

    def with_steps(self, K: int) -> "Exact":
        """The same with K steps in every solver."""
        other = copy.copy(self)
        other.K = K
        return other

    def run_node(self, n: fx.Node) -> Any:
        """The integer form of a step, an alias in integers, or torch's operator."""
        if n in self.inside:
            return None
        form, step = self.found.forms.get(n), self.steps.get(n)
        if form is not None and step is not None:
            inputs = [self.env[node] for node in step.reads]
            given = [q.numpy() if isinstance(q, Tensor) else q for q in inputs]
            chosen = {"K": self.K} if isinstance(form, Fixed) else {}
            result = form.values(*given, **chosen)
            return result if quant(n) is not None else torch.from_numpy(result).reshape(n.meta["val"].shape)
        return super().run_node(n) if not _of_integers(n) else self._alias(n)

    def _alias(self, n: fx.Node) -> Any:
        """A view of integers."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        args = tuple(torch.from_numpy(q) if not isinstance(q, (Tensor, int, float, list, tuple)) and hasattr(q, "dtype")
                     else q for q in args)  # fmt: skip
        result: Any = n.target(*args, **kwargs)  # type: ignore[operator]
        return result.numpy() if isinstance(result, Tensor) else tuple(q.numpy() for q in result)


def _members(found: Quantised, step: Step) -> list[fx.Node]:
    g = found.groups.get(step.node)
    return [step.main] if g is None else [step.main, *g.members()]


def _of_integers(n: fx.Node) -> bool:
    source: Any = n.args[0] if n.args else None
    return (
        n.op == "call_function"
        and n.target is not operator.getitem
        and n.target not in (to_float, to_int8)
        and isinstance(source, fx.Node)
        and isinstance(source.meta.get("quant"), Quant)
    )
