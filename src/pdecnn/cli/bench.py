"""`pdecnn bench MODEL...`: latency of models in several runtimes, in one run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.models import GRAMMAR, Factory, InputSize, NumClasses, Weights, fail, open_named, size_of

if TYPE_CHECKING:
    from pdecnn.deploy.bench import Row


RUNTIMES = "eager,optimized"


@app.command("bench")
def command(
    models: Annotated[list[str], typer.Argument(help=f"The models, each {GRAMMAR}.")],
    runtime: Annotated[
        str | None,
        typer.Option(
            help="Of eager, optimized, compile, onnx, onnx-fused, onnx-int8, c, c-int8, auto; eager,optimized by "
            "default, with --sites onnx (eager where it is not installed)."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads inside an operator.")] = 1,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,64",
    input_size: InputSize = None,
    num_classes: NumClasses = None,
    weights: Weights = None,
    factory: Factory = None,
    rounds: Annotated[int, typer.Option(help="Samples of each candidate.")] = 20,
    sites: Annotated[
        Path | None, typer.Option(help="A plan.json: time what may change at each of its runs, for condense.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """Time models: all candidates take turns in each round, so that drift of the machine hits them alike."""
    import torch

    from pdecnn.analysis.latency import environment
    from pdecnn.cli.export import table
    from pdecnn.deploy.bench import bench

    sizes = numbers(batch, "--batch")
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"the folder {output.parent} does not exist.", param_hint="--output")
    torch.manual_seed(0)
    if weights is not None and len(models) > 1:
        raise typer.BadParameter("is for one model; with several, name folders.", param_hint="--weights")
    found = {name: open_named(name, weights, num_classes, factory=factory) for name in models}
    if sites is not None:
        time_sites(sites, found, runtime or one_runtime(), threads, rounds, as_json=as_json, output=output)
        return
    inputs = {name: (item.model, torch.randn(2, *size_of(item, input_size))) for name, item in found.items()}
    try:
        rows = bench(
            inputs,
            runtimes=(runtime or RUNTIMES).split(","),
            batches=sizes,
            num_threads=threads,
            rounds=rounds,
            progress=not as_json,
        )
    except (ValueError, RuntimeError, ImportError) as error:
        fail(error)
    result = {"environment": environment(), "rows": [row.to_dict() for row in rows]}
    if output is not None:
        output.write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(result))
        return
    Console().print(table(with_speedups(rows)))


def one_runtime() -> str:
    """Where sites are timed if the user does not say."""
    from importlib.util import find_spec

    name = "onnx" if find_spec("onnxruntime") else "eager"
    typer.echo(f"Timing in {name}; --runtime names another.", err=True)
    return name


def time_sites(
    file: Path,
    found: dict[str, Any],
    runtime: str,
    threads: int,
    rounds: int,
    *,
    as_json: bool,
    output: Path | None,
) -> None:
    """Writes the latency table of a plan: `pdecnn condense --latency-table` takes it on another machine."""
    import torch

    from pdecnn.condensation.latency import measure_sites
    from pdecnn.condensation.plan import Plan
    from pdecnn.condensation.replacements import choice_of
    from pdecnn.condensation.search import CHOICES
    from pdecnn.shared.progress import choose_progress

    if len(found) != 1 or "," in runtime:
        raise typer.BadParameter("is for one model and one --runtime.", param_hint="--sites")
    (item,) = found.values()
    try:
        plan = Plan.load(file)
        plan.apply(item.model)  # a plan of another model is refused
        names = (*CHOICES, *map(choice_of, plan.runs))
        x = torch.randn(plan.input_shapes[0], generator=torch.Generator().manual_seed(0))
        with choose_progress() as progress:
            table = measure_sites(
                plan, item.model, x, runtime=runtime, replacements=names, num_threads=threads, rounds=rounds,
                progress=None if as_json else progress,
            )  # fmt: skip
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        fail(error)
    if output is not None:
        table.save(output)
    if as_json:
        typer.echo(json.dumps(table.to_dict()))
        return
    Console().print(table.shown())


def with_speedups(rows: "list[Row]") -> list[dict[str, Any]]:
    """The rows as dicts, each with how many times faster it is than the first of its batch size."""
    from pdecnn.deploy.bench import speedup

    first = {row.batch: row for row in reversed(rows)}
    return [{**row.to_dict(), "speedup": speedup(row, first[row.batch])} for row in rows]


def numbers(text: str, option: str) -> list[int]:
    """`"1,64"` -> `[1, 64]`."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise typer.BadParameter(f"expected positive numbers such as 1,64, got {text!r}.", param_hint=option)
    return values
