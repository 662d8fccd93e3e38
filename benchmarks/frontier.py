"""Accuracy against milliseconds: what condense makes, beside pruned and plain networks, all distilled alike.

    pip install torch-pruning
    python benchmarks/frontier.py train --data data              # Fashion-MNIST: the test set, and held-out images
    python benchmarks/frontier.py train --of cifar10 --data data
    python benchmarks/frontier.py int8 --data data               # the teacher in 8 bits; a student by its --net
    python benchmarks/frontier.py time                           # on a quiet machine; again with --of cifar10
    python benchmarks/frontier.py show

`fashion`: the teacher is the ResNet-32 of the embedded example, every student learns from it on the same 5,000 images.
Test accuracy is that of the 10,000 test images of Fashion-MNIST; choices, such as the steps of `pde`, were made by the
10,000 held-out training images alone. `cifar10`: the teacher is
`cifar_resnet32.cifar10` (`quick/cifar10-teacher-24`, then `quick/cifar10-teacher` trained it, on all 50,000 images);
the students learn its answers on the first 45,000, the last 5,000 are held out. The recipe is the same for all, for as
many epochs; the last epoch is what counts. Stopped at any moment, `train` goes on with the nets that are missing; a net
that was not trained is not in the table.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import timm
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import pdecnn
from pdecnn.analysis.latency import environment, measure
from pdecnn.condensation import distill, fit_layers, plan
from pdecnn.condensation.example import PRESET, TEACHER
from pdecnn.condensation.latency import served
from pdecnn.shared.files import write_atomic
from pdecnn.training import evaluate, keep_memory, load_dataset
from pdecnn.training.checkpoint import load_checkpoint
from pdecnn.training.data import Dataset, Images
from pdecnn.training.own import in_memory
from pdecnn.training.progress import Reporter
from pdecnn.training.seeding import seed_everything

EPOCHS = 10
RUNTIMES = ("optimized", "onnx", "onnx-fused")
BATCHES = (1, 64)
INT8 = ", 8 bits"  # after the name of a network
KINDS = ("group-norm", "magnitude", "taylor")  # of importance, in Torch-Pruning

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Setting:
    """A teacher, its images, and how students learn from it."""

    name: str
    teacher: str
    shape: tuple[int, int, int]
    sets: Callable[[Path | None], tuple[Dataset, dict[str, Images]]]
    batch_size: int = 64
    options: dict[str, Any] = field(default_factory=dict)
    nets: tuple[str, ...] = ()  # all of them by default

    @property
    def results(self) -> Path:
        """Where the figures are kept."""
        return Path(__file__).parent / "results" / f"frontier-{self.name}.json"

    def load(self) -> nn.Module:
        """The teacher."""
        made: nn.Module = timm.create_model(self.teacher, pretrained=True)
        return made.eval()

    def data(self, folder: Path | None) -> tuple[Dataset, dict[str, list[Any]]]:
        """The images to learn from, and the two sets to judge by, as batches."""
        images, sets = self.sets(folder)
        scale = [torch.tensor(values).view(1, -1, 1, 1) for values in (images.mean, images.std)]
        batches = {
            name: list(zip(((p.x.float() / 255 - scale[0]) / scale[1]).split(500), p.y.split(500), strict=True))
            for name, p in sets.items()
        }
        return images, batches

    def read(self) -> dict[str, Any]:
        """The results so far."""
        empty: dict[str, Any] = {"teacher": {}, "nets": {}}
        return json.loads(self.results.read_text()) if self.results.is_file() else empty

    def write(self, found: dict[str, Any]) -> None:
        """Writes them, with what they were made on."""
        write_atomic(self.results, json.dumps({**found, "epochs": EPOCHS}, indent=1) + "\n")


def fashion_sets(folder: Path | None) -> tuple[Dataset, dict[str, Images]]:
    """The excerpt, the test set, and the training images 501 to 1,500 of each class, which are not in the excerpt."""
    mini, whole = load_dataset("fashion-mini"), load_dataset("fashion-mnist", folder)
    rows = torch.cat([(whole.train.y == c).nonzero()[500:1500, 0] for c in range(10)])
    return mini, {"test": whole.test, "held": whole.train[rows]}


def cifar_sets(folder: Path | None) -> tuple[Dataset, dict[str, Images]]:
    """The first 45,000 training images, the test set, and the other 5,000."""
    whole = load_dataset("cifar10", folder)
    part = whole.hold_out(5000)
    return part, {"test": whole.test, "held": part.test}


class Remembered(nn.Module):
    """A teacher whose answers are kept: all students of a seed see the same images, so that it is run for one alone.

    It runs in ONNX Runtime, in little more than half the time: its logits are torch's but for the last bits.
    """

    def __init__(self, teacher: nn.Module, x: Tensor, file: Path) -> None:
        super().__init__()
        self.teacher, self.file = pdecnn.optimize_for_inference(teacher, x, runtime="onnx"), file
        self.answers: dict[str, Any] = dict(np.load(file)) if file.is_file() else {}

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        """The teacher's logits."""
        key = hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()
        if key not in self.answers:
            self.answers[key] = self.teacher(x.contiguous()).numpy()
        return torch.from_numpy(self.answers[key])

    def keep(self) -> None:
        """Writes the answers."""
        with TemporaryDirectory() as folder:
            made = Path(folder) / "answers.npz"
            np.savez(made, **self.answers)
            write_atomic(self.file, made.read_bytes())


def condensed(teacher: nn.Module, data: Any, seed: int, **options: Any) -> nn.Module:
    """What condense makes before distillation: planned, replaced, fitted without labels."""
    made = plan(teacher, torch.zeros(1, *data.input["shape"]), **options)
    seed_everything(seed, "condense")
    student = made.apply(teacher)
    seed_everything(seed, "fit")
    fit_layers(student, teacher, made, data.plain, seed=seed)
    return student


def pruned(teacher: nn.Module, data: Any, seed: int, *, kind: str, ratio: float) -> nn.Module:
    """The teacher with `ratio` of the channels of each layer taken out by Torch-Pruning."""
    tp = import_module("torch_pruning")
    student = copy.deepcopy(teacher)
    head = next(m for m in student.modules() if isinstance(m, nn.Linear))
    importance = {
        "magnitude": partial(tp.importance.MagnitudeImportance, p=2, group_reduction="first"),
        "group-norm": partial(tp.importance.GroupMagnitudeImportance, p=2),
        "taylor": tp.importance.GroupTaylorImportance,
    }[kind]()
    x = torch.zeros(1, *data.input["shape"])
    pruner = tp.pruner.BasePruner(student, x, importance=importance, pruning_ratio=ratio, ignored_layers=[head])
    if kind == "taylor":
        x, y = next(iter(data.plain))
        nn.functional.cross_entropy(student(x), y).backward()
    pruner.step()
    student.zero_grad(set_to_none=True)
    return student


def smaller(teacher: nn.Module, data: Any, seed: int, *, depth: int) -> nn.Module:
    """A plain ResNet of fewer blocks, from scratch."""
    seed_everything(seed, "condense")
    name = teacher.pretrained_cfg["architecture"]  # type: ignore[index]
    student: nn.Module = timm.create_model(name, num_classes=10)
    for stage in student.stages:  # type: ignore[union-attr]
        del stage[depth:]
    return student


Make = Callable[[nn.Module, Any, int], nn.Module]
NETS: dict[str, Make] = {
    **{f"{name}": partial(condensed, replacement=name) for name in ("nothing", "depthwise", "separable", "pde")},
    "paper": partial(condensed, replacement="paper"),
    "paper K=1": partial(condensed, replacement="paper", K=1),
    "pde K=1": partial(condensed, replacement="pde", K=1),
    "pde K=2": partial(condensed, replacement="pde", K=2),
    "pde K=5": partial(condensed, replacement="pde", K=5),
    **{f"{name}, 2 blocks": partial(condensed, replacement=name, keep=2) for name in ("nothing", "separable", "pde")},
    "pde K=1, 2 blocks": partial(condensed, replacement="pde", K=1, keep=2),
    **{f"inner {share}": partial(condensed, replacement="nothing", keep=5, inner=share) for share in (0.75, 0.5, 0.25)},
    "pde K=1, 2 blocks, inner 0.5": partial(condensed, replacement="pde", K=1, keep=2, inner=0.5),
    **{f"{name}, width 0.75": partial(condensed, replacement=name, width=0.75) for name in ("separable", "pde")},
    **{
        f"pruned {kind} {ratio}": partial(pruned, kind=kind, ratio=ratio)
        for kind in KINDS
        for ratio in (0.25, 0.375, 0.5, 0.625, 0.75)
    },
    **{f"plain, {n} block(s)": partial(smaller, depth=n) for n in (1, 2)},
}


FASHION = Setting("fashion", TEACHER, (1, 28, 28), fashion_sets, options=dict(PRESET))
CIFAR = Setting(
    "cifar10", "cifar_resnet32.cifar10", (3, 32, 32), cifar_sets, 128,
    {**PRESET, "feature_weight": 0.0, "recipe": {"channels_last": True, "compile": True}},
    ("separable", "pruned group-norm 0.5", "pde K=1", "separable, 2 blocks", "pruned group-norm 0.625", "nothing",
     "pde K=1, 2 blocks", "pruned group-norm 0.375", "nothing, 2 blocks", "depthwise", "pruned group-norm 0.75",
     "pruned taylor 0.5", "paper K=1", "inner 0.5"),
)  # fmt: skip
SETTINGS = {"fashion": FASHION, "cifar10": CIFAR}
X = torch.zeros(1, *FASHION.shape)

Of = Annotated[str, typer.Option(help=f"Which: {', '.join(SETTINGS)}.")]
Data = Annotated[Path | None, typer.Option(help="Folder of the datasets.")]


def both_sets(folder: Path | None) -> dict[str, list[Any]]:
    """The test set and the held-out images of Fashion-MNIST, as batches."""
    return FASHION.data(folder)[1]


@app.command()
def train(
    of: Of = "fashion",
    data: Data = None,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas.")] = "0,1,2",
    only: Annotated[str, typer.Option(help="A net, or all whose names begin so.")] = "",
    keep: Annotated[Path, typer.Option(help="Folder for what a stopped run goes on from.")] = Path("runs/frontier"),
) -> None:
    """Train every net that is missing, seed by seed."""
    keep_memory()
    setting = SETTINGS[of]
    teacher, found = setting.load(), setting.read()
    images, sets = setting.data(data)
    found["teacher"] |= {name: evaluate(teacher, part).accuracy for name, part in sets.items()}
    names = setting.nets or tuple(NETS)
    names = (only,) if only in names else tuple(name for name in names if name.startswith(only))
    for seed in map(int, seeds.split(",")):
        guide: nn.Module = teacher
        if not setting.options.get("feature_weight", 1.0):
            guide = Remembered(teacher, torch.zeros(setting.batch_size, *setting.shape), keep / f"{of}-{seed}.npz")
        for name in names:
            rows = found["nets"].setdefault(name, {"seeds": {}})["seeds"]
            if str(seed) in rows:
                continue
            loaders, run_dir = in_memory(images, setting.batch_size, seed), keep / of / f"{name}, {seed}"
            student = NETS[name](teacher, loaders, seed)
            start = evaluate(student, sets["held"]).accuracy
            run = distill(
                student, guide, loaders, epochs=EPOCHS, seed=seed, reporter=Reporter(), batch_size=setting.batch_size,
                run_dir=run_dir, resume=run_dir.is_dir(), **setting.options,
            )  # fmt: skip
            if isinstance(guide, Remembered):
                guide.keep()
            if run.status == "stopped":
                raise typer.Exit(130)
            row = {part: evaluate(student, batches).accuracy for part, batches in sets.items()}
            rows[str(seed)] = {**row, "held_before": start, "seconds": round(run.wall_time, 1)}
            found["nets"][name]["params"] = sum(p.numel() for p in student.parameters())
            setting.write(found)
            typer.echo(f"{name}, seed {seed}: {row}")


@app.command()
def int8(
    of: Of = "fashion",
    data: Data = None,
    net: Annotated[str, typer.Option(help="A net that `train` left in --keep; the teacher by default.")] = "teacher",
    keep: Annotated[Path, typer.Option(help="Where `train` kept its runs.")] = Path("runs/frontier"),
) -> None:
    """A network in 8 bits, calibrated on training images: nothing is trained."""
    setting = SETTINGS[of]
    model, found = setting.load(), setting.read()
    images, sets = setting.data(data)
    loaders = in_memory(images, 64, 0)
    if net != "teacher":
        model = load_checkpoint(keep / of / f"{net}, 0" / "last", model=NETS[net](model, loaders, 0)).model.eval()
    batches = [x for x, _ in (b for b, _ in zip(loaders.plain or (), range(2), strict=False))]
    with TemporaryDirectory() as folder:
        report = pdecnn.export(model, Path(folder) / "net.onnx", batches[0][:1], int8=batches)
        session = import_module("onnxruntime").InferenceSession(str(report.path))
        name = session.get_inputs()[0].name

        def accuracy(part: list[Any]) -> float:
            right = sum(int((session.run(None, {name: x.numpy()})[0].argmax(1) == y.numpy()).sum()) for x, y in part)
            return 100 * right / sum(len(y) for _, y in part)

        row = {part: accuracy(batches) for part, batches in sets.items()}
    params = sum(p.numel() for p in model.parameters())
    found["nets"].setdefault(net + INT8, {}).update({"seeds": {"0": row}, "params": params})
    setting.write(found)
    typer.echo(f"{net}{INT8}: {row}")


@app.command("time")
def time_them(of: Of = "fashion", rounds: int = 25, max_seconds: float = 60.0) -> None:
    """Milliseconds of every net in every runtime, one thread, interleaved."""
    setting = SETTINGS[of]
    teacher, found = setting.load(), setting.read()
    example = torch.zeros(1, *setting.shape)
    shapes = in_memory(load_dataset("fashion-mini"), 64, 0)
    some = [(torch.randn(64, *setting.shape), torch.arange(64) % 10)]
    shapes = replace(shapes, input={"shape": list(setting.shape)}, plain=some)
    nets = {"teacher": teacher}
    for name in (n for n in found["nets"] if n in NETS):
        make = NETS[name]
        quick = make.keywords if isinstance(make, partial) and make.func is condensed else None
        # the time of a pruned net depends on how many channels went, not on which
        nets[name] = make(teacher, shapes, 0) if quick is None else plan(teacher, example, **quick).apply(teacher)
    for runtime in RUNTIMES:
        for batch in BATCHES:
            x = torch.randn(batch, *setting.shape, generator=torch.Generator().manual_seed(0))
            with served({name: net.eval() for name, net in nets.items()}, x, runtime, 1, None) as calls:
                plain = runtime == "onnx"
                small = {n: nets[n.removesuffix(INT8)] for n in found["nets"] if n.endswith(INT8)}
                eight: Any = served(small, x, "onnx-int8", 1, None) if plain and small else nullcontext({})
                with eight as more:
                    timings = measure({**calls, **more}, rounds=rounds, max_seconds=max_seconds)
            for name, timing in timings.items():
                row = {"ms": 1e3 * timing.median, "speedup": timing.speedup(timings["teacher"]).median}
                entry = found["teacher"] if name == "teacher" else found["nets"].setdefault(name, {"seeds": {}})
                entry.setdefault("times", {}).setdefault(runtime, {})[str(batch)] = row
            typer.echo(f"{runtime}, batch {batch}: {len(timings)} nets")
    setting.write({**found, "environment": environment()})


@app.command()
def show(of: Of = "fashion") -> None:
    """The table, the most accurate first."""
    found = SETTINGS[of].read()
    title = f"{of}, {EPOCHS} epochs; teacher {found['teacher'].get('test', 0.0):.2f} %"
    table = Table(title=title, width=100)
    table.add_column("net", no_wrap=True)
    for column in ("params", "seeds", "test, %", "held, %", "onnx", "batch 64", "fused", "torch"):
        table.add_column(column, justify="right", no_wrap=True)
    trained = {name: net for name, net in found["nets"].items() if net["seeds"]}
    accuracy = {name: mean(r["test"] for r in net["seeds"].values()) for name, net in trained.items()}
    for name in sorted(accuracy, key=accuracy.__getitem__, reverse=True):
        net = trained[name]
        rows = net["seeds"].values()
        times = net.get("times", {})
        columns = (("onnx", 1), ("onnx", 64), ("onnx-fused", 1), ("optimized", 1))
        cells = [times.get(r, {}).get(str(b), {}).get("speedup") for r, b in columns]
        table.add_row(
            name, f"{net['params']:,}", str(len(rows)), f"{accuracy[name]:.2f}",
            f"{mean(r['held'] for r in rows):.2f}", *("" if c is None else f"{c:.2f}x" for c in cells),
        )  # fmt: skip
    Console(width=100).print(table)


if __name__ == "__main__":
    app()
