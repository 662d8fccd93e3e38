"""`condense`: plan and apply, or the whole job, in one call, with a report of what was saved."""

import io
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from torch import nn

from pdecnn.analysis.cost import CostReport, profile
from pdecnn.condensation.distill import LR
from pdecnn.condensation.fit import Fitted
from pdecnn.condensation.job import JobResult, fit_shown, run_job
from pdecnn.condensation.plan import Plan, plan
from pdecnn.condensation.worse import what_got_worse
from pdecnn.shared.progress import choose_progress
from pdecnn.shared.tables import make_table
from pdecnn.training.batches import as_loaders
from pdecnn.training.imitation import OwnLoss
from pdecnn.training.progress import Reporter, choose_reporter


@dataclass(frozen=True)
class Report:
    """What condensing did: the plan, the counted costs before and after, and how well the new layers were fitted."""

    plan: Plan
    before: CostReport
    after: CostReport
    fitted: tuple[Fitted, ...] = field(default=())
    job: JobResult | None = None

    @property
    def accuracies(self) -> dict[str, float]:
        """In per cent, by stage, if there were images to measure it on."""
        return {} if self.job is None else self.job.accuracies

    @property
    def speedups(self) -> dict[str, float]:
        """How many times faster for a batch of 1 and of 64, if the whole job was done."""
        return {} if self.job is None else self.job.speedups

    @property
    def worse(self) -> list[str]:
        """What did not get better, and why."""
        if self.job is None:
            return what_got_worse(self.before, self.after, self.plan)
        return self.job.worse

    def to_html(self) -> str:
        """A page with tables and figures, as report.html of a job; the tables alone if only planned and applied."""
        text: str = _pages().page(self.job or self)
        return text

    def _repr_html_(self) -> str:
        text: str = _pages().fragment(self.job or self)
        return text

    @property
    def ratios(self) -> dict[str, float]:
        """How many times smaller parameters, MACs (exact, and convolutions and matrix products alone) and depth are."""
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
            "worse": self.worse,
            **({} if self.job is None else {"job": self.job.to_dict()}),
        }

    def table(self) -> Table:
        """Before and after, row by row."""
        table = make_table(f"{self.plan.model}, condensed", ("",), ("before", "after", "times fewer"))
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
        if self.job is not None:
            yield self.job.table()
        yield from worse_lines(self.worse)

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=140, color_system=None)
        console.print(self, highlight=False)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text


def worse_lines(worse: list[str]) -> list[str]:
    """The lines with their heading, none if there are none."""
    return ["What did not get better:", *(f"  {line}" for line in worse)] if worse else []


def _pages() -> Any:
    return import_module("pdecnn.viz.report")  # that room stands on this one


def _totals(cost: CostReport) -> dict[str, int]:
    names = ("params", "exact", "conv_fc", "thop", "depth", "activation_bytes", "peak_bytes")
    return {name: getattr(cost, name) for name in names}


def condense(
    model: nn.Module,
    example_inputs: Any,
    *,
    data: Iterable[Any] | None = None,
    fit: Mapping[str, Any] | None = None,
    train: Any = None,
    val: Any = None,
    loss: OwnLoss | None = None,
    metric: Any = None,
    epochs: int = 10,
    batch_size: int = 64,
    lr: float = LR,
    seed: int = 0,
    distill: Mapping[str, Any] | None = None,
    runtime: str | None = None,
    latency_table: str | Path | None = None,
    null: bool = False,
    output: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    **options: Any,
) -> tuple[nn.Module, Report]:
    """A shallower copy of a CNN, and a report: runs of repeated blocks become one block and one cheap layer.

    With `train` it does the whole job of `pdecnn condense`: plan, fit without labels, distil, compare.

    Args:
        model: Any CNN; it is not changed.
        example_inputs: An input of the right shape; or the arguments as `plan` takes them.
        data: A few batches of real inputs (labels, if any, are not read): each Global layer is then fitted to the
            feature maps of the run it replaces. Without them the layers start untrained.
        fit: Options of `fit_layers`, such as `{"steps": 200}`.
        train: Images to distil on: a DataLoader, a torch Dataset, or an iterable of batches, with labels or without.
        val: The like, to measure accuracy on.
        loss: Your loss, `loss(answer, y)`, as in `distill`.
        metric: Your metric, `metric(answer, y)`, as in `distill`: it is in the report in place of accuracy.
        epochs: Passes over `train`.
        batch_size: Images per step, where `train` is not of batches.
        lr: Learning rate of the blocks that stay; that of new layers is ten times larger.
        seed: Seed of the new layers, of the order and of the augmentation.
        distill: Further options of `distill`, such as `{"temperature": 2.0}`.
        runtime: Where the milliseconds of a `budget` count: `eager`, `optimized`, `compile`, `onnx`, `onnx-fused`,
            `onnx-int8` or `c`; by default `optimized`, or that of the `latency_table`. With `train` a
            budget is searched: the best of all replacements and numbers of blocks.
        latency_table: Milliseconds measured on another device, by `pdecnn bench --sites`.
        null: Also distil the network without its new layers, to know what they are worth.
        output: Folder for plan, checkpoints, ONNX file and report.html; without it they are not kept.
        resume: Continue the job in `output`.
        quiet: Show no progress.
        options: Those of `plan`: keep, replacement, K, init, ignore, only, budget and more.

    Example:
        >>> import timm, torch
        >>> net = timm.create_model("cifar_resnet32")
        >>> small, report = condense(net, torch.zeros(1, 3, 32, 32), K=3, quiet=True)
        >>> report.ratios["params"] > 5
        True
    """
    if train is None:
        given = {
            "val": val is not None,
            "loss": loss is not None,
            "metric": metric is not None,
            "output": output is not None,
            "resume": resume,
            "null": null,
            "runtime": runtime is not None,
            "latency_table": latency_table is not None,
            "distill": bool(distill),
        }
        for name in (name for name, is_given in given.items() if is_given):
            raise ValueError(f"condense: {name}= is for the whole job; give the images to distil on as train= too.")
    with nullcontext(None) if quiet else choose_progress() as shown:
        options = {"progress": shown, **options}
        if train is None:
            made = plan(model, example_inputs, **options)
            small = made.apply(model)
            fitted = fit_shown(small, model, made, data, options["progress"], **(fit or {})) if data is not None else ()
            return small, Report(made, profile(model, example_inputs), profile(small, example_inputs), tuple(fitted))
        with nullcontext(output) if output is not None else TemporaryDirectory() as folder:
            small, result = run_job(
                folder,
                model,
                as_loaders(train, val, batch_size=batch_size, seed=seed),
                image=example_inputs,
                loss=loss,
                metric=metric,
                epochs=epochs,
                lr=lr,
                seed=seed,
                plan_options={key: value for key, value in options.items() if key != "progress"},
                fit_options=fit,
                distill_options=distill,
                runtime=runtime,
                latency_table=latency_table,
                null=null,
                resume=resume,
                progress=options["progress"],
                reporter=Reporter if quiet else choose_reporter,
            )
    costs = profile(model, example_inputs), profile(small, example_inputs)
    return small, Report(result.plan, *costs, result.fitted, result)
