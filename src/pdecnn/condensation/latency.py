"""What each choice at each site costs on the clock of one runtime: a table that can be measured on another device.

Every choice is timed inside the whole network, the others being as they were, since runtimes fuse what stands side by
side. All networks take turns in each round.
"""

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from pdecnn.analysis.latency import measure, threads
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.replacements import NOTHING, STEPS, choice_of, choices_at, chosen
from pdecnn.condensation.site import STRICT, Cost, Run, from_plain
from pdecnn.deploy.bench import make_runner
from pdecnn.shared.environment import cpu_name
from pdecnn.shared.files import write_atomic
from pdecnn.shared.progress import ProgressCallback, begin
from pdecnn.shared.reading import MB, FileError, read_object
from pdecnn.shared.tables import make_table

FORMAT = "pdecnn-latency/1"
ROUNDS, SECONDS = 25, 30.0


@dataclass(frozen=True)
class Site:
    """Milliseconds at one run: of each of its blocks on average, and of each replacement."""

    __pydantic_config__ = STRICT

    block: float
    layers: dict[str, float]


@dataclass(frozen=True)
class LatencyTable:
    """Milliseconds of a model in one runtime, and of what may change at each run of its plan."""

    __pydantic_config__ = STRICT

    runtime: str
    model: str
    input_shapes: tuple[tuple[int, ...], ...]
    threads: int
    cpu: str
    ms: float
    sites: dict[str, Site]

    @property
    def where(self) -> str:
        """The runtime, and on how many threads."""
        return f"{self.runtime}, {'one thread' if self.threads == 1 else f'{self.threads} threads'}"

    def of(self, run: Run) -> Site:
        """The entry of a run."""
        if run.path not in self.sites:
            raise ValueError(
                f"latency table: no run {run.path!r}; there are {', '.join(self.sites)}. Measure a new one with pdecnn "
                "bench --sites plan.json."
            )
        return self.sites[run.path]

    def check(self, plan: Plan, runtime: str | None = None) -> None:
        """A ValueError unless it is of the model and inputs of a plan and, if one is named, of a runtime."""
        shapes = [" and ".join("x".join(map(str, shape)) for shape in t.input_shapes) for t in (self, plan)]
        pairs = {
            "model": (self.model, plan.model),
            "inputs": shapes,
            "runtime": (self.runtime, runtime or self.runtime),
        }
        wrong = [f"{what} {mine}, not {asked}" for what, (mine, asked) in pairs.items() if mine != asked]
        if wrong:
            raise ValueError(
                f"latency table: it was measured with {'; '.join(wrong)}. Take the table of this job, or measure one: "
                f"pdecnn bench MODEL --sites plan.json --runtime {runtime or self.runtime}."
            )

    def with_ms(self, run: Run) -> Run:
        """The run with these milliseconds for its blocks and its new layer."""
        site = self.of(run)
        choice = choice_of(run)
        if choice not in site.layers:
            steps = f" --K {run.K}" if run.replacement in STEPS else ""
            raise ValueError(
                f"latency table: {run.path} was not measured with the replacement {choice!r}; there are "
                f"{', '.join(site.layers)}. Measure it: pdecnn condense MODEL --replacement {run.replacement}{steps} "
                "--output plans, then pdecnn bench MODEL --sites plans/plan.json."
            )
        blocks = tuple(dataclasses.replace(cost, ms=site.block) for cost in run.costs)
        return dataclasses.replace(
            run, costs=blocks, layer_cost=dataclasses.replace(run.layer_cost, ms=site.layers[choice])
        )

    def total(self, cost: Cost) -> Cost:
        """The cost of the whole model with its milliseconds."""
        return dataclasses.replace(cost, ms=self.ms)

    def scaled(self, ms: float) -> "LatencyTable":
        """The table of a narrower model that takes `ms` milliseconds, as if every part had become as much faster."""
        factor = ms / self.ms
        sites = {
            path: Site(site.block * factor, {name: t * factor for name, t in site.layers.items()})
            for path, site in self.sites.items()
        }
        return dataclasses.replace(self, ms=ms, sites=sites)

    def anchored(self, runs: Sequence[Run], ms: float) -> "LatencyTable":
        """The table whose blocks are as slow as they must be for the model without those removed to take `ms`.

        A block by itself saves a little more or less than among others that are gone, since runtimes fuse neighbours.
        """
        removed = sum(len(run.removed) * self.of(run).block for run in runs)
        if removed <= 0 or ms >= self.ms:
            return self
        factor = (self.ms - ms) / removed
        sites = {path: dataclasses.replace(site, block=site.block * factor) for path, site in self.sites.items()}
        return dataclasses.replace(self, sites=sites)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"format": FORMAT, **asdict(self)}

    def shown(self) -> Table:
        """One row per run: a block, and each replacement."""
        names = list(dict.fromkeys(name for site in self.sites.values() for name in site.layers))
        table = make_table(f"{self.model}, {self.runtime}: {self.ms:.3f} ms in all", ("run",), ("a block", *names))
        for path, site in self.sites.items():
            table.add_row(path, f"{site.block:.3f}", *(f"{site.layers.get(name, 0.0):.3f}" for name in names))
        return table

    def save(self, path: str | Path) -> Path:
        """Writes the table as JSON."""
        write_atomic(Path(path), json.dumps(self.to_dict(), indent=2) + "\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "LatencyTable":
        """Reads what `save` wrote; a FileError says what is wrong with the file."""
        values = dict(read_object(Path(path), MB))
        if values.pop("format", None) != FORMAT:
            raise FileError(f"{path}: expected a latency table of format {FORMAT!r}.")
        return from_plain(cls, values, f"{path}: it")


def measure_sites(
    plan: Plan,
    model: nn.Module,
    x: Tensor,
    *,
    runtime: str = "optimized",
    replacements: Sequence[str],
    num_threads: int = 1,
    rounds: int = ROUNDS,
    max_seconds: float = SECONDS,
    progress: ProgressCallback | None = None,
) -> LatencyTable:
    """Times the model, and the model with each replacement at each run of the plan.

    Args:
        plan: Its runs are the sites; `keep` says how many blocks stay while the others are timed. Runs that keep all
            of them have nothing to time.
        model: The model before.
        x: What it is timed on, one image as a rule.
        runtime: One of `pdecnn.deploy.bench.RUNTIMES`.
        replacements: Names of the table in `replacements.py`; the entries have those of `choices_at`.
        num_threads: Threads inside an operator.
        rounds: Samples of each network.
        max_seconds: Limit of the timing, but never fewer than 3 rounds.
        progress: As in `plan`.
    """
    runs = [run for run in plan.runs if run.removed]
    names = {run.path: choices_at(run, (NOTHING, *replacements)) for run in runs}
    nets: dict[tuple[str, str], Plan | None] = {("", ""): None, ("", NOTHING): without_blocks(plan)}
    for run in runs:
        for name in names[run.path]:
            nets[run.path, name] = dataclasses.replace(plan, runs=(chosen(run, name),))
    made = {key: model if p is None else p.apply(model) for key, p in nets.items()}
    times = time_models(made, x, runtime, num_threads, rounds=rounds, max_seconds=max_seconds, progress=progress)
    whole = times["", ""]
    sites = {}
    for run in runs:
        least = times[run.path, NOTHING]
        layers = {name: round(max(0.0, times[run.path, name] - least), 6) for name in names[run.path]}
        sites[run.path] = Site(round((whole - least) / len(run.removed), 6), layers)
    shapes = tuple(tuple(s) for s in plan.input_shapes)
    table = LatencyTable(runtime, plan.model, shapes, num_threads, cpu_name(), round(whole, 6), sites)
    return table.anchored(runs, times["", NOTHING])


def without_blocks(plan: Plan) -> Plan:
    """The plan with nothing in the place of the blocks that go: no other of as many blocks is faster."""
    return dataclasses.replace(plan, runs=tuple(chosen(run, NOTHING) for run in plan.runs))


def time_models(
    models: Mapping[Any, nn.Module],
    x: Tensor,
    runtime: str,
    num_threads: int = 1,
    *,
    rounds: int = ROUNDS,
    max_seconds: float = SECONDS,
    progress: ProgressCallback | None = None,
) -> dict[Any, float]:
    """Milliseconds of each model in a runtime, in interleaved rounds.

    One thread of a CPU is timed by the clock of that thread, which stands while others have the core: a plan is not to
    depend on what else the machine does.
    """
    clock = time.thread_time if num_threads == 1 and x.device.type == "cpu" else time.perf_counter
    with served(models, x, runtime, num_threads, progress) as calls:
        done = begin(progress, f"timing {_networks(calls)} ({runtime})", rounds)
        timings = measure(calls, rounds=rounds, max_seconds=max_seconds, done=done, clock=clock)
    return {key: 1e3 * timing.p20 for key, timing in timings.items()}  # what others do to the machine only adds


@contextmanager
def served(
    models: Mapping[Any, nn.Module], x: Tensor, runtime: str, num_threads: int, progress: ProgressCallback | None
) -> Iterator[dict[Any, Any]]:
    """The models in a runtime, ready to be called."""
    done = begin(progress, f"preparing {_networks(models)} ({runtime})", len(models))
    with threads(num_threads), torch.inference_mode(), _compiling(len(models) if runtime == "compile" else 0):
        calls = {}
        for key, model in models.items():
            run, _ = make_runner(runtime, model.eval(), x, num_threads)
            calls[key] = partial(run, x)
            calls[key]()  # what is compiled at the first call belongs to the preparation
            done()
        yield calls


def _networks(models: Sized) -> str:
    return "a network" if len(models) == 1 else f"{len(models)} networks"


def _compiling(count: int) -> AbstractContextManager[Any]:
    """Lets torch compile so many networks of the same code; by default it runs the ninth as it is, with a warning."""
    if not count:
        return nullcontext()
    config: Any = import_module("torch._dynamo.config")
    limits = {
        name: max(getattr(config, name), 2 * count) for name in ("recompile_limit", "accumulated_recompile_limit")
    }
    patched: AbstractContextManager[Any] = config.patch(**limits)
    return patched
