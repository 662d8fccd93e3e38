"""`pdecnn symmetry MODEL`: the symmetry group of each stage, and what can be done with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.models import fail, open_named

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pdecnn.training.build import NamedModel

Sparsify = Annotated[bool, typer.Option("--sparsify", help="Search the group for the sparsest weights.")]
Transform = Annotated[bool, typer.Option("--transform", help="Turn all stages by a random element of their group.")]
Verify = Annotated[bool, typer.Option("--verify", help="Compare outputs after a random group element.")]
Lift = Annotated[bool, typer.Option("--lift", help="Lift Equation (3) into the form with the full group.")]
Steps = Annotated[int, typer.Option(help="Steps of gradient descent of --sparsify; 0: closed form.")]
Size = Annotated[int | None, typer.Option(help="Side of the images; the model's own by default.")]
Classes = Annotated[int | None, typer.Option(help="Number of classes; the model's own by default.")]
Data = Annotated[str | None, typer.Option(help="Images to compare accuracy on, such as fashion-mini.")]
Output = Annotated[Path | None, typer.Option(help="Folder for the checkpoint of the new weights.")]


@app.command("symmetry")
def command(
    model: Annotated[str, typer.Argument(help="A hyperbolic model by name, or a checkpoint or run folder of one.")],
    verify: Verify = False,
    transform: Transform = False,
    sparsify: Sparsify = False,
    lift: Lift = False,
    steps: Steps = 0,
    output: Output = None,
    data: Data = None,
    size: Size = None,
    num_classes: Classes = None,
    seed: Annotated[int, typer.Option(help="Seed of images, group elements, and of weights that are random.")] = 0,
) -> None:
    """Print the group of channel mixings that leave the network unchanged, stage by stage, and why it is no larger.

    With --transform or --sparsify the new weights, which compute the same, can be saved with --output.
    """
    import torch

    from pdecnn import symmetry as toolkit

    if output is not None and not (transform or sparsify):
        raise typer.BadParameter("there are new weights only with --transform or --sparsify.", param_hint="--output")
    if transform and sparsify:
        raise typer.BadParameter("--transform and --sparsify both give new weights; choose one.")
    torch.manual_seed(seed)
    found = open_named(model, None, num_classes)
    trained = bool(found.weights)
    net = found.model if trained else randomised(found.model)
    console = Console()
    try:
        net = toolkit.lift_model(net) if lift else net
        print_groups(console, net)
    except TypeError as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from None
    console.print(f"weights: {found.weights}" if trained else "weights: random, none were trained for this name")
    side = size or net.default_cfg["input_size"][-1]  # type: ignore[index]
    x = torch.randn(1, net.in_chans, side, side)  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(seed)
    if verify:
        element = toolkit.random_transforms(net, generator)
        for dtype in (torch.float64, torch.float32):
            turned = toolkit.transform(net.to(dtype), element)
            error = toolkit.verify(net, turned, x, dtype)
            console.print(f"random group element, {str(dtype).split('.')[1]}: relative output error {error:.1e}")
        net.float()
    new: nn.Module | None = None
    if transform:
        new = toolkit.transform(net, toolkit.random_transforms(net, generator))
        console.print(f"transformed: relative output error {toolkit.verify(net, new, x, torch.float32):.1e}")
    if sparsify:
        new = sparse(console, net, steps, x)
    if new is not None and data is not None:
        compare(console, found, net, new.float(), data)
    if new is not None and output is not None:
        save(output, found, net, new.float(), lift)
        console.print(f"saved in {output}")


def print_groups(console: Console, net: nn.Module) -> None:
    """The table of the stages."""
    from pdecnn import symmetry as toolkit
    from pdecnn.shared.tables import make_table

    table = make_table("", ("stage", "group", "dimension", "generic zeros", "restricted by"), ())
    for stage, s in toolkit.symmetry_of(net).items():
        n = s.width
        table.add_row(str(stage), s.label, str(s.group.dimension(n)), str(s.group.generic_zeros(n)), s.reason)
    console.print(table)


def sparse(console: Console, net: nn.Module, steps: int, x: Tensor) -> nn.Module:
    """The sparsest equivalent network that was found."""
    import copy

    from pdecnn import symmetry as toolkit

    start = "closed_form" if steps == 0 else "identity"
    try:
        exact = copy.deepcopy(net).double()
        found = toolkit.sparsify(exact, steps=steps, start=start, polished=steps > 0, x=x.double())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="MODEL") from None
    console.print(str(found), soft_wrap=True)
    return found.model


def compare(console: Console, found: NamedModel, before: nn.Module, after: nn.Module, data: str) -> None:
    """Prints the accuracy of both networks."""
    from pdecnn.cli.models import input_for
    from pdecnn.training import evaluate
    from pdecnn.training.own import open_data

    try:
        loaders = open_data(data, input_for(found, None), batch_size=1)
    except (OSError, ValueError) as error:
        fail(error)
    if loaders.evaluation is None:
        raise typer.BadParameter(f"{data} has no evaluation images.", param_hint="--data")
    for name, net in (("before", before), ("after", after)):
        metrics = evaluate(net, loaders.evaluation, num_classes=loaders.num_classes)
        console.print(f"accuracy {name}: {metrics.accuracy:.2f} % ({metrics.correct} of {metrics.total})")


def save(folder: Path, found: NamedModel, net: nn.Module, new: nn.Module, lifted: bool) -> None:
    """A checkpoint of the new weights, which every command can open."""
    from pdecnn.training.checkpoint import save_checkpoint

    kwargs: dict[str, Any] = {**(found.description.get("kwargs") or {}), "folded": True}
    if lifted:
        kwargs |= {"equation": "lifted", "f": net.blocks()[0].f}  # type: ignore[operator]
    name = str(found.description["name"]).partition(".")[0]
    config = {**found.config, "model": {"builder": "timm", "name": name, "kwargs": kwargs}}
    try:
        save_checkpoint(folder, new, config)
    except OSError as error:
        fail(error)


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
