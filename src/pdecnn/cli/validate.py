"""`pdecnn validate MODEL`: measure the accuracy of a model."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdecnn.cli import app
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
    from pdecnn.shared.progress import ProgressCallback
    from pdecnn.training.build import NamedModel

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
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on the evaluation images of --data, or a checkpoint on those that it was trained with."""
    import torch

    from pdecnn.shared.progress import showing

    if threads:
        torch.set_num_threads(threads)
    found = open_named(model, weights, num_classes, pretrained=pretrained, factory=factory)
    try:
        with showing(not as_json) as progress:
            if data is not None and (Path(data).is_dir() or "recipe" not in found.config):
                report = on_images(model, found, data, data_dir, download, (input_size, mean, std), progress)
            else:
                report = by_recipe(model, found, data, data_dir, download, progress)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(report))
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
    progress: "ProgressCallback | None",
) -> dict[str, Any]:
    """Evaluates a model on a folder or a dataset."""
    from pdecnn.training import evaluate
    from pdecnn.training.check import check_data
    from pdecnn.training.own import open_data

    loaders = open_data(data, input_for(found, *given), batch_size=1, data_dir=data_dir, download=download)
    if not loaders.labelled or loaders.evaluation is None:
        raise ValueError(f"validate: the images in {data} have no labels; expected folders named by their classes.")
    if loaders.note:
        typer.echo(loaders.note, err=True)
    loaders = check_data(found.model, loaders)
    assert loaders.evaluation is not None
    classes = loaders.num_classes
    return _report(name, data, evaluate(found.model, loaders.evaluation, num_classes=classes, progress=progress))


def by_recipe(
    name: str,
    found: "NamedModel",
    data: str | None,
    data_dir: Path | None,
    download: bool,
    progress: "ProgressCallback | None",
) -> dict[str, Any]:
    """Evaluates a checkpoint with the settings in its config."""
    import torch

    from pdecnn.training import Recipe, evaluate
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
    metrics = evaluate(model, loaders.evaluation, **settings, progress=progress)
    return _report(found.weights, recipe.data.name, metrics)


def _report(name: str, data: str, metrics: Any) -> dict[str, Any]:
    numbers = {key: getattr(metrics, key) for key in ("accuracy", "loss", "correct", "total")}
    return {"checkpoint": name, "data": data, **numbers}
