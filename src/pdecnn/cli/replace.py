"""`pdecnn replace MODEL`: swap the convolutions of a model for low-cost ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from pdecnn.cli import app
from pdecnn.cli.models import InputSize, ModelName, NumClasses, Pretrained, Weights, fail, open_named, size_of

Kind = Annotated[str, typer.Option(help="linearmix (depth-wise + 1x1) or depthwise.")]
Only = Annotated[str | None, typer.Option(help="Regular expression: swap only convolutions whose name it matches.")]
Random = Annotated[bool, typer.Option("--random", help="New weights at random, not fitted to the old ones.")]
Output = Annotated[
    Path | None, typer.Option(help="Folder for the checkpoint; `pdecnn train --model FOLDER` trains it.")
]


@app.command("replace")
def command(
    model: ModelName,
    kind: Kind = "linearmix",
    only: Only = None,
    random: Random = False,
    output: Output = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    pretrained: Pretrained = False,
    input_size: InputSize = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Swap every eligible convolution for a low-cost one; print what was swapped, what not and why, and the costs."""
    import torch

    from pdecnn.analysis.cost import profile
    from pdecnn.condensation.convs import KINDS, replace_convs
    from pdecnn.condensation.replaced import save_replaced

    if kind not in KINDS:
        raise typer.BadParameter(f"expected one of {', '.join(KINDS)}, got {kind!r}.", param_hint="--kind")
    try:
        pattern = re.compile(only or "")
    except re.error as error:
        raise typer.BadParameter(f"not a regular expression: {error}.", param_hint="--only") from None
    found = open_named(model, weights, num_classes, pretrained=pretrained)
    try:
        new, report = replace_convs(found.model, kind, fit=not random, only=lambda name, _: bool(pattern.search(name)))
        x = torch.zeros(1, *size_of(found, input_size))
        costs = {name: profile(net, x) for name, net in (("before", found.model), ("after", new))}
        if output is not None:
            save_replaced(output, new, report, found.description, found.config)
    except (OSError, ValueError, RuntimeError) as error:
        fail(error)
    numbers = {name: {"params": cost.params, "macs": cost.exact} for name, cost in costs.items()}
    if as_json:
        rows = [{**vars(row), "swapped": row.swapped} for row in report.rows]
        typer.echo(json.dumps({"kind": kind, **numbers, "convolutions": rows}, indent=2))
        return
    typer.echo(str(report))
    for what in ("params", "macs"):
        before, after = (numbers[name][what] for name in ("before", "after"))
        typer.echo(f"{what}: {before:,} -> {after:,} ({before / max(after, 1):.2f}x)")
    if output is not None:
        typer.echo(f"saved in {output}")
