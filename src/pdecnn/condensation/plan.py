"""Plan what to condense: find the runs, weigh them, write the decision down as plain data."""

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from torch import nn

from pdecnn.condensation.apply import apply_runs
from pdecnn.condensation.checkpoint import CONFIG, describe
from pdecnn.condensation.dense import find_all
from pdecnn.condensation.filters import Given, as_filters, inner_asked_for, refusal
from pdecnn.condensation.inner import Inner, cut_inner, find_inner
from pdecnn.condensation.match import check_model, count_kernels
from pdecnn.condensation.propose import (
    ANY,
    ROUNDS,
    BudgetError,
    choose,
    is_of_the_table,
    layer_cost,
    measure_ms,
    module_costs,
    parse_budget,
    predicted,
    timed,
    with_costs,
)
from pdecnn.condensation.record import Record, record
from pdecnn.condensation.replacements import NOTHING as NONE
from pdecnn.condensation.replacements import PAPER, PDE, STEPS, check_replacement, chosen
from pdecnn.condensation.site import INITS, NOTHING, STRICT, Cost, Run, Skipped, from_plain
from pdecnn.condensation.trial import try_runs
from pdecnn.condensation.width import check_width, narrow
from pdecnn.models.described import tell_timm
from pdecnn.reference.advection_diffusion import MAX_STEPS
from pdecnn.shared.files import write_atomic
from pdecnn.shared.modules import tensors_in
from pdecnn.shared.progress import ProgressCallback, begin
from pdecnn.shared.reading import MB, FileError, check_tree, read_object
from pdecnn.shared.tables import make_table, short, to_html
from pdecnn.shared.trees import arguments

MAX_PLAN = 16 * MB
FORMAT = "pdecnn-plan/1"


@dataclass(frozen=True)
class Plan:
    """Which runs of a model are condensed, and how; plain data that can be edited, saved and replayed.

    Attributes:
        model: The name of the model's class.
        input_shapes: The shapes it was planned for.
        runs: What is condensed; `edit` and `without` change it.
        skipped: The places that were left alone, with the reasons.
        before: The cost of the whole model.
        base: How to build a fresh model, if it comes from a registry.
        width: The share of its channels that every layer keeps; the runs are those of the narrower model.
        inner: Where fewer of the channels between two layers stay, and how many; the runs are those of that model.
        narrowed: The cost of the narrower model; None where all channels stay.
    """

    __pydantic_config__ = STRICT

    model: str
    input_shapes: tuple[tuple[int, ...], ...]
    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...] = ()
    before: Cost = NOTHING
    base: dict[str, Any] | None = None
    width: float = 1.0
    inner: tuple[Inner, ...] = ()
    narrowed: Cost | None = None

    @property
    def whole(self) -> Cost:
        """The cost of the model whose runs these are."""
        return self.before if self.narrowed is None else self.narrowed

    @property
    def after(self) -> Cost:
        """The cost to expect after condensing; what readers of dense blocks save comes on top."""
        return predicted(self.whole, self.runs)

    def narrow(self, model: nn.Module) -> nn.Module:
        """The model whose runs these are: `model` itself, or a copy with the plan's `width` and `inner` channels."""
        model = self.prune(model)
        return cut_inner(model, self.inner) if self.inner else model

    def prune(self, model: nn.Module) -> nn.Module:
        """`model` itself, or a copy that has the plan's `width`."""
        if self.width == 1:
            return model
        like = next(model.parameters())
        inputs = (torch.zeros(shape, device=like.device, dtype=like.dtype) for shape in self.input_shapes)
        return narrow(model, tuple(inputs), self.width)

    def apply(self, model: nn.Module) -> nn.Module:
        """A condensed copy of `model`, which is not touched; kept blocks keep their weights.

        A model that the plan was not made for is refused.
        """
        model = self.narrow(model)
        check_model(model, self.runs, self.input_shapes, self.base)
        small = apply_runs(model, self.runs)
        data = self.to_dict()
        config = {"builder": "condensed", "base": self.base, "plan": data}
        setattr(small, CONFIG, config)
        tell_timm(small, config)
        return small

    def edit(self, path: str, **changes: Any) -> "Plan":
        """The plan with changes to the run at `path`, such as `plan.edit("layer1.0-4", keep=2, K=3)`."""
        run = self._run(path)
        other = changes.pop("replacement", run.replacement)
        check_replacement(other, "Plan.edit")
        new = dataclasses.replace(chosen(run, other), **changes).check()
        if is_of_the_table(run):
            ms = run.layer_cost.ms if other == run.replacement else None
            new = dataclasses.replace(new, layer_cost=dataclasses.replace(layer_cost(new), ms=ms))
        return dataclasses.replace(self, runs=tuple(new if r is run else r for r in self.runs))

    def without(self, path: str) -> "Plan":
        """The plan without the run at `path`."""
        run = self._run(path)
        skipped = (*self.skipped, Skipped(run.path, "taken out of the plan"))
        return dataclasses.replace(self, runs=tuple(r for r in self.runs if r is not run), skipped=skipped)

    def _run(self, path: str) -> Run:
        found = [r for r in self.runs if r.path == path] or [r for r in self.runs if r.parent == path]
        if len(found) > 1:
            raise ValueError(f"Plan: {path!r} holds {len(found)} runs; name one: {', '.join(r.path for r in found)}.")
        if not found:
            raise ValueError(f"Plan: no run at {path!r}; there are {', '.join(r.path for r in self.runs) or 'none'}.")
        return found[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers."""
        return json.loads(json.dumps({"format": FORMAT, **dataclasses.asdict(self)}))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """The inverse of `to_dict`."""
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            got = values.get("format") if isinstance(values, Mapping) else values
            raise FileError(f"Plan: expected format {FORMAT!r}, got {got!r:.80}.")
        made = from_plain(cls, {key: value for key, value in values.items() if key != "format"}, "Plan: it")
        for run in made.runs:
            run.check()
        try:
            check_width(made.width, "Plan")
            for one in made.inner:
                one.check()
        except ValueError as error:
            raise FileError(str(error)) from error
        return made

    def save(self, path: str | Path) -> Path:
        """Writes the plan as JSON."""
        check_tree(self.to_dict(), "Plan.save")
        write_atomic(Path(path), json.dumps(self.to_dict(), indent=2) + "\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Reads what `save` wrote; a FileError says what is wrong with the file."""
        try:
            return cls.from_dict(read_object(Path(path), MAX_PLAN))
        except FileError as error:
            raise FileError(f"Plan.load: {'' if str(path) in str(error) else f'{path}: '}{error}") from error

    def table(self) -> Table:
        """One row per run."""
        shapes = ", ".join("x".join(map(str, s)) for s in self.input_shapes)
        table = make_table(
            f"Plan for {self.model} on {shapes}", ("run", "block", "shape", "blocks"), ("params", "MACs")
        )
        for run in self.runs:
            b, a = run.before, run.after
            shape = "x".join(map(str, run.shape))
            change = (_change(b.params, a.params), _change(b.macs, a.macs))
            table.add_row(run.path, run.block, shape, f"{len(run.units)}{_becomes(run)}", *change)
        b, a = self.before, self.after
        narrower = ", ".join(self.narrower())
        table.add_row("(all)", "", "", narrower, _change(b.params, a.params), _change(b.macs, a.macs), style="bold")
        return table

    def narrower(self) -> list[str]:
        """What is known of the channels that stay, in words."""
        words = [] if self.width == 1 else [f"width {self.width:g}"]
        if self.inner:
            stay, all_of_them = (sum(getattr(one, name) for one in self.inner) for name in ("keep", "channels"))
            words.append(f"inner {stay / all_of_them:.2g}")
        return words

    def _fewer(self) -> str:
        return "Inner channels: " + ", ".join(f"{i.last} {i.keep} of {i.channels}" for i in self.inner)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()
        if self.inner:
            yield escape(self._fewer())
        if self.skipped:
            yield f"Left alone ({len(self.skipped)}):"
            yield escape("\n".join(f"  {s.path}: {s.reason}" for s in self.skipped))

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape_html(s.path)}: {escape_html(s.reason)}</li>" for s in self.skipped)
        inner = f"<p>{escape_html(self._fewer())}</p>" if self.inner else ""
        return to_html(self.table()) + inner + (f"<p>Left alone:</p><ul>{lines}</ul>" if lines else "")

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=140, color_system=None)
        console.print(self, highlight=False)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text


def _becomes(run: Run) -> str:
    if not run.condenses:
        return ", unchanged"
    if run.replacement == NONE:
        return f" -> {run.keep}"
    steps = f" K={run.K}" if run.replacement in (PAPER, PDE) else ""
    layer = ("Global" if run.replacement == PAPER else run.replacement) + steps
    if run.is_dense:
        return f" -> {run.keep}" + (f", {layer} after {run.transition}" if run.transition else "")
    return f" -> {run.keep} + {layer}" + (" of a block" if run.init == "block" else "")


def _change(before: int, after: int) -> str:
    return f"{short(before)} -> {short(after)}" if before != after else short(before)


class NoRunsError(ValueError):
    """No blocks of a model repeat, or all that do are left alone; `plan` says which."""

    def __init__(self, plan: Plan, convolutions: int) -> None:
        reasons = "; ".join(f"{s.path}: {s.reason}" for s in plan.skipped[:4])
        looked = f" Looked at and left alone: {reasons}." if reasons else ""
        super().__init__(
            f"plan: no run to condense in {plan.model}: {convolutions} convolutions, none of them in blocks that "
            f"repeat at one resolution.{looked} Lower keep, loosen ignore and only, leave out channels by inner=0.5, "
            "or tell what replaces your blocks with @register_block."
        )
        self.plan = plan


def plan(
    model: nn.Module,
    example_inputs: Any,
    *,
    keep: int = 1,
    replacement: str | None = None,
    K: int | None = None,
    width: float = 1.0,
    inner: float = 1.0,
    init: str = "identity",
    ignore: Given | Sequence[Given] = (),
    only: Given | Sequence[Given] = (),
    budget: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> Plan:
    """Finds the runs of repeated blocks of a CNN and plans one cheap layer for each.

    Args:
        model: Any CNN; it is run once and not changed.
        example_inputs: An input of the right shape; batch 1 is enough. Also the tuple of arguments, a dict of them by
            name, or a list of images `(C, H, W)` for a detector.
        keep: Blocks that stay in each run, counted from the first.
        replacement: What comes in the place of the other blocks: `"pde"` (K steps of transport and diffusion, and a
            reaction among channels), `"paper"` (the published Global layer), `"separable"` or `"depthwise"` (plain
            convolutions), `"nothing"`, or a name of `register_replacement`. By default `"pde"`; `"paper"` with `init`
            or `options`.
        K: Time steps of `"pde"`, 3 by default, and of `"paper"`, 5 by default.
        width: The share of channels that every layer keeps: those of the largest norm, by Torch-Pruning (extra
            `prune`).
        inner: The share that stays of channels which one layer gives and only one other reads, such as the hidden ones
            of residual blocks. `fit_layers` chooses them, and solves for the weights of what reads them. Needs
            Torch-Pruning, which finds them.
        init: First guess of the paper's layers: `"identity"`, or `"block"`: one more block, with its weights.
        ignore: Runs that are left alone: paths, regular expressions for whole paths, modules, or classes of blocks.
        only: If given, the only runs that are condensed, named likewise.
        budget: Upper bounds, as numbers or such as `"50%"`, for `params`, `macs` and `latency_ms` (measured): runs
            then keep as many blocks as the bounds allow.
        options: Changes to the `GlobalOptions` of the paper's layers; with `replacement="pde"`, to its `PdeOptions`:
            `reaction`, `share`, `implicit`, `maps`.
        base: How to build the model afresh, `{"name": ..., "kwargs": {...}}` for one of timm's registry; found by
            itself for models of timm and torchvision.
        progress: Called as `progress(text, done, total)` with what is being done, how many of its parts are done, and
            how many there are; `shared.progress` shows it.

    Example:
        >>> import timm, torch
        >>> made = plan(timm.create_model("cifar_resnet32"), torch.zeros(1, 3, 32, 32))
        >>> [(run.path, len(run.units), run.keep) for run in made.runs]
        [('stages.0.0-4', 5, 1), ('stages.1.0-4', 5, 1), ('stages.2.0-4', 5, 1)]
        >>> made.before.params, made.after.params
        (466906, 84314)
    """
    replacement = replacement or (PAPER if options or init == "block" else PDE)
    check_replacement(replacement, "plan")
    K = STEPS.get(replacement, 1) if K is None else K
    _check_arguments(model, keep, K, init)
    check_width(width, "plan")
    check_width(inner, "plan", "inner")
    parse_budget(budget or {}, ANY)  # before anything is run
    inputs = arguments(model, example_inputs)
    wide, model = model, narrow(model, inputs, width) if width != 1 else model
    inside = find_inner(model, inputs, inner) if inner != 1 else ()
    inside = inner_asked_for(inside, model, inputs, ignore, only)
    if inner != 1 and not inside:
        raise ValueError(
            f"plan: inner={inner:g}, but {type(model).__name__} has no channels that one layer gives and one other "
            "alone reads, or too few to leave any out, or ignore and only leave them alone. Plan without inner=."
        )
    model = cut_inner(model, inside) if inside else model
    done = begin(progress, "running the model once", 1)
    notes = _try_record(model, inputs)
    done()
    found, skipped = find_all(model, notes)
    modules = dict(model.named_modules())
    ignore, only = (as_filters(given, found, modules) for given in (ignore, only))
    runs: list[Run] = []
    for run in found:
        kernels = count_kernels(modules[run.parent])
        changes: dict[str, Any] = {"replacement": replacement, "K": K, "init": init, "options": dict(options or {})}
        run = dataclasses.replace(run, **changes, kernels=kernels).check()
        run = run if run.is_dense else dataclasses.replace(run, keep=min(keep, len(run.units)))
        reason = refusal(run, keep, modules, ignore, only)
        if reason:
            skipped.append(Skipped(run.path, reason))
        else:
            runs.append(run)
    runs, total = _counted(model, inputs, runs, progress)
    runs = _that_save(runs, skipped)
    runs = _that_work(model, inputs, runs, notes, skipped, progress)
    description = dict(base) if base is not None else describe(wide)
    shapes = tuple(tuple(x.shape) for x in tensors_in(inputs))
    result = Plan(type(model).__name__, shapes, tuple(runs), tuple(skipped), total, description)
    if not runs and not inside:
        raise NoRunsError(result, len(notes.convolutions))
    if wide is not model:
        total, before = (module_costs(m, inputs, [])[""] for m in (model, wide))
        result = dataclasses.replace(result, width=width, inner=inside, narrowed=total, before=before)
    return _within(result, wide, inputs, budget, progress) if budget else result


def _check_arguments(model: nn.Module, keep: int, K: int, init: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"plan: model must be a torch.nn.Module, got {type(model).__name__}.")
    for name, value in (("keep", keep), ("K", K)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"plan: {name} must be an int of at least 1, got {name}={value!r}.")
    if K > MAX_STEPS:
        raise ValueError(f"plan: K (number of time steps) must be at most {MAX_STEPS:,}, got K={K}.")
    if init not in INITS:
        raise ValueError(f"plan: init must be one of {', '.join(map(repr, INITS))}, got {init!r}.")


def _try_record(model: nn.Module, inputs: tuple[Any, ...]) -> Record:
    tensors = tensors_in(inputs)
    if not tensors:
        raise TypeError(
            "plan: example_inputs must be a Tensor or a tuple with one, such as torch.zeros(1, 3, 224, 224); or a list "
            "or dict of them."
        )
    device = next((p.device for p in model.parameters()), tensors[0].device)
    if tensors[0].device != device:
        raise ValueError(
            f"plan: the model is on {device} but example_inputs on {tensors[0].device}. "
            f"Use example_inputs.to({str(device)!r})."
        )
    try:
        return record(model, inputs)
    except Exception as error:
        cfg = getattr(model, "pretrained_cfg", None)
        size = cfg.get("input_size") if isinstance(cfg, dict) else None
        hint = f" It was made for images of shape {tuple(size)}." if size else ""
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise ValueError(
            f"plan: {type(model).__name__} does not run on example_inputs of shape {shapes}: {error}.{hint}"
        ) from error


def _counted(
    model: nn.Module, inputs: tuple[Any, ...], runs: list[Run], progress: ProgressCallback | None
) -> tuple[list[Run], Cost]:
    """The runs with what their blocks and their new layers cost, and the cost of the model."""
    done = begin(progress, "counting what each run costs", len(runs) + 1)
    costs = module_costs(model, inputs, [p for run in runs for p in run.members()])
    done()
    counted = []
    for run in runs:
        counted.append(with_costs(run, costs, model))
        done()
    return counted, costs[""]


def _that_save(runs: list[Run], skipped: list[Skipped]) -> list[Run]:
    good = []
    for run in runs:
        if run.after.params < run.before.params and run.after.macs < run.before.macs:
            good.append(run)
            continue
        what = "the new layer" if is_of_the_table(run) else "what is registered for them"
        skipped.append(Skipped(run.path, f"{what} would cost as much as the blocks it replaces"))
    return good


def _that_work(
    model: nn.Module,
    inputs: tuple[Any, ...],
    runs: list[Run],
    notes: Record,
    skipped: list[Skipped],
    progress: ProgressCallback | None,
) -> list[Run]:
    """The runs whose replacement works, with the size of the maps they meet; tried together and, if need be, alone."""
    if not runs:
        return runs
    done = begin(progress, "trying all replacements together", 1)
    good, failure = try_runs(model, inputs, runs, notes)
    done()
    if not failure:
        return good
    done = begin(progress, "trying each replacement", len(runs))
    good = []
    for run in runs:
        tried, failure = try_runs(model, inputs, [*good, run], notes)
        if failure:
            skipped.append(Skipped(run.path, f"the model does not run without these blocks: {failure}"))
        else:
            good = tried
        done()
    return good


def _within(
    made: Plan, model: nn.Module, inputs: tuple[Any, ...], budget: Mapping[str, Any], progress: ProgressCallback | None
) -> Plan:
    """The plan with as many blocks as the budget allows; latency is measured on the model that comes out."""
    total, before, runs = made.whole, made.before, list(made.runs)
    if "latency_ms" in budget:
        small = made.narrow(model)
        runs = timed(runs, small, inputs, progress=progress)
        done = begin(progress, "timing the model", ROUNDS)
        before = dataclasses.replace(before, ms=measure_ms(model, inputs, done=done))
        total = before if small is model else dataclasses.replace(total, ms=measure_ms(small, inputs))
    limits = parse_budget(budget, before)
    asked = limits.get("ms")
    for attempt in range(6):
        least = attempt > 0 and limits["ms"] < (predicted(total, runs).ms or 0.0)  # no plan promises that little
        within = runs if least else choose(runs, total, limits)
        narrowed = None if made.narrowed is None else total
        chosen = dataclasses.replace(made, before=before, narrowed=narrowed, runs=tuple(within))
        if asked is None:
            return chosen
        done = begin(progress, f"timing plan {attempt + 1}, which may take {asked:.2f} ms", ROUNDS)
        ms = measure_ms(chosen.apply(model), inputs, done=done)
        if ms <= asked:
            return chosen
        if least:
            break
        limits["ms"] *= 0.95 * asked / ms
    raise BudgetError(
        f"plan: the budget latency_ms <= {asked:g} cannot be met: {ms:.2f} ms were measured at best, "
        f"{before.ms:.2f} ms before. Raise the budget, lower keep or K, or measure on an idle machine."
    )
