"""One net for every K against a net for each: accuracy of both, in Fashion-MNIST.

    python benchmarks/knob.py train --data data               # Fashion-MNIST: the test set
    python benchmarks/knob.py time                            # on a quiet machine
    python benchmarks/knob.py show

The teacher is the ResNet-32 of the embedded example, the students have the published Global layer in the place of its
blocks. Every student learns from the teacher on the same 5,000 images, by the same recipe, for as many epochs as in
`frontier.py`; the knob makes three passes in each step, a net of one K a single one. Its last epoch is what counts.
Stopped at any moment, `train` goes on with the nets that are missing; a net that was not trained is not in the table.
"""

import json
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import timm
import torch
import typer
from frontier import EPOCHS, X, both_sets, condensed
from rich.console import Console
from rich.table import Table
from torch import nn

from pdecnn.analysis.latency import environment
from pdecnn.condensation import distill
from pdecnn.condensation.example import PRESET, TEACHER
from pdecnn.deploy.bench import bench
from pdecnn.layers import set_steps
from pdecnn.shared.files import write_atomic
from pdecnn.training import evaluate, keep_memory, load_dataset
from pdecnn.training.own import in_memory
from pdecnn.training.progress import Reporter

RESULTS = Path(__file__).parent / "results" / "knob.json"
RANGE = (1, 10)
STEPS = (1, 2, 5, 10)
KNOB = "knob"
RUNTIMES = ("optimized", "onnx", "onnx-fused")

app = typer.Typer(add_completion=False)


def read() -> dict[str, Any]:
    """The results so far: `{"seeds": {seed: {"knob" or K: {K: accuracy}}}}`."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"seeds": {}}
    return found


def write(found: dict[str, Any]) -> None:
    """Writes them, with what they were made by."""
    write_atomic(RESULTS, json.dumps({**found, "epochs": EPOCHS, "range": RANGE}, indent=1) + "\n")


def accuracies(net: nn.Module, tests: list[Any]) -> dict[str, float]:
    """Test accuracy at each K."""
    found = {}
    for K in STEPS:
        set_steps(net, K)
        found[str(K)] = evaluate(net, tests).accuracy
    return found


@app.command()
def train(
    data: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "0,1,2",
    only: Annotated[str, typer.Option(help=f"{KNOB}, or a K; all by default.")] = "",
) -> None:
    """Train every net that is missing, seed by seed, the knob first."""
    keep_memory()
    teacher: nn.Module = timm.create_model(TEACHER, pretrained=True).eval()
    tests, images, found = both_sets(data)["test"], load_dataset("fashion-mini"), read()
    found["teacher"] = evaluate(teacher, tests).accuracy
    for seed in map(int, seeds.split(",")):
        rows = found["seeds"].setdefault(str(seed), {})
        for name in (n for n in (KNOB, *map(str, STEPS)) if n not in rows and only in ("", n)):
            loaders = in_memory(images, 64, seed)
            steps = RANGE if name == KNOB else None
            K = 5 if name == KNOB else int(name)
            student = condensed(teacher, loaders, seed, replacement="paper", K=K)
            how: dict[str, Any] = {"epochs": EPOCHS, "seed": seed, "steps": steps, "reporter": Reporter()}
            run = distill(student, teacher, loaders, **how, **PRESET)
            if run.status == "stopped":
                raise typer.Exit(130)
            test = accuracies(student, tests)  # of a net for one K, at the others too
            rows[name] = {"test": test, "seconds": round(run.wall_time, 1)}
            write(found)
            typer.echo(f"{name}, seed {seed}: {test}")


@app.command("time")
def time_them() -> None:
    """Milliseconds of one image at each K, in every runtime, one thread, interleaved."""
    teacher: nn.Module = timm.create_model(TEACHER, pretrained=True).eval()
    loaders, found = in_memory(load_dataset("fashion-mini"), 64, 0), read()
    nets = {str(K): (condensed(teacher, loaders, 0, replacement="paper", K=K), X) for K in STEPS}
    rows = bench(nets, runtimes=RUNTIMES, batches=(1,), max_seconds=60.0)
    found["ms"] = {r: {row.model: row.p50_ms for row in rows if row.runtime == r} for r in RUNTIMES}
    write({**found, "environment": environment()})


@app.command()
def show() -> None:
    """The table: means over the seeds that there are, the difference over those that have both."""
    found = read()
    teacher = f"; teacher {found['teacher']:.2f} %" if "teacher" in found else ""
    table = Table(title=f"Fashion-MNIST, {EPOCHS} epochs{teacher}", width=100)
    for column in ("K", "seeds", "knob, %", "alone, %", "difference", *(f"ms, {r}" for r in RUNTIMES)):
        table.add_column(column, justify="right", no_wrap=True)
    for K in map(str, STEPS):
        seeds = found["seeds"].values()
        knob, alone = ([row[name]["test"][K] for row in seeds if name in row] for name in (KNOB, K))
        apart = [row[KNOB]["test"][K] - row[K]["test"][K] for row in seeds if KNOB in row and K in row]
        figures = [f"{mean(knob):.2f}" if knob else "", f"{mean(alone):.2f}" if alone else ""]
        figures += [f"{mean(apart):+.2f}" if apart else ""]
        times = [found.get("ms", {}).get(r, {}).get(K) for r in RUNTIMES]
        table.add_row(K, f"{len(knob)}, {len(alone)}", *figures, *("" if ms is None else f"{ms:.3f}" for ms in times))
    Console(width=100).print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    app()
