"""`pdecnn distill RECIPE --teacher MODEL`: train a model with the help of a larger one."""

from pathlib import Path
from typing import Annotated

import typer

from pdecnn.cli import app
from pdecnn.cli.models import GRAMMAR, NumClasses, Weights, open_named
from pdecnn.cli.train import (
    AsJson,
    Config,
    DataDir,
    Download,
    Init,
    Model,
    OnNan,
    Output,
    Overrides,
    RecipeName,
    Resume,
    Threads,
    resolve,
    run_training,
)

Teacher = Annotated[str, typer.Option(help=f"The teacher: {GRAMMAR}; one by name with its own weights.")]
TeacherWeights = Annotated[Path | None, typer.Option(help="File of weights for the teacher.")]
TeacherModel = Annotated[
    str | None, typer.Option(help="module:function that makes the teacher of a folder, if it is your own.")
]


@app.command("distill")
def command(
    recipe: RecipeName = None,
    *,
    teacher: Teacher,
    teacher_weights: TeacherWeights = None,
    teacher_model: TeacherModel = None,
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
    """Train a model by a recipe, learning from a teacher's answers as well as from the labels."""
    settings, folder = resolve(
        recipe, config, override, model, num_classes, output=output, resume=resume, suffix="-distilled"
    )
    named = ":" not in teacher or teacher.startswith("timm:")
    master = open_named(
        teacher,
        teacher_weights,
        num_classes if teacher_weights else None,
        pretrained=named and teacher_weights is None,
        factory=teacher_model,
        option="--teacher-model",
    ).model
    run_training(settings, folder, data_dir, resume, download, on_nan, model, threads, as_json, master, init, weights)
