"""`pdecnn profile MODEL`: what a model costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.shared.names import close_to

if TYPE_CHECKING:
    from torch import nn


@app.command("profile")
def command(
    model: Annotated[str, typer.Argument(help="A model of the registry: one of ours, or any of timm's.")],
    input_size: Annotated[
        str | None, typer.Option("--input", help="Size of one input, C,H,W; the model's own by default.")
    ] = None,
    num_classes: Annotated[int | None, typer.Option(help="Number of classes; the model's own by default.")] = None,
    depth: Annotated[int, typer.Option(help="Levels of the module tree to print.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Also write one row per module to this file.")] = None,
) -> None:
    """Count parameters, multiply-adds (three conventions, labelled), bytes and depth for a batch of one."""
    import torch

    from pdecnn.analysis.cost import profile

    net = create(model, num_classes)
    size = parse_size(input_size) if input_size else _own_size(net)
    report = profile(net, torch.zeros(1, *size))
    if csv is not None:
        report.to_csv(csv)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
        return
    console = Console()
    console.print(report.table(depth))
    console.print(report.summary(), highlight=False, soft_wrap=True)


def create(name: str, num_classes: int | None = None, *, pretrained: bool = False) -> nn.Module:
    """A model of the registry by name, or a usage error that names the close ones."""
    import timm

    if not timm.is_model(name):
        hint = close_to(name, timm.list_models(), n=4, cutoff=0.5)
        raise typer.BadParameter(f"no model named {name!r}.{hint}", param_hint="MODEL")
    options = {} if num_classes is None else {"num_classes": num_classes}
    net: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    return net


def parse_size(text: str) -> tuple[int, ...]:
    """`"3,32,32"` -> `(3, 32, 32)`."""
    try:
        size = tuple(int(part) for part in text.split(","))
    except ValueError:
        size = ()
    if not size or min(size) < 1:
        raise typer.BadParameter(f"expected positive numbers such as 3,32,32, got {text!r}.", param_hint="--input")
    return size


def _own_size(net: nn.Module) -> tuple[int, ...]:
    cfg = getattr(net, "pretrained_cfg", None) or {}
    return tuple(cfg.get("input_size") or (3, 224, 224))
