"""The `pdecnn` command: one file per subcommand."""

import typer

app = typer.Typer(name="pdecnn", help=__doc__, no_args_is_help=True, add_completion=False)


def main() -> None:
    """Runs the command line."""
    app()
