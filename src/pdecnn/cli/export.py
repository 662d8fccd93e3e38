"""`pdecnn export CHECKPOINT|MODEL`: write a file for an edge runtime, run it and compare."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.models import (
    Factory,
    InputSize,
    Mean,
    ModelName,
    NumClasses,
    Std,
    Weights,
    fail,
    input_for,
    open_named,
    size_of,
)

if TYPE_CHECKING:
    import torch
    from rich.table import Table
    from torch import nn

    from pdecnn.deploy.api import ExportReport
    from pdecnn.shared.progress import ProgressCallback
    from pdecnn.training.build import NamedModel
    from pdecnn.training.inputs import Input

CALIBRATION = 256  # training images
OPEN = "open"  # for --K


@app.command("export")
def command(
    model: ModelName,
    output: Annotated[Path | None, typer.Option(help="The file; NAME.onnx here by default.")] = None,
    format: Annotated[str, typer.Option(help="onnx, c (one C99 file), pte (ExecuTorch), pt2 (AOTInductor).")] = "onnx",
    ops: Annotated[str, typer.Option(help="portable: runs anywhere; fused: Global layers as one node.")] = "portable",
    int8: Annotated[bool, typer.Option("--int8", help="8 bits (onnx, c), calibrated on training images.")] = False,
    input_size: InputSize = None,
    num_classes: NumClasses = None,
    weights: Weights = None,
    factory: Factory = None,
    mean: Mean = None,
    std: Std = None,
    samples: Annotated[int, typer.Option(min=1, help="Images to compare on.")] = 64,
    data: Annotated[
        str, typer.Option(help="Images to compare and calibrate on, best those trained on: a folder or a dataset.")
    ] = "fashion-mini",
    ode_steps: Annotated[
        int | None, typer.Option(min=1, help="Equal steps of rk4 in place of an adaptive ODE solver.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--K", help="Time steps of the file; open: an input K of it (fused ONNX).")
    ] = None,
    teacher: Annotated[str | None, typer.Option(help="A model to time beside it, in the same runtime.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes to time; empty for none.")] = "1,64",
    opset: Annotated[int, typer.Option(help="Version of the ONNX operators.")] = 20,
    dynamic: Annotated[
        str, typer.Option(help="Sizes that stay free: batch, size (also height and width), nothing.")
    ] = "batch",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Export a model; the command fails, and leaves no file, if the file does not compute what the model does."""
    from pdecnn.cli.bench import numbers
    from pdecnn.deploy.api import FORMATS, ExportWarning, export
    from pdecnn.deploy.ode import fix_steps
    from pdecnn.shared.progress import begin, showing

    sizes = numbers(batch, "--batch") if batch else []
    found = open_named(model, weights, num_classes, factory=factory)
    net, size = found.model, size_of(found, input_size)
    if len(size) != 3:
        raise typer.BadParameter(f"expected three numbers C,H,W, got {input_size!r}.", param_hint="--input")
    beside = (f"teacher {teacher}", open_named(teacher, factory=factory).model) if teacher else None
    target = output or Path(f"{Path(model.rpartition(':')[2]).name}{FORMATS.get(format, '')}")
    wanted = input_for(found, ",".join(map(str, size)), mean, std)
    try:
        with showing(not as_json) as progress:
            done = begin(progress, "reading images", 1)
            images = some_images(data, wanted, samples)
            calibration = some_images(data, wanted, CALIBRATION, split="train").split(32) if int8 else None
            done()
            if steps not in (None, OPEN):
                fix_K(net, steps)
            adaptive = net
            if ode_steps:
                net = fix_steps(net, ode_steps)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", ExportWarning)
                report = export(
                    net, target, images, format=format, ops=ops, int8=calibration, opset=opset, dynamic=dynamic,
                    metadata=notes(found, wanted) if format in ("onnx", "c") else None, open_steps=steps == OPEN,
                    progress=progress or False,
                )  # fmt: skip
            timed = sizes if format in ("onnx", "c") and steps != OPEN else []
            rows = timings(model, net, images, report, beside, timed, progress or False)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        fail(error)
    for warning in caught:
        if issubclass(warning.category, ExportWarning):
            typer.echo(f"Warning: {warning.message}", err=True)
    if as_json:
        typer.echo(json.dumps({**report.to_dict(), "latency": rows}))
        return
    agreement = report.agreement
    assert agreement is not None
    kind = "C99" if report.format == "c" else f"{report.format}, {report.ops} ops"
    bits = f", 8 bits calibrated on {CALIBRATION} images of {data}" if report.int8 else ""
    typer.echo(f"{report.path}: {report.bytes / 1024:.0f} kB, {kind}{bits}.")
    if report.format == "c":
        typer.echo(f"Its functions are declared in {Path(report.beside[0]).name}; it needs no library.")
    elif report.beside:
        needs = " and ".join(Path(file).name for file in report.beside)
        typer.echo(f"It needs {needs} beside it; pdecnn is not needed to run it.")
    typer.echo(
        f"Against the model on {agreement.samples} images: max error {agreement.max_error:.1e} of the largest output, "
        f"top-1 agreement {100 * agreement.top1:.1f} %."
    )
    if ode_steps:
        typer.echo(f"{ode_steps} steps of rk4 against the adaptive solver: {_against(adaptive, net, images)}.")
    if not found.weights and found.description["builder"] != "custom":
        typer.echo(f"The weights of {model} are random: give --weights, a folder, or a model with a tag.")
    if report.footprint and report.int8:
        left = ", ".join(layer.name for layer in report.footprint.layers if layer.arithmetic == "float")
        typer.echo(f"In float: {left or 'nothing but the input and the output'}.")
    if report.footprint:
        Console().print(report.footprint.shown())
    if rows:
        Console().print(table(rows))


def fix_K(net: nn.Module, text: str) -> None:  # noqa: N802  (as the option is named)
    """Sets the time steps of all layers."""
    from pdecnn.layers import set_steps

    if not text.isdigit():
        raise typer.BadParameter(f"expected a number of time steps or {OPEN}, got {text!r}.", param_hint="--K")
    if set_steps(net, int(text)) == 0:
        raise ValueError(f"export: {type(net).__name__} has no layer with K time steps; leave --K out.")


def notes(found: NamedModel, wanted: Input) -> dict[str, Any]:
    """What the file says of itself: how it wants its images, and the classes if the checkpoint knows them."""
    return {"classes": found.config.get("classes"), "input": wanted.to_dict()}


def some_images(data: str, wanted: Any, count: int, split: str = "test") -> torch.Tensor:
    """Images of a folder as the model wants them, or of a dataset, resized."""
    import torch

    from pdecnn.deploy.images import real_images
    from pdecnn.training.own import open_data

    if not Path(data).is_dir():
        return real_images(wanted.shape, count, split=split, data=data)
    loaders = open_data(data, wanted, batch_size=1)
    parts: list[torch.Tensor] = []
    have = 0
    for x, _ in (loaders.plain if split == "train" else loaders.evaluation) or ():
        parts, have = [*parts, x], have + len(x)
        if have >= count:
            break
    return torch.cat(parts)[:count]


def _against(adaptive: nn.Module, fixed: nn.Module, images: torch.Tensor) -> str:
    import torch

    from pdecnn.deploy.check import compare
    from pdecnn.shared.modules import tensors_in

    with torch.no_grad():
        found = compare(tensors_in(adaptive(images)), tensors_in(fixed(images)))
    return f"max error {found.max_error:.1e} of the largest output, top-1 agreement {100 * found.top1:.1f} %"


def timings(
    name: str,
    net: nn.Module,
    images: torch.Tensor,
    report: ExportReport,
    teacher: tuple[str, nn.Module] | None,
    sizes: list[int],
    progress: ProgressCallback | bool = False,
) -> list[dict[str, Any]]:
    """p50 and p90 on one thread: eager, `optimize_for_inference`, the file, its float twin (8 bits), the teacher's."""
    from pdecnn.deploy.bench import bench

    if not sizes:
        return []
    label = "onnx-int8" if report.int8 else "onnx-fused" if report.ops == "fused" else "onnx"
    runtimes = ("eager", "optimized", "onnx") if report.int8 else ("eager", "optimized")
    file = {label: (report.ops, Path(report.path))}
    if report.format == "c":
        runtimes, file = ("eager", "optimized", "c", *(["c-int8"] if report.int8 else [])), {}
    settings: dict[str, Any] = {"batches": sizes, "max_seconds": 5.0, "progress": progress}
    rows = bench({name: (net, images)}, runtimes=runtimes, files=file, **settings)
    if teacher:
        rows += bench({teacher[0]: (teacher[1], images)}, runtimes=("onnx",), **settings)
    return [row.to_dict() for row in rows]


def table(rows: list[dict[str, Any]]) -> Table:
    """One line per model, runtime and batch."""
    from pdecnn.shared.tables import make_table, short

    faster = ("times\nfaster",) if "speedup" in rows[0] else ()
    numbers = ("batch", "p50, ms", "p90, ms", "bytes", *faster)
    out = make_table(f"Latency, {rows[0]['threads']} thread(s)", ("model", "runtime"), numbers)
    for row in rows:
        figures = [f"{row['p50_ms']:.2f}", f"{row['p90_ms']:.2f}", short(row["bytes"])]
        figures += [f"{row['speedup']:.2f}"] if faster else []
        out.add_row(row["model"], row["runtime"], str(row["batch"]), *figures)
    return out
