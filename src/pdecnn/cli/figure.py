"""`pdecnn figure NAME`: a figure of the papers, from the weights and images that ship."""

from pathlib import Path
from typing import Annotated

import typer

from pdecnn.cli import app
from pdecnn.cli.models import fail


@app.command("figure")
def command(
    name: Annotated[str | None, typer.Argument(help="Which figure; without, all are listed.")] = None,
    output: Annotated[Path | None, typer.Option(help="PNG to write; NAME.png by default.")] = None,
) -> None:
    """Draw a figure of the papers from the trained nets in the package."""
    from pdecnn.viz.figures import FIGURES, draw_figure

    if name is None:
        for key, text in FIGURES.items():
            typer.echo(f"{key:16} {text}")
        return
    if name not in FIGURES:
        raise typer.BadParameter(f"expected one of {', '.join(FIGURES)}, got {name!r}.", param_hint="NAME")
    try:
        typer.echo(draw_figure(name, output or Path(f"{name}.png")))
    except (OSError, ValueError, ImportError) as error:
        fail(error)
