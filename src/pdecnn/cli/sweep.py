"""`pdecnn sweep RECIPE -o K=1,2,5 -o seed=1,2,3`: many runs, one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.models import command_line, fail
from pdecnn.cli.train import STOPPED, AsJson, Config, DataDir, Download, RecipeName, Threads, make_model

if TYPE_CHECKING:
    from pdecnn.analysis.sweep_table import SweepRow
    from pdecnn.training.recipe import Recipe
    from pdecnn.training.sweep import Sweep

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-o", help="What varies: key=a,b,c or key=low..high; key=value is the same in all runs. K is model's."
    ),
]
SamplerName = Annotated[str, typer.Option(help="grid (all combinations), random, or tpe (guided by results).")]
Trials = Annotated[int, typer.Option(min=1, help="Number of runs for random and tpe.")]
Home = Annotated[Path | None, typer.Option("--output", help="Folder; runs/sweep-RECIPE by default.")]
Retry = Annotated[bool, typer.Option("--retry", help="Try the points that failed again; they are left otherwise.")]
Show = Annotated[bool, typer.Option("--show", help="Print what there is so far; run nothing.")]


@app.command("sweep")
def command(
    recipe: RecipeName = None,
    config: Config = None,
    settings: Settings = None,
    sampler: SamplerName = "grid",
    trials: Trials = 20,
    output: Home = None,
    data_dir: DataDir = None,
    download: Download = False,
    threads: Threads = None,
    keep_in: Annotated[
        Path | None, typer.Option("--keep", help="Write all finished runs into this JSON file, for `pdecnn tables`.")
    ] = None,
    retry: Retry = False,
    show: Show = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe with many settings. The same command again goes on; in several shells, they share the work."""
    if show and retry:
        raise typer.BadParameter("--show runs nothing; leave one of the two out.", param_hint="--retry")
    sweep, name = open_sweep(recipe, config, settings, sampler, trials, output, check=not show)
    ended = True
    if not show:
        if retry:
            typer.echo(f"{_points(sweep.retry())} that failed: tried again.", err=True)
        ended = sweep.work(runner(data_dir, download, threads, as_json))
    rows = report(sweep, name, as_json)
    if keep_in is not None:
        keep(sweep, keep_in)
    if not ended:
        typer.echo(f"Stopped and saved. Continue with:\n{command_line()}", err=True)
        raise typer.Exit(STOPPED)
    if not show and rows and not any(row.accuracies for row in rows):
        raise typer.Exit(1)


def open_sweep(
    recipe: str | None,
    config: Path | None,
    settings: list[str] | None,
    sampler: str,
    trials: int,
    output: Path | None,
    *,
    check: bool = True,
) -> tuple[Sweep, str]:
    """The sweep that the arguments mean, or a usage error; with `check`, the models of its points are tried."""
    from pdecnn.training.buildable import check_model
    from pdecnn.training.recipe import RecipeError, load_recipe
    from pdecnn.training.space import parse_space
    from pdecnn.training.sweep import SAMPLERS, Sweep

    if (recipe is None) == (config is None):
        raise typer.BadParameter("give the name of a recipe, or a file with --config.", param_hint="RECIPE")
    if sampler not in SAMPLERS:
        raise typer.BadParameter(f"expected one of {', '.join(SAMPLERS)}, got {sampler!r}.", param_hint="--sampler")
    name = recipe or str(config)
    try:
        base = load_recipe(recipe or config or "")
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="RECIPE" if recipe else "--config") from error
    try:
        space = parse_space(settings or [])
        folder = output or Path("runs") / f"sweep-{Path(name).with_suffix('').name}"
        return Sweep(base, space, folder, sampler, trials, check_model if check else None), name
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="-o") from error
    except (OSError, ValueError, ImportError) as error:
        fail(error)


def runner(data_dir: Path | None, download: bool, threads: int | None, as_json: bool) -> Any:
    """What trains one point."""
    import torch

    from pdecnn.training import fit, keep_memory
    from pdecnn.training.progress import choose_reporter
    from pdecnn.training.stream import load_data

    if threads:
        torch.set_num_threads(threads)
    keep_memory()

    def run(settings: Recipe, folder: Path) -> Any:
        net, description = make_model(settings, None, folder)
        data = load_data(settings, data_dir, download=download)
        typer.echo(folder.name, err=True)
        reporter = None if as_json else choose_reporter(as_json=False)
        return fit(net, data, settings, run_dir=folder, resume=True, model_config=description, reporter=reporter)

    return run


def report(sweep: Sweep, name: str, as_json: bool) -> list[SweepRow]:
    """Prints the table and writes it and its plot beside the runs."""
    from pdecnn.analysis.sweep_table import sweep_rows, sweep_table
    from pdecnn.shared.files import write_atomic

    points = sweep.points()
    rows = sweep_rows(points)
    content = {"recipe": name, "rows": [row.to_dict() for row in rows], "points": [vars(point) for point in points]}
    write_atomic(sweep.folder / "sweep.json", json.dumps(content, indent=1) + "\n")
    notes = [f"{row.failed} failed: {row.error}" for row in rows if row.error]
    if failed := sum(row.failed for row in rows):
        notes.append(f"{failed} of {_points(len(points))} failed; the same command with --retry tries them again.")
    if any(row.accuracies for row in rows):
        try:
            from pdecnn.viz.sweep import draw_sweep

            draw_sweep(rows, sweep.folder / "sweep.png")
        except ModuleNotFoundError as error:
            notes.append(f"no plot: {error}")
    if as_json:
        typer.echo(json.dumps(content))
        return rows
    Console().print(sweep_table(f"{name}: accuracy of the last epoch", rows))
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(f"Runs, sweep.json and sweep.png are in {sweep.folder}.")
    return rows


def keep(sweep: Sweep, path: Path) -> None:
    """Writes the results of all finished runs into one file, a list, as `pdecnn tables --results` reads it."""
    from pdecnn.analysis.own_runs import MAX_RESULT
    from pdecnn.shared.files import write_atomic
    from pdecnn.shared.reading import read_json

    finished = [point.params for point in sweep.points() if point.status == "finished"]
    found = [read_json(sweep.run_folder(params) / "result.json", MAX_RESULT) for params in finished]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(found, indent=1) + "\n")


def _points(n: int) -> str:
    return "1 point" if n == 1 else f"{n} points"
