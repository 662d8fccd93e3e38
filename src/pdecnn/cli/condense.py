"""`pdecnn condense`: a shallower model from a CNN; without arguments, the whole way on the embedded data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.profile import parse_size

if TYPE_CHECKING:
    from torch import nn

INTERRUPTED = 130  # 128 + SIGINT


@app.command("condense")
def command(
    model: Annotated[
        str | None,
        typer.Argument(help="timm:NAME, torchvision:NAME, or module:function of yours; none: the embedded example."),
    ] = None,
    input_size: Annotated[str | None, typer.Option("--input", help="Size of one input, C,H,W.")] = None,
    keep: Annotated[int, typer.Option(min=1, help="Blocks that stay in each run.")] = 1,
    steps: Annotated[int, typer.Option("--K", "-K", min=1, help="Time steps of the Global layers.")] = 5,
    init: Annotated[str, typer.Option(help="First guess of the Global layers: identity or block.")] = "identity",
    ignore: Annotated[list[str] | None, typer.Option(help="Leave a run alone: a path or regular expression.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Condense these runs only.")] = None,
    budget: Annotated[
        list[str] | None, typer.Option(help="A bound: params=50%, macs=1e8 or latency_ms=12; may be repeated.")
    ] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Start from timm's own weights.")] = False,
    train_teacher: Annotated[bool, typer.Option("--train-teacher", help="Example: train the teacher anew.")] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Example: epochs of distillation.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Example: seed of the student.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Folder for what is made [runs/condense].")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replace runs of repeated blocks by Global layers.

    Without MODEL: on the images that ship in the package, load a teacher, condense it, recover its accuracy by
    distillation and compare both; about two minutes on two cores.
    """
    import torch

    if model is None and (input_size or pretrained):
        given = "--input" if input_size else "--pretrained"
        raise typer.BadParameter("is for a MODEL; the embedded example has its own.", param_hint=given)
    if model is not None and train_teacher:
        raise typer.BadParameter("is for the embedded example, without MODEL.", param_hint="--train-teacher")
    if threads:
        torch.set_num_threads(threads)
    options: dict[str, Any] = {
        "keep": keep,
        "K": steps,
        "init": init,
        "ignore": ignore or [],
        "only": only or [],
        "budget": parse_budgets(budget or []),
    }
    folder = output or Path("runs/condense")
    try:
        if model is None:
            run_example(folder, options, epochs, seed, train_teacher, dry_run, as_json)
        else:
            condense_one(model, input_size, pretrained, folder, options, dry_run, as_json)
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. What was finished is in {folder}.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:  # a RuntimeError by its class
        raise
    except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error


def run_example(
    folder: Path, options: dict[str, Any], epochs: int, seed: int, train_teacher: bool, dry_run: bool, as_json: bool
) -> None:
    """The main job."""
    from pdecnn.condensation.compare import comparison_table
    from pdecnn.condensation.job import StoppedError, run_job
    from pdecnn.condensation.progress import choose_progress
    from pdecnn.training.progress import Reporter, choose_reporter
    from pdecnn.viz import write_report

    if dry_run:
        condense_one("timm:fashion_resnet32", "1,28,28", False, folder, options, True, as_json)
        return
    say = (lambda text: None) if as_json else (lambda text: typer.echo(text, err=True))
    try:
        with choose_progress() as progress:
            result = run_job(
                folder,
                epochs=epochs,
                seed=seed,
                train_teacher=train_teacher,
                plan_options=options,
                say=say,
                progress=None if as_json else progress,
                reporter=Reporter if as_json else choose_reporter,
            )
    except StoppedError as error:
        typer.echo(f"Interrupted: {error}.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    write_report(result, folder / "report.html")
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
        return
    console = Console()
    console.print(result.plan)
    more = result.onnx.rows() if result.onnx else []
    console.print(comparison_table(result.before, result.after, result.speedups, "On the embedded images", more))
    for line in (*(result.onnx.lines() if result.onnx else ()), *result.notes):
        typer.echo(line)
    files = "Plan, checkpoints, student.onnx and report.html" if result.onnx else "Plan, checkpoints and report.html"
    typer.echo(f"{result.seconds:.0f} s. {files} are in {folder}.")


def condense_one(
    name: str,
    input_size: str | None,
    pretrained: bool,
    folder: Path,
    options: dict[str, Any],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Plans a model of the user's and, unless it is a dry run, writes what comes out."""
    import torch

    from pdecnn.condensation import condense, plan, save_condensed
    from pdecnn.condensation.progress import choose_progress

    net = make_model(name, pretrained)
    size = parse_size(input_size) if input_size else _own_size(net)
    x = torch.randn(1, *size, generator=torch.Generator().manual_seed(0))
    console = Console()
    if dry_run:
        with choose_progress() as progress:
            made = plan(net, x, **options, progress=None if as_json else progress)
        if as_json:
            typer.echo(json.dumps(made.to_dict()))
        else:
            console.print(made)
        return
    with choose_progress() as progress:
        small, report = condense(net, x, **options, progress=None if as_json else progress)
    folder.mkdir(parents=True, exist_ok=True)
    report.plan.save(folder / "plan.json")
    saved = report.plan.base is not None
    if saved:
        save_condensed(folder / "student", small)
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
        return
    console.print(report)
    left = "plan.json and student/" if saved else "plan.json (replay it with Plan.load on a fresh model)"
    typer.echo(f"{left} are in {folder}. The Global layers are not trained yet: pdecnn.distill recovers the accuracy.")


def make_model(name: str, pretrained: bool) -> nn.Module:
    """The model that the user named, or a ValueError with close names."""
    from pdecnn.training.build import build_model

    home, _, rest = name.partition(":")
    if home == "torchvision":
        import pdecnn.condensation  # noqa: F401  (knows how to build them)

        return build_model({"builder": "torchvision", "name": rest}, pretrained=pretrained)
    if home == "timm" or not rest:
        return build_model({"name": rest or home}, pretrained=pretrained)
    if pretrained:
        raise ValueError(f"condense: --pretrained is for models of timm; let {name} load its weights itself.")
    return _make_own(name)


def _make_own(name: str) -> nn.Module:
    """What the user's `module:function` gives."""
    from torch import nn

    from pdecnn.training.build import import_factory

    try:
        factory = import_factory(name)
        net = factory if isinstance(factory, nn.Module) else factory()
    except ModuleNotFoundError as error:
        home = name.partition(":")[0]
        raise ValueError(
            f"condense: cannot import {home!r}: {error}. Expected timm:NAME or module:function."
        ) from error
    except TypeError as error:
        raise ValueError(f"condense: {name} does not work without arguments: {error}.") from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"condense: {name} gave a {type(net).__name__}, expected a torch.nn.Module.")
    return net


def parse_budgets(texts: list[str]) -> dict[str, str | float]:
    """`["params=50%"]` -> `{"params": "50%"}`."""
    budget: dict[str, str | float] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise typer.BadParameter(f"expected such as params=50%, got {text!r}.", param_hint="--budget")
        budget[key.strip()] = value.strip()
    return budget


def _own_size(net: nn.Module) -> tuple[int, ...]:
    cfg = getattr(net, "pretrained_cfg", None) or {}
    return tuple(cfg.get("input_size") or (3, 224, 224))
