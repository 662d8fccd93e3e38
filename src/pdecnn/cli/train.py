"""`pdecnn train RECIPE`: train a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pdecnn.cli import app

if TYPE_CHECKING:
    from torch import nn

    from pdecnn.training.recipe import Recipe

STOPPED = 143  # 128 + SIGTERM: saved and left early

RecipeName = Annotated[str | None, typer.Argument(help="A recipe of the package; `pdecnn recipes` lists them.")]
Config = Annotated[Path | None, typer.Option("--config", help="A recipe of your own, as a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Option("-o", help="Change a setting: key=value, such as epochs=5.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the dataset files [$PDECNN_DATA, or data].")]
Output = Annotated[Path | None, typer.Option(help="Run folder [runs/<recipe>].")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the output folder.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch a missing dataset from the internet.")]
OnNan = Annotated[str, typer.Option(help="At a non-finite loss: stop, or resume from the last good state.")]
Model = Annotated[str | None, typer.Option(help="Another model: a registered name, or module:function of yours.")]
Init = Annotated[Path | None, typer.Option(help="Start from the weights of this checkpoint or run folder.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines on standard output.")]


@app.command("train")
def command(
    recipe: RecipeName = None,
    config: Config = None,
    override: Overrides = None,
    data_dir: DataDir = None,
    output: Output = None,
    resume: Resume = False,
    download: Download = False,
    on_nan: OnNan = "stop",
    model: Model = None,
    init: Init = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a model by a recipe. Interrupt it in any way and continue with --resume."""
    settings, name = resolve(recipe, config, override, model), recipe or str(config)
    run_training(settings, name, data_dir, output, resume, download, on_nan, model, threads, as_json, init=init)


def resolve(name: str | None, config: Path | None, overrides: list[str] | None, model: str | None = None) -> Recipe:
    """The recipe that the arguments mean, or a usage error."""
    from pdecnn.training.recipe import RecipeError, load_recipe

    if (name is None) == (config is None):
        raise typer.BadParameter("give the name of a recipe, or a file with --config.", param_hint="RECIPE")
    changes = [*([f"model.name={model}"] if model and ":" not in model else []), *(overrides or [])]
    try:
        return load_recipe(name or config or "").override(changes)
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="RECIPE") from error


def run_training(
    recipe: Recipe,
    name: str,
    data_dir: Path | None,
    output: Path | None,
    resume: bool,
    download: bool,
    on_nan: str,
    model: str | None,
    threads: int | None,
    as_json: bool,
    teacher: nn.Module | None = None,
    init: Path | None = None,
) -> None:
    """Trains and reports; shared by `train` and `distill`."""
    import torch

    from pdecnn.training import fit, load_checkpoint
    from pdecnn.training.progress import choose_reporter
    from pdecnn.training.stream import load_data

    if on_nan not in ("stop", "resume"):
        raise typer.BadParameter(f"expected stop or resume, got {on_nan!r}.", param_hint="--on-nan")
    if threads:
        torch.set_num_threads(threads)
    folder = output or Path("runs") / Path(name).with_suffix("").name
    try:
        net, description = make_model(recipe, model)
        if init:
            load_checkpoint(init, model=net)
        result = fit(
            net,
            load_data(recipe, data_dir, download=download),
            recipe,
            run_dir=folder,
            resume=resume,
            teacher=teacher,
            model_config=description,
            on_nan=on_nan,  # type: ignore[arg-type]
            reporter=choose_reporter(as_json=as_json),
        )
    except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
        fail(error)
    summary = {"event": result.status, "accuracy": result.accuracy, "step": result.step, "run": str(folder)}
    if as_json:
        typer.echo(json.dumps({**summary, "wall_time_s": result.wall_time}))
    elif result.status == "stopped":
        typer.echo(f"Stopped and saved at step {result.step}. Continue with --resume --output {folder}.", err=True)
    else:
        typer.echo(f"Accuracy {result.accuracy:.2f} % after {result.wall_time:.0f} s; everything is in {folder}.")
    if result.status == "stopped":
        raise typer.Exit(STOPPED)


def make_model(recipe: Recipe, factory: str | None = None) -> tuple[nn.Module, dict[str, Any] | None]:
    """The model of a recipe, or of the user's own function, initialised from the recipe's seed."""
    from pdecnn.training.build import build_model, import_factory
    from pdecnn.training.seeding import seed_everything

    seed_everything(recipe.seed, "init")
    if factory and ":" in factory:
        net = import_factory(factory)(**recipe.model.kwargs)
        return net, {"builder": "custom", "name": factory, "kwargs": recipe.model.kwargs}
    return build_model(recipe.model.model_dump(exclude={"pretrained"}), pretrained=recipe.model.pretrained), None


def fail(error: Exception) -> NoReturn:
    """Ends the command with the message of the error."""
    typer.echo(f"Error: {error}", err=True)
    raise typer.Exit(1) from error
