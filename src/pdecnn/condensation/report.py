"""`condense`: plan and apply in one call, with a report of what was saved."""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from torch import Tensor, nn

from pdecnn.analysis.cost import CostReport, profile
from pdecnn.condensation.fit import Fitted, fit_layers
from pdecnn.condensation.plan import Plan, plan


@dataclass(frozen=True)
class Report:
    """What condensing did: the plan, the counted costs before and after, and how well the new layers were fitted."""

    plan: Plan
    before: CostReport
    after: CostReport
    fitted: tuple[Fitted, ...] = field(default=())

    @property
    def ratios(self) -> dict[str, float]:
        """How many times smaller: parameters, MACs (exact, and convolutions and matrix products alone), depth."""
        b, a = self.before, self.after
        pairs = {"params": (b.params, a.params), "macs": (b.exact, a.exact), "macs_conv_fc": (b.conv_fc, a.conv_fc)}
        return {name: x / max(y, 1) for name, (x, y) in {**pairs, "depth": (b.depth, a.depth)}.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts."""
        return {
            "plan": self.plan.to_dict(),
            "before": _totals(self.before),
            "after": _totals(self.after),
            "ratios": self.ratios,
            "fitted": [f.to_dict() for f in self.fitted],
        }

    def table(self) -> Table:
        """Before and after, row by row."""
        table = Table(title=f"{self.plan.model}, condensed")
        table.add_column("")
        for header in ("before", "after", "times fewer"):
            table.add_column(header, justify="right")
        names = {
            "params": "parameters",
            "exact": "MACs, exact",
            "conv_fc": "MACs, conv+fc",
            "thop": "MACs, thop",
            "depth": "depth, layers",
            "activation_bytes": "activations, bytes",
        }
        before, after = _totals(self.before), _totals(self.after)
        for key, label in names.items():
            table.add_row(label, f"{before[key]:,}", f"{after[key]:,}", f"{before[key] / max(after[key], 1):.2f}")
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.plan
        for f in self.fitted:
            yield str(f)
        yield self.table()

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=140, color_system=None)
        console.print(self, highlight=False)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text


def _totals(cost: CostReport) -> dict[str, int]:
    names = ("params", "exact", "conv_fc", "thop", "depth", "activation_bytes", "peak_bytes")
    return {name: getattr(cost, name) for name in names}


def condense(
    model: nn.Module,
    example_inputs: Tensor | tuple[Any, ...],
    *,
    data: Iterable[Any] | None = None,
    fit: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[nn.Module, Report]:
    """A shallower copy of a CNN, and a report: runs of repeated blocks become one block and one Global layer.

    Args:
        model: Any CNN; it is not changed.
        example_inputs: An input of the right shape, or the tuple of arguments.
        data: A few batches of real inputs (labels, if any, are not read): each Global layer is then fitted to the
            feature maps of the run it replaces. Without them the layers start untrained.
        fit: Options of `fit_layers`, such as `{"steps": 200}`.
        options: Those of `plan`: keep, K, init, ignore, only, budget and more.

    Example:
        >>> import timm, torch
        >>> small, report = condense(timm.create_model("cifar_resnet32"), torch.zeros(1, 3, 32, 32), K=3)
        >>> report.ratios["params"] > 5
        True
    """
    made = plan(model, example_inputs, **options)
    small = made.apply(model)
    fitted = fit_layers(small, model, made, data, **(fit or {})) if data is not None else ()
    return small, Report(made, profile(model, example_inputs), profile(small, example_inputs), tuple(fitted))
