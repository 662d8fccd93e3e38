"""The `pdecnn` command: one file per subcommand; torch is imported when one runs, not for its help."""

from typing import Annotated

import typer

app = typer.Typer(name="pdecnn", no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pdecnn {version('pdecnn')}")
        raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Compact convolutional networks from partial differential equations."""


def main() -> None:
    """Runs the command line."""
    app()


# each of these files adds its command to `app`
from pdecnn.cli import bench as bench  # noqa: E402
from pdecnn.cli import condense as condense  # noqa: E402
from pdecnn.cli import distill as distill  # noqa: E402
from pdecnn.cli import export as export  # noqa: E402
from pdecnn.cli import figure as figure  # noqa: E402
from pdecnn.cli import info as info  # noqa: E402
from pdecnn.cli import profile as profile  # noqa: E402
from pdecnn.cli import recipes as recipes  # noqa: E402
from pdecnn.cli import replace as replace  # noqa: E402
from pdecnn.cli import studio as studio  # noqa: E402
from pdecnn.cli import sweep as sweep  # noqa: E402
from pdecnn.cli import symmetry as symmetry  # noqa: E402
from pdecnn.cli import tables as tables  # noqa: E402
from pdecnn.cli import train as train  # noqa: E402
from pdecnn.cli import validate as validate  # noqa: E402
