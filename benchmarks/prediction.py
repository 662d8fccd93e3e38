"""How well the milliseconds of a plan are predicted from a table of its parts, and how long a search takes.

    python benchmarks/prediction.py measure                      # on a quiet machine
    python benchmarks/prediction.py search --model resnet50      # all of a budgeted search before it distils
    python benchmarks/prediction.py show

For each network and runtime the table of `pdecnn bench --sites` is measured, then whole networks: plans drawn at random
among the blocks to keep and the replacements of each run. The error is `predicted / measured - 1`.
"""

import dataclasses
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import timm
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from pdecnn.analysis.latency import environment
from pdecnn.condensation import plan
from pdecnn.condensation.harm import measure_harms
from pdecnn.condensation.latency import LatencyTable, measure_sites, time_models
from pdecnn.condensation.places import measure_places
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.propose import predicted
from pdecnn.condensation.replacements import chosen
from pdecnn.condensation.search import CHOICES
from pdecnn.condensation.within import BATCHES, FEWEST, WIDTHS, WORK, Measured, propose_candidates, that_pay
from pdecnn.shared.files import write_atomic

RESULTS = Path(__file__).parent / "results" / "prediction.json"
NETS = {"cifar_resnet32": 32, "resnet18": 224, "resnet50": 224, "tf_efficientnet_lite0": 224}
RUNTIMES = ("onnx", "optimized")

app = typer.Typer(add_completion=False)


def read() -> dict[str, Any]:
    """The results so far."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"nets": {}, "search": {}}
    return found


def write(part: str, name: str, row: dict[str, Any]) -> None:
    """Adds a row, with what it was made on; a search names its processor itself."""
    found = read()
    found[part].setdefault(name, {}).update(row)
    made_on = {"environment": environment()} if part == "nets" else {}
    write_atomic(RESULTS, json.dumps({**found, **made_on}, indent=1) + "\n")


def make(name: str) -> tuple[nn.Module, torch.Tensor, Plan]:
    """A network with weights at random, an image, and what may be replaced."""
    torch.manual_seed(0)
    side = NETS.get(name, 224)
    net, x = timm.create_model(name, num_classes=10).eval(), torch.randn(1, 3, side, side)
    return net, x, plan(net, x)


def drawn(full: Plan, table: LatencyTable, source: random.Random) -> Plan:
    """A plan at random: for each run how many blocks stay, and what comes in the place of the others."""
    runs = []
    for run in full.runs:
        keep = source.randint(run.keep, len(run.units))
        runs.append(table.with_ms(chosen(run, source.choice(list(CHOICES)), keep=keep)))
    return dataclasses.replace(full, runs=tuple(runs))


@app.command()
def measure(
    nets: Annotated[str, typer.Option(help="Networks, with commas.")] = ",".join(NETS),
    runtimes: Annotated[str, typer.Option(help="Runtimes, with commas.")] = ",".join(RUNTIMES),
    plans: Annotated[int, typer.Option(help="How many plans are drawn.")] = 6,
) -> None:
    """Predict plans, and time them."""
    for name in nets.split(","):
        net, x, full = make(name)
        for runtime in runtimes.split(","):
            table = measure_sites(full, net, x, runtime=runtime, replacements=CHOICES)
            source = random.Random(0)
            made = [drawn(full, table, source) for _ in range(plans)]
            times = time_models({"": net, **{i: p.apply(net) for i, p in enumerate(made)}}, x, runtime)
            scale = times[""] / table.ms  # the clock of the machine may have changed since
            rows = []
            for i, one in enumerate(made):
                ms = predicted(table.total(full.before), one.runs).ms or 0.0
                rows.append({"predicted_ms": scale * ms, "ms": times[i], "error": scale * ms / times[i] - 1})
            load = os.getloadavg()[0]
            write("nets", name, {runtime: {"ms": times[""], "load": load, "plans": rows}})
            typer.echo(f"{name}, {runtime}: " + ", ".join(f"{100 * r['error']:+.1f} %" for r in rows))


@app.command()
def search(
    model: Annotated[str, typer.Option(help="Network.")] = "resnet50",
    budget: Annotated[str, typer.Option(help="Of its milliseconds.")] = "50%",
    runtime: Annotated[str, typer.Option(help="Runtime.")] = "onnx",
) -> None:
    """Seconds of each part of a search that comes before any distillation, on images at random."""
    net, x, full = make(model)
    parts: dict[str, dict[str, float]] = {}
    row = {"runtime": runtime, "budget": budget, "done": False, "seconds": parts}

    @contextmanager
    def lap(what: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        taken = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        parts[what] = {name: round(value, 1) for name, value in taken.items()}
        write("search", model, {**row, "load": os.getloadavg()[0], "cpu": environment()["cpu"]})
        typer.echo(f"{what}: {parts[what]['wall']} s, {parts[what]['cpu']} s of them on the CPU")

    with lap("timing what each choice costs"):
        table = measure_sites(full, net, x, runtime=runtime, replacements=CHOICES)
    count = max(FEWEST, int(WORK / full.before.macs) // (BATCHES + 1))
    *inputs, held = (torch.randn(count, *x.shape[1:]) for _ in range(BATCHES + 1))
    with lap("measuring what each choice harms"):
        worth = {run.path: that_pay(run, CHOICES, table) for run in full.runs}
        harms = measure_harms(full, net, inputs, held, worth)
    with lap("measuring what fewer inner channels save and harm"):
        places = measure_places(net, x, inputs, held, table)
    plans = [full] if places else [full, *(plan(net, x, width=width) for width in WIDTHS[1:])]
    known = Measured(tuple(plans), table, harms, places, inputs, held, [held])
    with lap("choosing candidates and timing them"):
        found = propose_candidates(known, net, x, {"latency_ms": budget}, measured=True, progress=None)
    typer.echo("\n".join(one.describe() for one in found))
    write("search", model, {"done": True})
    typer.echo(", ".join(f"{sum(part[k] for part in parts.values()):.0f} s {k}" for k in ("wall", "cpu")))


@app.command()
def show() -> None:
    """The table."""
    found = read()
    table = Table(title="Predicted against measured milliseconds", width=80)
    for column in ("net", "runtime", "plans", "median error", "largest error"):
        table.add_column(column, justify="left" if column in ("net", "runtime") else "right")
    for name, runtimes in found["nets"].items():
        for runtime, row in runtimes.items():
            errors = [100 * abs(r["error"]) for r in row["plans"]]
            table.add_row(name, runtime, str(len(errors)), f"{median(errors):.1f} %", f"{max(errors):.1f} %")
    Console(width=80).print(table)


if __name__ == "__main__":
    app()
