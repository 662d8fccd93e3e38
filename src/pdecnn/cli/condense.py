"""`pdecnn condense`: a smaller model from a CNN, on images of your own; without arguments, the embedded example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pdecnn.cli import app
from pdecnn.cli.models import (
    GRAMMAR,
    Factory,
    InputSize,
    Mean,
    NumClasses,
    Pretrained,
    Std,
    Weights,
    command_line,
    fail,
    input_for,
    open_named,
    size_of,
)

if TYPE_CHECKING:
    from torch import nn

    from pdecnn.condensation.job import JobResult
    from pdecnn.training.loaders import Loaders

INTERRUPTED = 130  # 128 + SIGINT
OF_JOBS = {  # without --data they would do nothing
    "served": ("--steps", "is for jobs with --data: a net learns to serve every K."),
    "override": ("-o", "is for jobs with --data, which distil."),
    "resume": ("--resume", "is for jobs with --data; there is nothing to continue."),
    "runtime": ("--runtime", "is for jobs with --data; without, latency_ms is measured in eager PyTorch."),
    "latency_table": ("--latency-table", "is for jobs with --data, which search for a plan."),
    "null": ("--null", "is for jobs with --data, which distil."),
}
KEPT = (  # what decides a job, for --resume alone
    "model", "weights", "num_classes", "input_size", "mean", "std", "pretrained", "factory", "data", "batch_size",
    "workers", "keep", "replacement", "steps", "width", "inner", "init", "ignore", "only", "budget", "runtime",
    "latency_table", "null", "train_teacher", "epochs", "lr", "seed", "served", "override",
)  # fmt: skip


@app.command("condense")
def command(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help=f"The model: {GRAMMAR}; none: the embedded example, or the job to resume.")
    ] = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    data: Annotated[
        str | None,
        typer.Option(help="Images: a folder (train/CLASS/*, val/CLASS/*), a dataset, or what timm reads (hfds/...)."),
    ] = None,
    input_size: InputSize = None,
    mean: Mean = None,
    std: Std = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Blocks that stay in each run; 1, in the example 2.")] = None,
    replacement: Annotated[
        str | None,
        typer.Option(help="What replaces the others: pde (default), paper, separable, depthwise, nothing."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--K", "-K", min=1, help="Time steps; pde: 3 (example: 1), paper: 5.")
    ] = None,
    served: Annotated[
        str | None, typer.Option("--steps", help="One net for every K of a range, such as 1-10; see validate --K.")
    ] = None,
    width: Annotated[
        float | None, typer.Option(help="Share of channels that stay, such as 0.75, by Torch-Pruning (extra prune).")
    ] = None,
    inner: Annotated[
        float | None, typer.Option(help="Share that stays of channels that one layer alone reads (extra prune).")
    ] = None,
    init: Annotated[str, typer.Option(help="First guess of the paper's layers: identity or block.")] = "identity",
    ignore: Annotated[list[str] | None, typer.Option(help="Leave a run alone: a path or regular expression.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Condense these runs only.")] = None,
    budget: Annotated[
        list[str] | None, typer.Option(help="params=50%, macs=1e8, latency_ms=12 (may be repeated), or accuracy=-0.5.")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(help="Where latency_ms counts: eager, optimized (default), compile, onnx[-fused|-int8], c."),
    ] = None,
    latency_table: Annotated[
        Path | None, typer.Option(help="Milliseconds measured elsewhere, by pdecnn bench --sites.")
    ] = None,
    null: Annotated[
        bool, typer.Option("--null", help="Also distil the net without its new layers, to know their worth.")
    ] = False,
    pretrained: Pretrained = False,
    factory: Factory = None,
    train_teacher: Annotated[bool, typer.Option("--train-teacher", help="Example: train the teacher anew.")] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of distillation.")] = 10,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step.")] = 64,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of blocks that stay, 0.005 by default; new layers: ten times it."),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("-o", help="Change a setting of the distillation: key=value, such as precision=bf16."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes that read images.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the student, of order and augmentation.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for what is made.")] = Path("runs/condense"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue the job in the output folder.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replace runs of repeated blocks by Global layers.

    With --data: plan, fit without labels, distil, compare, and write plan, checkpoints, ONNX file and report.html. The
    job survives any end: --resume continues it. Without --data the new layers stay untrained. Without MODEL: the same
    on a network and images that ship in the package, in about two minutes on two cores.
    """
    import torch

    from pdecnn.training import keep_memory

    given = dict(context.params)
    if resume and model is None and (output / "job.json").is_file():
        given = {**given, **recorded(output)}
    _check_use(given)
    if threads:
        torch.set_num_threads(threads)
    try:
        keep_memory()
        if given["model"] is None and dry_run:
            net = {"model": "fashion_resnet32", "input_size": "1,28,28"}
            plan_only({**given, **net}, options_of_the_example(given))
        elif given["model"] is not None and (dry_run or given["data"] is None):
            plan_only(given, plan_options(given))
        else:
            run(given)
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. What was finished is in {output}. Continue with:", err=True)
        typer.echo(command_line("--resume"), err=True)
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:  # a RuntimeError by its class
        raise
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        fail(error)


def recorded(folder: Path) -> dict[str, Any]:
    """What the job in a folder was started with; code of the user's is not run on the word of a file."""
    from pdecnn.condensation.stages import read_job
    from pdecnn.models.build import name_to_description
    from pdecnn.training.build import find_folder

    found: dict[str, Any] = read_job(folder).get("arguments") or {}
    name = found.get("model")
    if name and not find_folder(name) and name_to_description(name)["builder"] == "custom":
        typer.echo(f"Error: the model of this job is made by your own code, {name}: name it again.", err=True)
        typer.echo(f"Run: pdecnn condense {name} {command_line().partition('condense ')[2]}", err=True)
        raise typer.Exit(1)
    for name in ("weights", "latency_table"):
        found[name] = found.get(name) and Path(found[name])
    return found


def _check_use(given: dict[str, Any]) -> None:
    """Options that make no sense together."""
    if given["model"] is None:
        for name in ("input_size", "pretrained", "weights", "num_classes", "data"):
            if given[name]:
                option = "--input" if name == "input_size" else f"--{name.replace('_', '-')}"
                raise typer.BadParameter("is for a MODEL; the embedded example has its own.", param_hint=option)
    elif given["train_teacher"]:
        raise typer.BadParameter("is for the embedded example, without MODEL.", param_hint="--train-teacher")
    elif given["data"] is None:
        _check_without_images(given)
    if given["dry_run"] and given["budget"] and (given["data"] or given["model"] is None):
        raise typer.BadParameter(
            "cannot say what a budget leads to: with images that is measured and searched for. Leave out --budget (or "
            "plan MODEL without --data), or run the job, which writes plan.json.",
            param_hint="--dry-run",
        )


def _check_without_images(given: dict[str, Any]) -> None:
    """Options that only a job on images has a use for."""
    for name, (option, why) in OF_JOBS.items():
        if given[name]:
            raise typer.BadParameter(why, param_hint=option)
    if "accuracy" in parse_budgets(list(given["budget"] or [])):
        raise typer.BadParameter("accuracy=... needs --data: images to measure it on.", param_hint="--budget")


def plan_options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of `plan`."""
    lists = {name: list(given[name] or []) for name in ("ignore", "only")}
    budget = parse_budgets(list(given["budget"] or []))
    names = ("keep", "replacement", "steps", "width", "inner", "init")
    wishes = {"K" if name == "steps" else name: given[name] for name in names if given[name] is not None}
    return {**wishes, **lists, "budget": budget}


def options_of_the_example(given: dict[str, Any]) -> dict[str, Any]:
    """The options of `plan`, with what is best for the embedded example where the user does not say."""
    from pdecnn.condensation.example import PLAN
    from pdecnn.condensation.replacements import PDE

    options = plan_options(given)
    return {**PLAN, **options} if given["replacement"] in (None, PDE) and not options["budget"] else options


def run(given: dict[str, Any]) -> None:
    """The whole job."""
    from pdecnn.condensation.example import PRESET
    from pdecnn.condensation.job import run_job
    from pdecnn.condensation.stages import StoppedError
    from pdecnn.shared.progress import choose_progress
    from pdecnn.training.processes import Processes
    from pdecnn.training.progress import Reporter, choose_reporter
    from pdecnn.training.recipe import assign

    folder, quiet = given["output"], given["as_json"]
    further, rates = parse_steps(given["served"]), {}
    further |= {"recipe": assign({}, given["override"])} if given["override"] else {}
    try:
        if given["model"] is None:
            rates = dict(PRESET)
            options = options_of_the_example(given)
            teacher, loaders = the_example(given)
        else:
            teacher, loaders, base = the_users(given)
            options = plan_options(given) | ({"base": base} if base else {})
        rates |= {"lr": given["lr"]} if given["lr"] else {}
        arguments = {name: given[name] for name in KEPT}
        arguments |= {name: arguments[name] and str(arguments[name]) for name in ("weights", "latency_table")}
        with choose_progress() as progress:
            _, result = run_job(
                folder, teacher, loaders, epochs=given["epochs"], seed=given["seed"], plan_options=options,
                runtime=given["runtime"], latency_table=given["latency_table"], null=given["null"],
                resume=given["resume"], arguments=arguments, say=_say(quiet), progress=None if quiet else progress,
                reporter=Reporter if quiet else choose_reporter, distill_options=further, **rates,
            )  # fmt: skip
    except StoppedError as error:
        typer.echo(f"Interrupted: {error}. Continue with:\n{command_line('--resume')}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if not Processes().is_first:
        return
    if quiet:
        typer.echo(json.dumps(result.to_dict()))
        return
    show(result)


def _say(quiet: bool) -> Any:
    """Says a line; of several processes the first alone does."""
    from pdecnn.training.processes import process

    return (lambda text: None) if quiet or process()[0] else (lambda text: typer.echo(text, err=True))


def the_example(given: dict[str, Any]) -> tuple[nn.Module, Loaders]:
    """The embedded network and images."""
    from pdecnn.condensation.example import example
    from pdecnn.training.progress import Reporter, choose_reporter

    quiet, folder = given["as_json"], given["output"]
    reporter = Reporter if quiet else choose_reporter
    teacher = given["train_teacher"]
    return example(folder, seed=given["seed"], train_teacher=teacher, say=_say(quiet), reporter=reporter)


def the_users(given: dict[str, Any]) -> tuple[nn.Module, Loaders, dict[str, Any] | None]:
    """The model and images that the user named, and how to build the model if no registry can."""
    from pdecnn.training.own import open_data

    say = _say(given["as_json"])
    found = open_named(
        given["model"],
        given["weights"],
        given["num_classes"],
        pretrained=given["pretrained"],
        factory=given["factory"],
    )
    if found.weights:
        say(f"weights: {found.weights}")
    elif found.description["builder"] != "custom":
        say(f"Warning: the weights of {given['model']} are random; give --weights or --pretrained for trained ones.")
    wanted = input_for(found, given["input_size"], given["mean"], given["std"])
    loaders = open_data(
        given["data"], wanted, batch_size=given["batch_size"], seed=given["seed"], workers=given["workers"]
    )
    if loaders.note:
        say(loaders.note)
    base = found.description if found.description["builder"] == "custom" else None
    return found.model, loaders, base


def show(result: JobResult) -> None:
    """The plan, the table and where everything is."""
    from pdecnn.condensation.report import worse_lines

    console = Console()
    console.print(result.plan)
    console.print(result.table())
    for line in (*worse_lines(result.worse), *(result.onnx.lines() if result.onnx else ()), *result.notes):
        typer.echo(line)
    files = "Plan, checkpoints, student.onnx and report.html" if result.onnx else "Plan, checkpoints and report.html"
    typer.echo(f"{result.seconds:.0f} s. {files} are in {result.folder}.")


def plan_only(given: dict[str, Any], options: dict[str, Any]) -> None:
    """Plans a model and, unless it is a dry run, writes what comes out, untrained."""
    import torch

    from pdecnn.condensation import condense, plan
    from pdecnn.condensation.saved import save
    from pdecnn.condensation.stages import check_free
    from pdecnn.shared.progress import choose_progress

    as_json, folder = given["as_json"], given["output"]
    if not given["dry_run"]:
        check_free(folder)
    found = open_named(
        given["model"],
        given["weights"],
        given["num_classes"],
        pretrained=given["pretrained"],
        factory=given["factory"],
    )
    if found.description["builder"] == "custom":
        options["base"] = found.description
    x = torch.randn(1, *size_of(found, given["input_size"]), generator=torch.Generator().manual_seed(0))
    console = Console()
    with choose_progress() as progress:
        shown = None if as_json else progress
        if given["dry_run"]:
            made = plan(found.model, x, **options, progress=shown)
        else:
            small, report = condense(found.model, x, **options, progress=shown, quiet=as_json)
    if given["dry_run"]:
        if as_json:
            typer.echo(json.dumps(made.to_dict()))
        else:
            console.print(made)
        return
    folder.mkdir(parents=True, exist_ok=True)
    report.plan.save(folder / "plan.json")
    save(small, folder / "student")
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
        return
    console.print(report)
    typer.echo(f"plan.json and student/ are in {folder}. Its new layers are not trained: --data distils them.")


def parse_steps(text: str | None) -> dict[str, Any]:
    """`"1-10"` -> `{"steps": (1, 10)}`, for `distill`."""
    if text is None:
        return {}
    least, _, most = text.partition("-")
    if not (least.isdigit() and most.isdigit() and 1 <= int(least) < int(most)):
        raise typer.BadParameter(f"expected a range of K such as 1-10, got {text!r}.", param_hint="--steps")
    return {"steps": (int(least), int(most))}


def parse_budgets(texts: list[str]) -> dict[str, str | float]:
    """`["params=50%"]` -> `{"params": "50%"}`."""
    budget: dict[str, str | float] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise typer.BadParameter(f"expected such as params=50%, got {text!r}.", param_hint="--budget")
        budget[key.strip()] = value.strip()
    return budget
