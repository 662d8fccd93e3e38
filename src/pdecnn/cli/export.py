"""`pdecnn export CHECKPOINT|MODEL`: write a file for an edge runtime, run it and compare."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pdecnn.cli import app
from pdecnn.cli.profile import create, parse_size
from pdecnn.cli.train import fail

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pdecnn.deploy.api import ExportReport

CALIBRATION = 256  # training images


@app.command("export")
def command(
    model: Annotated[str, typer.Argument(help="A checkpoint or run folder, or the name of a model.")],
    output: Annotated[Path | None, typer.Option(help="The file; NAME.onnx here by default.")] = None,
    format: Annotated[str, typer.Option(help="onnx, pte (ExecuTorch) or pt2 (AOTInductor).")] = "onnx",
    ops: Annotated[str, typer.Option(help="portable: runs anywhere; fused: Global layers as one node.")] = "portable",
    int8: Annotated[bool, typer.Option("--int8", help="8-bit convolutions, calibrated on training images.")] = False,
    input_size: Annotated[str | None, typer.Option("--input", help="C,H,W; the model's own by default.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Images to compare on.")] = 64,
    data: Annotated[
        str, typer.Option(help="Dataset of the images to compare and calibrate on, best the one trained on.")
    ] = "fashion-mini",
    ode_steps: Annotated[
        int | None, typer.Option(min=1, help="Equal steps of rk4 in place of an adaptive ODE solver.")
    ] = None,
    teacher: Annotated[str | None, typer.Option(help="A model to time beside it, in the same runtime.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes to time; empty for none.")] = "1,64",
    opset: Annotated[int, typer.Option(help="Version of the ONNX operators.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Export a model; the command fails, and leaves no file, if the file does not compute what the model does."""
    from pdecnn.cli.bench import numbers
    from pdecnn.deploy.api import FORMATS, ExportWarning, export
    from pdecnn.deploy.images import real_images
    from pdecnn.deploy.ode import fix_steps

    sizes = numbers(batch, "--batch") if batch else []
    net, size = load(model, input_size)
    beside = (f"teacher {teacher}", load(teacher, None)[0]) if teacher else None
    target = output or Path(f"{Path(model).name}{FORMATS.get(format, '')}")
    try:
        images = real_images(size, samples, data=data)
        adaptive = net
        if ode_steps:
            net = fix_steps(net, ode_steps)
        calibration = real_images(size, CALIBRATION, split="train", data=data).split(32) if int8 else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ExportWarning)
            report = export(net, target, images, format=format, ops=ops, int8=calibration, opset=opset, check=images)
        rows = timings(model, net, images, report, beside, sizes) if sizes and format == "onnx" else []
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
    bits = f", 8-bit convolutions calibrated on {CALIBRATION} images of {data}" if report.int8 else ""
    typer.echo(f"{report.path}: {report.bytes / 1024:.0f} kB, {report.format}, {report.ops} ops{bits}.")
    typer.echo(
        f"Against the model on {agreement.samples} images: max error {agreement.max_error:.1e} of the largest output, "
        f"top-1 agreement {100 * agreement.top1:.1f} %."
    )
    if ode_steps:
        typer.echo(f"{ode_steps} steps of rk4 against the adaptive solver: {_against(adaptive, net, images)}.")
    if is_untrained(model):
        typer.echo(
            f"The weights of {model} are random: name a checkpoint folder, or a model with a tag, for trained ones."
        )
    if rows:
        Console().print(table(rows))


def load(model: str, input_size: str | None) -> tuple[nn.Module, tuple[int, ...]]:
    """A checkpoint's model or one of the registry, and the size of one input."""
    from pdecnn.training.checkpoint import load_checkpoint

    given = parse_size(input_size) if input_size else None
    if given and len(given) != 3:
        raise typer.BadParameter(f"expected three numbers C,H,W, got {input_size!r}.", param_hint="--input")
    try:
        folder = Path(model).is_dir()  # else a name, in which a tag names trained weights
        net = load_checkpoint(model).model if folder else create(model, pretrained="." in model)
    except (OSError, ValueError, RuntimeError) as error:
        fail(error)
    if given:
        return net.eval(), given
    cfg: Any = getattr(net, "pretrained_cfg", None) or {}
    size = tuple(cfg.get("input_size") or (3, 224, 224))
    return net.eval(), (int(getattr(net, "in_chans", size[0])), *size[1:])


def is_untrained(model: str) -> bool:
    """Whether `load` made the model from its name alone."""
    return not Path(model).is_dir() and "." not in model


def _against(adaptive: nn.Module, fixed: nn.Module, images: Tensor) -> str:
    import torch

    from pdecnn.deploy.check import compare
    from pdecnn.shared.modules import tensors_in

    with torch.no_grad():
        found = compare(tensors_in(adaptive(images)), tensors_in(fixed(images)))
    return f"max error {found.max_error:.1e} of the largest output, top-1 agreement {100 * found.top1:.1f} %"


def timings(
    name: str,
    net: nn.Module,
    images: Tensor,
    report: ExportReport,
    teacher: tuple[str, nn.Module] | None,
    sizes: list[int],
) -> list[dict[str, Any]]:
    """p50 and p90 on one thread: eager, `optimize_for_inference`, the file, its float twin (8 bits), the teacher's."""
    from pdecnn.deploy.bench import bench

    label = "onnx-int8" if report.int8 else "onnx-fused" if report.ops == "fused" else "onnx"
    runtimes = ("eager", "optimized", "onnx") if report.int8 else ("eager", "optimized")
    file = {label: (report.ops, Path(report.path))}
    rows = bench({name: (net, images)}, runtimes=runtimes, files=file, batches=sizes, max_seconds=5.0)
    if teacher:
        rows += bench({teacher[0]: (teacher[1], images)}, runtimes=("onnx",), batches=sizes, max_seconds=5.0)
    return [row.to_dict() for row in rows]


def table(rows: list[dict[str, Any]]) -> Table:
    """One line per model, runtime and batch."""
    out = Table(title=f"Latency, {rows[0]['threads']} thread(s)")
    for header in ("model", "runtime", "batch", "p50, ms", "p90, ms", "size, kB"):
        out.add_column(header, justify="left" if header in ("model", "runtime") else "right")
    for row in rows:
        figures = (f"{row['p50_ms']:.2f}", f"{row['p90_ms']:.2f}", f"{row['bytes'] / 1024:.0f}")
        out.add_row(row["model"], row["runtime"], str(row["batch"]), *figures)
    return out
