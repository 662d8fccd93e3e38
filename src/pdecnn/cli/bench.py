"""`pdecnn bench MODEL...`: latency of models in several runtimes, in one run."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.train import fail


@app.command("bench")
def command(
    models: Annotated[list[str], typer.Argument(help="Checkpoints, run folders or names of models.")],
    runtime: Annotated[str, typer.Option(help="Of eager, optimized, compile, onnx, onnx-fused.")] = "eager,optimized",
    threads: Annotated[int, typer.Option(help="Threads inside an operator.")] = 1,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,64",
    input_size: Annotated[str | None, typer.Option("--input", help="C,H,W; each model's own by default.")] = None,
    rounds: Annotated[int, typer.Option(help="Samples of each candidate.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """Time models: all candidates take turns in each round, so that drift of the machine hits them alike."""
    import torch

    from pdecnn.analysis.latency import environment
    from pdecnn.cli.export import load, table
    from pdecnn.deploy.bench import bench

    sizes = numbers(batch, "--batch")
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"the folder {output.parent} does not exist.", param_hint="--output")
    torch.manual_seed(0)
    loaded = {name: load(name, input_size) for name in models}
    inputs = {name: (net, torch.randn(2, *size)) for name, (net, size) in loaded.items()}
    try:
        rows = bench(inputs, runtimes=runtime.split(","), batches=sizes, num_threads=threads, rounds=rounds)
    except (ValueError, RuntimeError, ImportError) as error:
        fail(error)
    result = {"environment": environment(), "rows": [row.to_dict() for row in rows]}
    if output is not None:
        output.write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(result))
        return
    Console().print(table(result["rows"]))  # type: ignore[arg-type]


def numbers(text: str, option: str) -> list[int]:
    """`"1,64"` -> `[1, 64]`."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise typer.BadParameter(f"expected positive numbers such as 1,64, got {text!r}.", param_hint=option)
    return values
