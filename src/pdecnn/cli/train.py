"""`pdecnn train RECIPE`: train a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdecnn.cli import app
from pdecnn.cli.models import GRAMMAR, NumClasses, Weights, command_line, fail

if TYPE_CHECKING:
    from torch import nn

    from pdecnn.training.recipe import Recipe

STOPPED = 143  # 128 + SIGTERM: saved and left early

RecipeName = Annotated[str | None, typer.Argument(help="A recipe of the package; `pdecnn recipes` lists them.")]
Config = Annotated[Path | None, typer.Option("--config", help="A recipe of your own, as a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Option("-o", help="Change a setting: key=value, such as epochs=5.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the dataset files; $PDECNN_DATA or data by default.")]
Output = Annotated[Path | None, typer.Option(help="Run folder; runs/RECIPE by default.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the output folder, by its own recipe.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch a missing dataset from the internet.")]
OnNan = Annotated[str, typer.Option(help="At a non-finite loss: stop, or resume from the last good state.")]
Model = Annotated[str | None, typer.Option(help=f"Another model: {GRAMMAR}.")]
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
    weights: Weights = None,
    num_classes: NumClasses = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a model by a recipe. Interrupt it in any way and continue with --resume."""
    settings, folder = resolve(recipe, config, override, model, num_classes, output=output, resume=resume)
    run_training(
        settings, folder, data_dir, resume, download, on_nan, model, threads, as_json, init=init, weights=weights
    )


def resolve(
    name: str | None,
    config: Path | None,
    overrides: list[str] | None,
    model: str | None = None,
    num_classes: int | None = None,
    *,
    output: Path | None = None,
    resume: bool = False,
    suffix: str = "",
) -> tuple[Recipe, Path]:
    """The recipe that the arguments mean and the folder of the run, or a usage error.

    With --resume, the folder alone is enough: `train --resume --output runs/x` or `train runs/x --resume`.
    """
    from pdecnn.training.recipe import RecipeError, load_recipe

    own = output if name is None and config is None else Path(name) if name and output is None else None
    if resume and own is not None and (own / "recipe.yaml").is_file():
        name, config, output, model, num_classes = None, own / "recipe.yaml", own, None, None
    if (name is None) == (config is None):
        raise typer.BadParameter("give the name of a recipe, or a file with --config.", param_hint="RECIPE")
    classes = [] if num_classes is None else [f"model.kwargs.num_classes={num_classes}"]
    try:
        settings = load_recipe(name or config or "").override([*named(model), *classes, *(overrides or [])])
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="RECIPE") from error
    return settings, output or Path("runs") / (Path(name or str(config)).with_suffix("").name + suffix)


def named(model: str | None) -> list[str]:
    """The settings of a recipe for the model that the user named."""
    from pdecnn.models.build import name_to_description
    from pdecnn.training.build import find_folder

    if model is None:
        return []
    if find_folder(model):
        return ["model.builder=folder", f"model.name={json.dumps(model)}", "model.kwargs={}"]
    found = name_to_description(model)
    return [f"model.builder={found['builder']}", f"model.name={json.dumps(found['name'])}"]


def run_training(
    recipe: Recipe,
    folder: Path,
    data_dir: Path | None,
    resume: bool,
    download: bool,
    on_nan: str,
    model: str | None,
    threads: int | None,
    as_json: bool,
    teacher: nn.Module | None = None,
    init: Path | None = None,
    weights: Path | None = None,
) -> None:
    """Trains and reports; shared by `train` and `distill`."""
    import torch

    from pdecnn.models.weights import load_weights
    from pdecnn.training import fit, keep_memory, load_checkpoint
    from pdecnn.training.check import check_teacher
    from pdecnn.training.progress import choose_reporter
    from pdecnn.training.stream import load_data

    if on_nan not in ("stop", "resume"):
        raise typer.BadParameter(f"expected stop or resume, got {on_nan!r}.", param_hint="--on-nan")
    if threads:
        torch.set_num_threads(threads)
    try:
        keep_memory()
        net, description = make_model(recipe, model, folder)
        if init:
            load_checkpoint(init, model=net)
        if weights:
            typer.echo(f"loaded {load_weights(net, weights)}", err=True)
        data = load_data(recipe, data_dir, download=download)
        if teacher is not None:
            check_teacher(net, teacher, data)
        result = fit(
            net,
            data,
            recipe,
            run_dir=folder,
            resume=resume,
            teacher=teacher,
            model_config=description,
            on_nan=on_nan,  # type: ignore[arg-type]
            reporter=choose_reporter(as_json=as_json),
        )
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        fail(error)
    summary = {"event": result.status, "accuracy": result.accuracy, "step": result.step, "run": str(folder)}
    if as_json:
        typer.echo(json.dumps({**summary, "wall_time_s": result.wall_time}))
    elif result.status == "stopped":
        typer.echo(f"Stopped and saved at step {result.step}. Continue with:\n{command_line('--resume')}", err=True)
    else:
        typer.echo(f"Accuracy {result.accuracy:.2f} % after {result.wall_time:.0f} s; everything is in {folder}.")
    if result.status == "stopped":
        raise typer.Exit(STOPPED)


def make_model(recipe: Recipe, typed: str | None, run: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a recipe, initialised from its seed; code of the user's is run only if the user typed its name."""
    from pdecnn.models.build import CustomModelError, build_model, call_factory, import_factory
    from pdecnn.training.build import open_model
    from pdecnn.training.buildable import build_plain
    from pdecnn.training.checkpoint import find_checkpoint, read_config
    from pdecnn.training.seeding import seed_everything

    seed_everything(recipe.seed, "init")
    wanted = recipe.model
    if wanted.builder == "folder":
        found = open_model(wanted.name)
        return found.model, found.description
    description = wanted.model_dump(exclude={"pretrained"})
    if wanted.name.startswith("hf-hub:"):  # fetched if the user typed it; a run that goes on knows the architecture
        if typed is None:
            description = read_config(find_checkpoint(run / "last"))["model"]
            return build_model(description), description
        found = open_model(typed, num_classes=wanted.kwargs.get("num_classes"))
        return found.model, found.description
    if wanted.builder == "custom":
        if typed != wanted.name:
            raise CustomModelError(wanted.name, run)
        return call_factory(import_factory(typed), wanted.kwargs, typed), description
    return build_plain(recipe, description), description
