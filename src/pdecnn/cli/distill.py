"""`pdecnn distill RECIPE --teacher MODEL`: train a model with the help of a larger one."""

from typing import Annotated

import typer

from pdecnn.cli import app
from pdecnn.cli.train import (
    AsJson,
    Config,
    DataDir,
    Download,
    Model,
    OnNan,
    Output,
    Overrides,
    RecipeName,
    Resume,
    Threads,
    fail,
    resolve,
    run_training,
)

Teacher = Annotated[str, typer.Option(help="A checkpoint or run folder, or a registered model with weights.")]


@app.command("distill")
def command(
    recipe: RecipeName = None,
    *,
    teacher: Teacher,
    config: Config = None,
    override: Overrides = None,
    data_dir: DataDir = None,
    output: Output = None,
    resume: Resume = False,
    download: Download = False,
    on_nan: OnNan = "stop",
    model: Model = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a model by a recipe, learning from a teacher's answers as well as from the labels."""
    from pdecnn.training.build import load_teacher

    settings = resolve(recipe, config, override, model)
    try:
        master = load_teacher(teacher)
    except (OSError, ValueError, RuntimeError) as error:
        fail(error)
    name = f"{recipe or config}-distilled"
    run_training(settings, name, data_dir, output, resume, download, on_nan, model, threads, as_json, master)
