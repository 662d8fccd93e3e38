"""Accuracy against milliseconds: what condense makes, beside pruned and plain networks, all distilled alike.

    pip install torch-pruning
    python benchmarks/frontier.py train --data data              # Fashion-MNIST: the test set, and held-out images
    python benchmarks/frontier.py time                           # on a quiet machine
    python benchmarks/frontier.py show

The teacher is the ResNet-32 of the embedded example. Every student learns from it on the same 5,000 images, by the
same recipe, for as many epochs; its last epoch is what counts. Test accuracy is that of the 10,000 test images of
Fashion-MNIST; choices, such as the steps of `pde`, were made by the 10,000 held-out training images alone. Stopped at
any moment, `train` goes on with the nets that are missing; a net that was not trained is not in the table.
"""

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import timm
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from pdecnn.analysis.latency import environment, measure
from pdecnn.condensation import distill, fit_layers, plan
from pdecnn.condensation.example import PRESET, TEACHER
from pdecnn.condensation.latency import served
from pdecnn.shared.files import write_atomic
from pdecnn.training import evaluate, load_dataset
from pdecnn.training.data import Images
from pdecnn.training.own import in_memory
from pdecnn.training.progress import Reporter
from pdecnn.training.seeding import seed_everything

RESULTS = Path(__file__).parent / "results" / "frontier-fashion.json"
X = torch.zeros(1, 1, 28, 28)
EPOCHS = 10
RUNTIMES = ("optimized", "onnx", "onnx-fused")
BATCHES = (1, 64)

app = typer.Typer(add_completion=False)


def condensed(teacher: nn.Module, data: Any, seed: int, **options: Any) -> nn.Module:
    """What condense makes before distillation: planned, replaced, fitted without labels."""
    made = plan(teacher, X, **options)
    seed_everything(seed, "condense")
    student = made.apply(teacher)
    seed_everything(seed, "fit")
    fit_layers(student, teacher, made, data.plain, seed=seed)
    return student


def pruned(teacher: nn.Module, data: Any, seed: int, *, kind: str, ratio: float) -> nn.Module:
    """The teacher with `ratio` of the channels of each layer taken out by Torch-Pruning."""
    tp = import_module("torch_pruning")
    student: nn.Module = timm.create_model(TEACHER, pretrained=True).eval()
    head = next(m for m in student.modules() if isinstance(m, nn.Linear))
    importance = {
        "magnitude": partial(tp.importance.MagnitudeImportance, p=2, group_reduction="first"),
        "group-norm": partial(tp.importance.GroupMagnitudeImportance, p=2),
        "taylor": tp.importance.GroupTaylorImportance,
    }[kind]()
    pruner = tp.pruner.BasePruner(student, X, importance=importance, pruning_ratio=ratio, ignored_layers=[head])
    if kind == "taylor":
        x, y = next(iter(data.plain))
        nn.functional.cross_entropy(student(x), y).backward()
    pruner.step()
    student.zero_grad(set_to_none=True)
    return student


def smaller(teacher: nn.Module, data: Any, seed: int, *, depth: int) -> nn.Module:
    """A plain ResNet of fewer blocks, from scratch."""
    seed_everything(seed, "condense")
    student: nn.Module = timm.create_model("fashion_resnet32", num_classes=10)
    for stage in student.stages:  # type: ignore[union-attr]
        del stage[depth:]
    return student


Make = Callable[[nn.Module, Any, int], nn.Module]
NETS: dict[str, Make] = {
    **{f"{name}": partial(condensed, replacement=name) for name in ("nothing", "depthwise", "separable", "pde")},
    "paper": partial(condensed, replacement="paper"),
    "paper K=1": partial(condensed, replacement="paper", K=1),
    "pde K=1": partial(condensed, replacement="pde", K=1),
    "pde K=2": partial(condensed, replacement="pde", K=2),
    "pde K=5": partial(condensed, replacement="pde", K=5),
    **{f"{name}, 2 blocks": partial(condensed, replacement=name, keep=2) for name in ("nothing", "separable", "pde")},
    "pde K=1, 2 blocks": partial(condensed, replacement="pde", K=1, keep=2),
    **{f"{name}, width 0.75": partial(condensed, replacement=name, width=0.75) for name in ("separable", "pde")},
    **{
        f"pruned {kind} {ratio}": partial(pruned, kind=kind, ratio=ratio)
        for kind in ("group-norm", "magnitude", "taylor")
        for ratio in (0.25, 0.375, 0.5, 0.625, 0.75)
    },
    **{f"plain, {n} block(s)": partial(smaller, depth=n) for n in (1, 2)},
}


def read() -> dict[str, Any]:
    """The results so far."""
    if RESULTS.is_file():
        found: dict[str, Any] = json.loads(RESULTS.read_text())
        return found
    return {"teacher": {}, "nets": {}}


def write(found: dict[str, Any]) -> None:
    """Writes them, with what they were made on."""
    write_atomic(RESULTS, json.dumps({**found, "epochs": EPOCHS}, indent=1) + "\n")


def both_sets(folder: Path | None) -> dict[str, list[Any]]:
    """The test set, and the training images 501 to 1,500 of each class, which the excerpt does not have."""
    mini, whole = load_dataset("fashion-mini"), load_dataset("fashion-mnist", folder)
    rows = torch.cat([(whole.train.y == c).nonzero()[500:1500, 0] for c in range(10)])
    held = Images(whole.train.x[rows], whole.train.y[rows])
    scale = {"mean": torch.tensor(mini.mean).view(1, -1, 1, 1), "std": torch.tensor(mini.std).view(1, -1, 1, 1)}

    def batches(images: Images) -> list[Any]:
        x = (images.x.float() / 255 - scale["mean"]) / scale["std"]
        return list(zip(x.split(500), images.y.split(500), strict=True))

    return {"test": batches(whole.test), "held": batches(held)}


@app.command()
def train(
    data: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "0,1,2",
    only: Annotated[str, typer.Option(help="Nets whose names begin so.")] = "",
) -> None:
    """Train every net that is missing, seed by seed."""
    teacher: nn.Module = timm.create_model(TEACHER, pretrained=True).eval()
    sets, images = both_sets(data), load_dataset("fashion-mini")
    found = read()
    found["teacher"] = {name: evaluate(teacher, part).accuracy for name, part in sets.items()}
    for seed in map(int, seeds.split(",")):
        for name in (n for n in NETS if n.startswith(only)):
            rows = found["nets"].setdefault(name, {"seeds": {}})["seeds"]
            if str(seed) in rows:
                continue
            loaders = in_memory(images, 64, seed)
            student = NETS[name](teacher, loaders, seed)
            start = evaluate(student, sets["held"]).accuracy
            run = distill(student, teacher, loaders, epochs=EPOCHS, seed=seed, reporter=Reporter(), **PRESET)
            if run.status == "stopped":
                raise typer.Exit(130)
            row = {part: evaluate(student, batches).accuracy for part, batches in sets.items()}
            rows[str(seed)] = {**row, "held_before": start, "seconds": round(run.wall_time, 1)}
            found["nets"][name]["params"] = sum(p.numel() for p in student.parameters())
            write(found)
            typer.echo(f"{name}, seed {seed}: {row}")


@app.command("time")
def time_them(rounds: int = 25, max_seconds: float = 60.0) -> None:
    """Milliseconds of every net in every runtime, one thread, interleaved."""
    teacher: nn.Module = timm.create_model(TEACHER, pretrained=True).eval()
    loaders, found = in_memory(load_dataset("fashion-mini"), 64, 0), read()
    nets = {"teacher": teacher}
    for name in found["nets"]:
        make = NETS[name]
        quick = make.keywords if isinstance(make, partial) and make.func is condensed else None
        nets[name] = make(teacher, loaders, 0) if quick is None else plan(teacher, X, **quick).apply(teacher)
    for runtime in RUNTIMES:
        for batch in BATCHES:
            x = torch.randn(batch, 1, 28, 28, generator=torch.Generator().manual_seed(0))
            with served({name: net.eval() for name, net in nets.items()}, x, runtime, 1, None) as calls:
                timings = measure(calls, rounds=rounds, max_seconds=max_seconds)
            for name, timing in timings.items():
                row = {"ms": 1e3 * timing.median, "speedup": timing.speedup(timings["teacher"]).median}
                entry = found["teacher"] if name == "teacher" else found["nets"][name]
                entry.setdefault("times", {}).setdefault(runtime, {})[str(batch)] = row
            typer.echo(f"{runtime}, batch {batch}: {len(nets)} nets")
    write({**found, "environment": environment()})


@app.command()
def show() -> None:
    """The table, the most accurate first."""
    found = read()
    table = Table(title=f"Fashion-MNIST, {EPOCHS} epochs; teacher {found['teacher']['test']:.2f} %", width=100)
    table.add_column("net", no_wrap=True)
    for column in ("params", "seeds", "test, %", "held, %", "onnx", "batch 64", "fused", "torch"):
        table.add_column(column, justify="right", no_wrap=True)
    trained = {name: net for name, net in found["nets"].items() if net["seeds"]}
    accuracy = {name: mean(r["test"] for r in net["seeds"].values()) for name, net in trained.items()}
    for name in sorted(accuracy, key=accuracy.__getitem__, reverse=True):
        net = trained[name]
        rows = net["seeds"].values()
        times = net.get("times", {})
        columns = (("onnx", 1), ("onnx", 64), ("onnx-fused", 1), ("optimized", 1))
        cells = [times.get(r, {}).get(str(b), {}).get("speedup") for r, b in columns]
        table.add_row(
            name, f"{net['params']:,}", str(len(rows)), f"{accuracy[name]:.2f}",
            f"{mean(r['held'] for r in rows):.2f}", *("" if c is None else f"{c:.2f}x" for c in cells),
        )  # fmt: skip
    Console(width=100).print(table)


if __name__ == "__main__":
    app()
