"""`pdecnn symmetry MODEL`: the symmetry group of each stage, and what can be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.models import open_named

if TYPE_CHECKING:
    from torch import nn


@app.command("symmetry")
def command(
    model: Annotated[str, typer.Argument(help="A hyperbolic model of the registry, such as hyperbolic50_cp.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compare outputs after a random group element.")] = False,
    sparsify: Annotated[bool, typer.Option("--sparsify", help="Search the group for the sparsest weights.")] = False,
    lift: Annotated[bool, typer.Option("--lift", help="Lift Equation (3) into the form with the full group.")] = False,
    steps: Annotated[int, typer.Option(help="Steps of gradient descent of --sparsify; 0: closed form.")] = 0,
    size: Annotated[int | None, typer.Option(help="Side of the images; the model's own by default.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="Number of classes; the model's own by default.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, images and group elements.")] = 0,
) -> None:
    """Print the group of channel mixings that leave the network unchanged, stage by stage, and why it is no larger."""
    import torch

    from pdecnn import symmetry as toolkit
    from pdecnn.shared.tables import make_table

    torch.manual_seed(seed)
    net = randomised(open_named(model, None, num_classes).model)
    console = Console()
    try:
        net = toolkit.lift_model(net) if lift else net
        groups = toolkit.symmetry_of(net)
    except TypeError as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from None
    table = make_table("", ("stage", "group", "dimension", "generic zeros", "restricted by"), ())
    for stage, s in groups.items():
        n = s.width
        table.add_row(str(stage), s.label, str(s.group.dimension(n)), str(s.group.generic_zeros(n)), s.reason)
    console.print(table)
    side = size or net.default_cfg["input_size"][-1]  # type: ignore[index]
    x = torch.randn(1, net.in_chans, side, side)  # type: ignore[call-overload]
    if verify:
        generator = torch.Generator().manual_seed(seed)
        for dtype in (torch.float64, torch.float32):
            turned = toolkit.transform(net.to(dtype), toolkit.random_transforms(net, generator))
            error = toolkit.verify(net, turned, x, dtype)
            console.print(f"random group element, {str(dtype).split('.')[1]}: relative output error {error:.1e}")
    if sparsify:
        try:
            start = "closed_form" if steps == 0 else "identity"
            found = toolkit.sparsify(net.double(), steps=steps, start=start, polished=steps > 0, x=x.double())
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="MODEL") from None
        console.print(str(found), soft_wrap=True)


def randomised(net: nn.Module) -> nn.Module:
    """The network in inference mode with random norms: at its start every block is its skip, which shows nothing."""
    from torch import nn

    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.2, 0.6)
            nn.init.normal_(module.bias, std=0.1)
    return net.eval()
