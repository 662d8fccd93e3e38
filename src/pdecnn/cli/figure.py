"""`pdecnn figure NAME`: a figure of the papers, from the weights and images that ship."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from pdecnn.cli import app
from pdecnn.cli.models import fail


@app.command("figure")
def command(
    name: Annotated[str | None, typer.Argument(help="Which figure; without, all are listed.")] = None,
    output: Annotated[Path | None, typer.Option(help="PNG, PDF or SVG to write; NAME.png by default.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Of steps: folder with our own runs; results by default."),
    ] = None,
) -> None:
    """Draw a figure of the papers from the trained nets in the package."""
    from pdecnn.viz.figures import FIGURES, draw_figure

    if name is None:
        for key, text in FIGURES.items():
            typer.echo(f"{key:16} {text}")
        return
    if name not in FIGURES:
        raise typer.BadParameter(f"expected one of {', '.join(FIGURES)}, got {name!r}.", param_hint="NAME")
    if results is not None and name != "steps":
        raise typer.BadParameter(f"only the figure steps shows runs, got {name!r}.", param_hint="--results")
    options: dict[str, Any] = {} if results is None else {"results": results}
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", UserWarning)
        try:
            path = draw_figure(name, output or Path(f"{name}.png"), **options)
        except (OSError, ValueError, ImportError) as error:
            fail(error)
    for note in noted:
        if issubclass(note.category, UserWarning):
            typer.echo(str(note.message), err=True)
    typer.echo(path)
