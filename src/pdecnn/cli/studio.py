"""`pdecnn studio`: a page in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from pdecnn.cli import app
from pdecnn.cli.models import fail


@app.command("studio")
def command(
    host: Annotated[str, typer.Option(help="Address to listen on; by default this machine alone.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; a free one from 7860 on by default.")
    ] = None,
    share: Annotated[bool, typer.Option("--share", help="Also make a public link, through Gradio's servers.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the browser.")] = False,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of result files to compare; may be repeated. ./results, ./benchmarks/results."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Images to offer: a folder (train/CLASS/*, val/CLASS/*), or a dataset.")
    ] = None,
) -> None:
    """Open a page in the browser: condense, look inside, symmetry, compare.

    It listens on this machine alone, sends nothing anywhere, and works without a network. With --share or another
    --host, visitors cannot run code of yours or read folders that you did not name.
    """
    typer.echo("Starting the studio ...")
    from pdecnn.viz.studio import Options, serve
    from pdecnn.viz.studio.serving import default_results

    folders = tuple(results) if results else default_results()
    options = Options(host=host, port=port, share=share, browser=not no_browser, results=folders, data=data or "")
    try:
        page = serve(options, say=typer.echo)
    except (OSError, ValueError, ImportError) as error:
        fail(error)
    page.block_thread()
