"""The design of `pde`: which equation serves best in the place of blocks, searched for by optuna.

    python benchmarks/design.py search --data data               # Fashion-MNIST; again with --of cifar10
    python benchmarks/design.py show

Every design is put in the place of all but one block of each stage of a ResNet-32, fitted without labels and distilled
for a few epochs by the recipe of `frontier.py`: on the embedded images, or on the first 10,000 of CIFAR-10. What is
sought is the accuracy on the held-out training images of that benchmark (10,000; 5,000 of CIFAR-10) and the
milliseconds of one image in ONNX Runtime with plain operators; the test set is not looked at. A design that was
measured is not measured again, so that a search which was stopped goes on.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import optuna
import torch
import typer
from frontier import SETTINGS, Of, condensed
from rich.console import Console
from rich.table import Table
from torch import nn

from pdecnn.analysis.latency import environment
from pdecnn.condensation import distill, plan
from pdecnn.condensation.latency import time_models
from pdecnn.shared.files import write_atomic
from pdecnn.training import evaluate
from pdecnn.training.own import in_memory
from pdecnn.training.progress import Reporter

RESULTS = Path(__file__).parent / "results"
EPOCHS = 4
IMAGES = 10_000  # at the most
KINDS = ("separable", "depthwise", "constant", "implicit", "maps")

app = typer.Typer(add_completion=False)


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    """A design, as options of `plan`; the plain convolutions are in the race too."""
    kind = trial.suggest_categorical("kind", KINDS)
    if kind in ("separable", "depthwise"):
        return {"replacement": kind}
    options: dict[str, Any] = {"reaction": trial.suggest_categorical("reaction", (True, False))}
    if kind == "maps":
        options["maps"] = True
    else:
        options |= {"share": trial.suggest_categorical("share", (1, 2, 4, 8)), "implicit": kind == "implicit"}
    return {"replacement": "pde", "K": trial.suggest_categorical("K", (1, 2, 3, 5)), "options": options}


def file_of(of: str) -> Path:
    """Where the results are."""
    return RESULTS / ("design.json" if of == "fashion" else f"design-{of}.json")


def read(of: str) -> dict[str, Any]:
    """The results so far, by design."""
    found: dict[str, Any] = json.loads(file_of(of).read_text()) if file_of(of).is_file() else {"designs": {}}
    return found


def write(of: str, found: dict[str, Any]) -> None:
    """Writes them, with what they were made by."""
    write_atomic(file_of(of), json.dumps({**found, "epochs": EPOCHS, "environment": environment()}, indent=1) + "\n")


def reach(
    design: dict[str, Any], teacher: nn.Module, images: Any, held: list[Any], seed: int, options: dict[str, Any]
) -> dict[str, float]:
    """Accuracy on the held-out images after a few epochs, and what the net costs."""
    loaders = in_memory(images, 64, seed)
    student = condensed(teacher, loaders, seed, **design)
    fitted = evaluate(student, held).accuracy
    outcome = distill(student, teacher, loaders, epochs=EPOCHS, seed=seed, reporter=Reporter(), **options)
    if outcome.status == "stopped":
        raise typer.Exit(130)
    found = {"held": evaluate(student, held).accuracy, "held_fitted": fitted}
    return {**found, "params": float(sum(p.numel() for p in student.parameters()))}


@app.command()
def search(
    of: Of = "fashion",
    data: Annotated[Path | None, typer.Option(help="Folder of the datasets.")] = None,
    trials: Annotated[int, typer.Option(help="How many designs are drawn; some are drawn twice.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the search and of each training.")] = 0,
) -> None:
    """Draw designs and measure those that are new."""
    setting = SETTINGS[of]
    teacher, (images, sets), found = setting.load(), setting.data(data), read(of)
    images, held, x = images.limit(IMAGES), sets["held"], torch.zeros(1, *setting.shape)
    recipe = {k: v for k, v in setting.options.get("recipe", {}).items() if k != "compile"}  # that takes a minute
    options = {**setting.options, "recipe": recipe} if recipe else setting.options

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        design = suggest(trial)
        key = json.dumps(design, sort_keys=True)
        row = found["designs"].setdefault(key, {"design": design, "seeds": {}})
        if str(seed) not in row["seeds"]:
            row["seeds"][str(seed)] = reach(design, teacher, images, held, seed, options)
            ms = time_models({"teacher": teacher, "net": plan(teacher, x, **design).apply(teacher)}, x, "onnx", 1)
            row["speedup"] = ms["teacher"] / ms["net"]
            write(of, found)
            typer.echo(f"{key}: {row['seeds'][str(seed)]['held']:.2f} %, {row['speedup']:.2f}x")
        return row["seeds"][str(seed)]["held"], row["speedup"]

    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)
    study = optuna.create_study(directions=["maximize", "maximize"], sampler=sampler)
    for kind in KINDS:  # each kind once, plainly, before the sampler draws
        study.enqueue_trial({"kind": kind, "reaction": True, "share": 1, "K": 1})
    study.optimize(objective, n_trials=trials)


@app.command()
def show(of: Of = "fashion") -> None:
    """The designs, the most accurate first; those that no other beats in both are marked."""
    rows = [r for r in read(of)["designs"].values() if r["seeds"]]
    table = Table(title=f"Held-out accuracy after {EPOCHS} epochs", width=100)
    table.add_column("design", no_wrap=True)
    for column in ("params", "held, %", "before, %", "onnx", "best"):
        table.add_column(column, justify="right", no_wrap=True)

    def mean(row: dict[str, Any], name: str) -> float:
        return fmean(s[name] for s in row["seeds"].values())

    for row in sorted(rows, key=lambda r: -mean(r, "held")):
        beaten = any(mean(o, "held") > mean(row, "held") and o["speedup"] > row["speedup"] for o in rows)
        design = dict(row["design"])
        options = {**design.pop("options", {}), **({"K": design["K"]} if "K" in design else {})}
        words = ", ".join(f"{n}={v}" for n, v in options.items() if v not in (False,) and (n, v) != ("share", 1))
        table.add_row(
            f"{design['replacement']} {words}", f"{mean(row, 'params'):,.0f}", f"{mean(row, 'held'):.2f}",
            f"{mean(row, 'held_fitted'):.2f}", f"{row['speedup']:.2f}x", "" if beaten else "*",
        )  # fmt: skip
    Console(width=100).print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    app()
