"""`pdecnn validate CHECKPOINT`: measure the accuracy of a checkpoint."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pdecnn.cli import app
from pdecnn.cli.train import AsJson, DataDir, Download, Threads, fail

CheckpointPath = Annotated[Path, typer.Argument(help="A checkpoint or run folder: runs/NAME or runs/NAME/best.")]
DatasetName = Annotated[str | None, typer.Option("--data", help="Another dataset of the same classes.")]
Factory = Annotated[str | None, typer.Option("--model", help="module:function, for checkpoints of a model of yours.")]


@app.command("validate")
def command(
    checkpoint: CheckpointPath,
    data: DatasetName = None,
    data_dir: DataDir = None,
    download: Download = False,
    model: Factory = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint on the evaluation split it was trained with."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    try:
        report = validate(checkpoint, data, data_dir, download=download, factory=model)
    except (OSError, ValueError, RuntimeError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(report))
        return
    counts = f"{report['correct']} of {report['total']}"
    typer.echo(f"Accuracy {report['accuracy']:.2f} % ({counts}), loss {report['loss']:.4f}")


def validate(
    path: str | Path,
    data: str | None = None,
    data_dir: Path | None = None,
    *,
    download: bool = False,
    factory: str | None = None,
) -> dict[str, Any]:
    """Evaluates a checkpoint with the settings in its config."""
    import torch

    from pdecnn.training import Recipe, evaluate, load_checkpoint
    from pdecnn.training.build import import_factory
    from pdecnn.training.checkpoint import find_checkpoint, read_config
    from pdecnn.training.stream import load_data

    folder = find_checkpoint(path)
    config = read_config(folder)
    if "recipe" not in config:
        raise ValueError(f"validate: {folder} has no recipe in its config, so its data is unknown.")
    recipe = Recipe.parse(config["recipe"])
    if data:
        recipe = recipe.override([f"data.name={data}"])
    net = import_factory(factory)(**config["model"].get("kwargs", {})) if factory else None
    model = load_checkpoint(folder, model=net).model
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    loaders = load_data(recipe, data_dir, download=download)
    metrics = evaluate(model, loaders.evaluation, num_classes=loaders.num_classes, precision=recipe.precision)
    return {
        "checkpoint": str(folder),
        "data": recipe.data.name,
        "accuracy": metrics.accuracy,
        "loss": metrics.loss,
        "correct": metrics.correct,
        "total": metrics.total,
    }
