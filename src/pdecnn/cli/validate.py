"""`pdecnn validate MODEL`: measure the accuracy of a model."""

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.bench import numbers
from pdecnn.cli.models import (
    Factory,
    InputSize,
    Mean,
    ModelName,
    NumClasses,
    Pretrained,
    Std,
    Weights,
    fail,
    input_for,
    open_named,
)
from pdecnn.cli.train import AsJson, DataDir, Download, Threads

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from pdecnn.shared.progress import ProgressCallback
    from pdecnn.training.build import NamedModel

RUNTIME = "optimized"

Data = Annotated[
    str | None, typer.Option(help="A folder of images or a dataset; by default the one that a checkpoint knows of.")
]


@app.command("validate")
def command(
    model: ModelName,
    data: Data = None,
    data_dir: DataDir = None,
    download: Download = False,
    weights: Weights = None,
    num_classes: NumClasses = None,
    input_size: InputSize = None,
    mean: Mean = None,
    std: Std = None,
    pretrained: Pretrained = False,
    factory: Factory = None,
    steps: Annotated[
        str | None, typer.Option("--K", help="Numbers of time steps, such as 1,2,5,10: accuracy against milliseconds.")
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on the evaluation images of --data, or a checkpoint on those that it was trained with."""
    import torch

    from pdecnn.shared.progress import showing

    if threads:
        torch.set_num_threads(threads)
    found = open_named(model, weights, num_classes, pretrained=pretrained, factory=factory)
    chosen = numbers(steps, "--K") if steps else []
    try:
        with showing(not as_json) as progress:
            if data is not None and (Path(data).is_dir() or "recipe" not in found.config):
                report = on_images(model, found, data, data_dir, download, (input_size, mean, std), chosen, progress)
            else:
                report = by_recipe(model, found, data, data_dir, download, chosen, progress)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(report))
        return
    if chosen:
        Console().print(table(report))
        return
    counts = f"{report['correct']} of {report['total']}"
    typer.echo(f"Accuracy {report['accuracy']:.2f} % ({counts}), loss {report['loss']:.4f}")


def on_images(
    name: str,
    found: "NamedModel",
    data: str,
    data_dir: Path | None,
    download: bool,
    given: tuple[str | None, str | None, str | None],
    steps: list[int],
    progress: "ProgressCallback | None",
) -> dict[str, Any]:
    """Evaluates a model on a folder or a dataset."""
    from pdecnn.training.check import check_data
    from pdecnn.training.own import open_data

    loaders = open_data(data, input_for(found, *given), batch_size=1, data_dir=data_dir, download=download)
    if not loaders.labelled or loaders.evaluation is None:
        raise ValueError(f"validate: the images in {data} have no labels; expected folders named by their classes.")
    if loaders.note:
        typer.echo(loaders.note, err=True)
    loaders = check_data(found.model, loaders)
    assert loaders.evaluation is not None
    measured = measure(found.model, loaders.evaluation, {"num_classes": loaders.num_classes}, steps, progress)
    return {"checkpoint": name, "data": data, **measured}


def by_recipe(
    name: str,
    found: "NamedModel",
    data: str | None,
    data_dir: Path | None,
    download: bool,
    steps: list[int],
    progress: "ProgressCallback | None",
) -> dict[str, Any]:
    """Evaluates a checkpoint with the settings in its config."""
    import torch

    from pdecnn.training import Recipe
    from pdecnn.training.stream import load_data

    if "recipe" not in found.config:
        raise ValueError(f"validate: {name} does not say what it was trained on; give --data FOLDER.")
    recipe = Recipe.parse(found.config["recipe"])
    if recipe.data.name == "loaders" and data is None:
        raise ValueError(f"validate: {name} was trained on loaders, which are not kept; give --data FOLDER.")
    if data:
        recipe = recipe.override([f"data.name={data}"])
    model = found.model
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    loaders = load_data(recipe, data_dir, download=download)
    if loaders.evaluation is None:
        raise ValueError(f"validate: {recipe.data.name} has no evaluation images.")
    settings: dict[str, Any] = {"num_classes": loaders.num_classes, "precision": recipe.precision}
    measured = measure(model, loaders.evaluation, settings, steps, progress)
    return {"checkpoint": found.weights, "data": recipe.data.name, **measured}


def measure(
    model: "nn.Module", batches: Any, settings: dict[str, Any], steps: list[int], progress: "ProgressCallback | None"
) -> dict[str, Any]:
    """Accuracy, loss and counts of a model; with `steps` those of each K, and its milliseconds for one image."""
    from pdecnn.training import evaluate

    def numbers_of(net: "nn.Module") -> dict[str, Any]:
        metrics = evaluate(net, batches, **settings, progress=progress)
        return {key: getattr(metrics, key) for key in ("accuracy", "loss", "correct", "total")}

    if not steps:
        return numbers_of(model)
    from pdecnn.deploy.bench import bench
    from pdecnn.layers import set_steps

    nets = {K: copy.deepcopy(model) for K in dict.fromkeys(steps)}
    for K, net in nets.items():
        if set_steps(net, K) == 0:
            raise ValueError(f"validate: {type(net).__name__} has no layer with K time steps; leave --K out.")
    found = {K: numbers_of(net) for K, net in nets.items()}
    image = next(iter(batches))[0][:1]
    timed = {f"{K}": (net, image) for K, net in nets.items()}
    rows = bench(timed, runtimes=(RUNTIME,), batches=(1,), progress=progress or False)
    ms = {int(row.model): row.p50_ms for row in rows}
    return {"runtime": RUNTIME, "batch": 1, "steps": [{"K": K, **found[K], "ms": ms[K]} for K in nets]}


def table(report: dict[str, Any]) -> "Table":
    """One line per K."""
    from pdecnn.shared.tables import make_table

    title = f"{report['checkpoint']} on {report['data']}: {report['steps'][0]['total']} images, one thread"
    out = make_table(title, ("K",), ("accuracy, %", "loss", f"ms, {report['runtime']}, batch {report['batch']}"))
    for row in report["steps"]:
        out.add_row(str(row["K"]), f"{row['accuracy']:.2f}", f"{row['loss']:.4f}", f"{row['ms']:.3f}")
    return out
