"""What all commands share: how a model is named, and how an error ends a command."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from pdecnn.training.build import NamedModel
    from pdecnn.training.inputs import Input

GRAMMAR = "a registered name, timm:NAME, torchvision:NAME, hf-hub:NAME, module:function of yours, or a folder"

ModelName = Annotated[str, typer.Argument(help=f"The model: {GRAMMAR}.")]
Weights = Annotated[Path | None, typer.Option(help="File of weights to load into it: .pth or .safetensors.")]
NumClasses = Annotated[int | None, typer.Option(min=1, help="Number of classes; the model's own by default.")]
InputSize = Annotated[str | None, typer.Option("--input", help="Size of one input, C,H,W; the model's own by default.")]
Factory = Annotated[
    str | None, typer.Option("--model", help="module:function that makes the model of a folder, if it is your own.")
]
Mean = Annotated[str | None, typer.Option(help="Mean of each channel, such as 0.5,0.5,0.5; the model's by default.")]
Std = Annotated[str | None, typer.Option(help="Standard deviation of each channel.")]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="Start from timm's own weights.")]


def open_named(
    name: str,
    weights: Path | None = None,
    num_classes: int | None = None,
    *,
    pretrained: bool = False,
    factory: str | None = None,
    option: str = "--model",
) -> "NamedModel":
    """The model that the user named, or the end of the command; `option` is what gives `factory`."""
    from pdecnn.training.build import open_model

    try:
        return open_model(name, weights=weights, num_classes=num_classes, pretrained=pretrained, factory=factory)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        fail(error, option)


def input_for(found: "NamedModel", size: str | None, mean: str | None = None, std: str | None = None) -> "Input":
    """How the model wants its images: as the user says, as its checkpoint says, as timm's data config says."""
    from pdecnn.training.inputs import input_of

    given = parse_size(size) if size else None
    try:
        return input_of(
            found.model,
            found.config.get("input"),
            shape=given,
            mean=parse_numbers(mean, "--mean"),
            std=parse_numbers(std, "--std"),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--input") from error


def parse_size(text: str) -> tuple[int, ...]:
    """`"3,32,32"` -> `(3, 32, 32)`."""
    try:
        size = tuple(int(part) for part in text.split(","))
    except ValueError:
        size = ()
    if not size or min(size) < 1:
        raise typer.BadParameter(f"expected positive numbers such as 3,32,32, got {text!r}.", param_hint="--input")
    return size


def parse_numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """`"0.5,0.5"` -> `(0.5, 0.5)`."""
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected numbers such as 0.5,0.5,0.5, got {text!r}.", param_hint=option) from None


def fail(error: Exception, option: str = "--model") -> NoReturn:
    """Ends the command with the message of the error, and with the line to run where that is known."""
    from pdecnn.models.build import CustomModelError

    text = str(error).replace("--model ", f"{option} ") if isinstance(error, CustomModelError) else str(error)
    typer.echo(f"Error: {text}", err=True)
    if isinstance(error, CustomModelError):
        typer.echo(f"Run: {command_line(option, error.name)}", err=True)
    raise typer.Exit(1) from error


def command_line(*more: str) -> str:
    """The command that is running, as one would type it, with more arguments."""
    typed = sys.argv[1:]
    return shlex.join(["pdecnn", *typed, *(() if more and more[0] in typed else more)])


def size_of(found: "NamedModel", given: str | None) -> tuple[int, ...]:
    """`(C, H, W)` of one input; any number of sizes if the user gives them."""
    if given:
        return parse_size(given)
    saved: Any = found.config.get("input") or {}
    cfg: Any = getattr(found.model, "pretrained_cfg", None) or {}
    size = tuple(saved.get("shape") or cfg.get("input_size") or (3, 224, 224))
    return (int(getattr(found.model, "in_chans", size[0])), *size[1:])
