"""`pdecnn profile MODEL`: what a model costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.models import Factory, InputSize, ModelName, NumClasses, Weights, fail, open_named, size_of


@app.command("profile")
def command(
    model: ModelName,
    input_size: InputSize = None,
    num_classes: NumClasses = None,
    weights: Weights = None,
    factory: Factory = None,
    depth: Annotated[int, typer.Option(help="Levels of the module tree to print.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Also write one row per module to this file.")] = None,
) -> None:
    """Count parameters, multiply-adds (three conventions, labelled), bytes and depth for a batch of one."""
    import torch

    from pdecnn.analysis.cost import profile

    found = open_named(model, weights, num_classes, factory=factory)
    size = size_of(found, input_size)
    try:
        report = profile(found.model, torch.zeros(1, *size))
    except (RuntimeError, ValueError) as error:
        fail(ValueError(f"{model} does not run on an input of shape {size}: {error}. Give --input C,H,W."))
    if csv is not None:
        report.to_csv(csv)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
        return
    console = Console()
    console.print(report.table(depth))
    console.print(report.summary(), highlight=False, soft_wrap=True)
