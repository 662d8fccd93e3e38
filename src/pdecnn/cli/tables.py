"""`pdecnn tables`: the tables of the papers, counted again."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pdecnn.cli import app

WIDTH = 160  # of a table that goes into a file or another program
OTHERS = {"lowcost": "pdecnn.analysis.lowcost_tables", "hyperbolic": "pdecnn.analysis.hyperbolic_tables"}


@app.command("tables")
def command(
    which: Annotated[
        str | None,
        typer.Argument(
            help="Number of a table of the Global paper, 'lowcost' or 'hyperbolic'; all numbers if left out."
        ),
    ] = None,
    latency: Annotated[
        bool, typer.Option("--latency", help="Time every network for one image on this machine.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    results: Annotated[Path, typer.Option(help="Folder with the results of our own runs.")] = Path("results"),
) -> None:
    """Rebuild the tables of the papers: printed figures beside our counts, latency and accuracy."""
    from pdecnn.analysis.published import TITLES
    from pdecnn.analysis.tables import build_table, to_csv
    from pdecnn.deploy import optimize_for_inference
    from pdecnn.shared.progress import showing

    other = OTHERS.get(which or "")
    numbers = list(TITLES) if which is None else [] if other else [_number(which, max(TITLES))]
    with showing(not as_json) as progress:
        options: dict[str, Any] = {"measure_latency": latency, "results": results, "progress": progress}
        if other:
            built = importlib.import_module(other).build_tables(**options)
        else:
            built = [build_table(n, prepare=optimize_for_inference, **options) for n in numbers]
    if csv is not None:
        csv.write_text(to_csv(built))
    if as_json:
        typer.echo(json.dumps([row for table in built for row in table.to_dicts()], indent=2))
        return
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=WIDTH if piped else None)
    for table in built:
        console.print(table)


def _number(text: str, last: int) -> int:
    if not text.isdigit() or not 1 <= int(text) <= last:
        raise typer.BadParameter(
            f"expected a number from 1 to {last}, 'lowcost' or 'hyperbolic', got {text!r}.", param_hint="WHICH"
        )
    return int(text)
