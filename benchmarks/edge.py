"""Networks as one C file, in float and in 8 bits: memory, weights, instructions, accuracy, milliseconds here.

Asked against the fused ONNX file in ONNX Runtime, one thread, batch 1: `cifar_resnet_tiny_global` and
`mnist_resnet_tiny_global` at least as fast, `cifar_resnet32_global` within 1.5 times. Asked of the first in 8 bits: at
most 0.5 points below float on 10,000 images of CIFAR-10, weights under 20 kB, arena under 40 kB. Cores run in QEMU, if
it and their compilers are installed.

`python benchmarks/edge.py cost|accuracy|times --data FOLDER`: each adds to `results/edge.json`, with the commit. `page`
writes the tables of docs/edge.md and README.md anew from it, `show` prints it.
"""

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import pdecnn  # noqa: F401  (registers the models)
from pdecnn.analysis import latency
from pdecnn.deploy.bench import bench, speedup
from pdecnn.deploy.c.boards import BOARDS, run_on
from pdecnn.deploy.c.build import FLAGS, compiler, runner
from pdecnn.deploy.c.write import Written, write
from pdecnn.training.augment import normalise
from pdecnn.training.data import Dataset
from pdecnn.training.datasets import load_dataset

RESULTS = Path(__file__).parent / "results" / "edge.json"
PAGES = [Path(__file__).parents[1] / name for name in ("docs/edge.md", "README.md")]
SHOWN = "cifar_resnet_tiny_global.cifar10"  # in the README
CORES = ("cortex-m4", "cortex-m7", "rv32imafc")
CALIBRATION = 64  # training images, or random ones for a net that is not trained
# each network with a PDE and the one without it, with the weights that are shipped
NETS = (
    ("mnist_toy_global.mnist", "mnist_toy_conv.mnist"),
    ("mnist_resnet_tiny_global", "mnist_resnet_tiny"),
    ("cifar_resnet_tiny_global.cifar10", "cifar_resnet_tiny.cifar10"),
    ("cifar_resnet32_global", "cifar_resnet32"),
    ("lowcost_explicit_tiny", "lowcost_resnet_tiny"),
    ("fashion_hyperbolic_cp.fashion_mini", "fashion_resnet32.fashion_mini"),
)
ASKED = {SHOWN: 1.0, "mnist_resnet_tiny_global": 1.0, "cifar_resnet32_global": 1 / 1.5}
BASE = "onnx-fused"
app = typer.Typer()
Only = Annotated[str, typer.Option(help="Networks whose names hold this.")]
Folder = Annotated[Path | None, typer.Option(help="Of the images, if it is not the usual one.")]


@app.command()
def cost(only: Only = "", data: Folder = None) -> None:
    """SRAM, Flash, multiply-adds, and instructions on cores."""
    for name in chosen(only):
        model, x = load(name), calibration(name, data)
        for bits, written in files(model, x).items():
            footprint = written.footprint
            row: dict[str, Any] = {
                "sram": footprint.sram,
                "least_sram": footprint.least_sram,
                "weights": footprint.flash,
            }
            row |= {"macs": footprint.macs, **on_cores(written, x[:1])}
            if written.quantised is not None:
                row["in_float"] = written.quantised.reasons
            keep(name, bits, "cost", row)


@app.command()
def accuracy(only: Only = "", data: Folder = None, images: int = 10_000) -> None:
    """Of the trained networks, on test images."""
    for name in (name for name in chosen(only) if "." in name):
        model, found = load(name), dataset(name, data)
        x, y = normalise(found.test.x[:images], found.mean, found.std), found.test.y[:images]
        for bits, written in files(model, calibration(name, data)).items():
            right = (runner(written.source)([x])[0].argmax(1) == y).float().mean()
            keep(name, bits, "accuracy", {"accuracy": 100 * float(right), "images": len(y)})


@app.command()
def times(only: Only = "", data: Folder = None, rounds: int = 30, max_seconds: float = 12.0) -> None:
    """Milliseconds of one image beside ONNX Runtime, in interleaved rounds."""
    for name in chosen(only):
        model, x = load(name), calibration(name, data)[:1]
        given = {name: (model, x)}
        rows = bench(given, runtimes=("c", "c-int8", BASE), batches=(1,), rounds=rounds, max_seconds=max_seconds)
        found = {row.runtime: row for row in rows}
        for bits, runtime in (("float", "c"), ("int8", "c-int8")):
            row: dict[str, Any] = {"ms": found[runtime].p50_ms, "onnx_fused_ms": found[BASE].p50_ms}
            row |= {"faster": speedup(found[runtime], found[BASE]), "load": round(os.getloadavg()[0], 1)}
            keep(name, bits, "times", row | ({"asked": ASKED.get(name)} if bits == "float" else {}))


@app.command()
def show() -> None:
    """The table."""
    table = Table(title="One run of the C file, batch 1, one thread; faster than the fused ONNX file")
    headers = ("bits", "SRAM, B", "weights, B", "Minstr M4", "Minstr RV32", "accuracy", "ms", "ONNX", "faster", "asked")
    table.add_column("model")
    for header in headers:
        table.add_column(header, justify="right")
    for row in read()["rows"]:
        figures = [f"{row[key]:,}" if key in row else "" for key in ("sram", "weights")]
        figures += [f"{row[f'{core} instructions'] / 1e6:.2f}" if f"{core} instructions" in row else ""
                    for core in ("cortex-m4", "rv32imafc")]  # fmt: skip
        figures += [f"{row['accuracy']:.2f}" if "accuracy" in row else ""]
        figures += [f"{row[key]:.3f}" if key in row else "" for key in ("ms", "onnx_fused_ms")]
        figures += [f"{row[key]:.2f}x" if row.get(key) else "" for key in ("faster", "asked")]
        table.add_row(row["model"], row["bits"], *figures)
    Console().print(table)


@app.command()
def page() -> None:
    """Writes the tables of the pages anew, each after its heading."""
    for path in PAGES:
        text = path.read_text()
        for heading, lines in tables(read()["rows"]).items():
            if heading in text:
                before, _, after = text.partition(heading)
                rest = re.sub(r"\A(\n\|.*)*", "", after)
                text = "\n".join([before + heading, *lines]) + rest
        path.write_text(text)


COLUMNS = "model | numbers | SRAM, bytes | weights, bytes | code (M4, -O2), bytes | instructions, Cortex-M4 | RV32"


def tables(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The lines below the heading of each table; an empty cell was not measured."""
    keys = ("sram", "weights", "cortex-m4 code", "cortex-m4 instructions", "rv32imafc instructions")
    every, timed = ["| --- | --- |" + " ---: |" * 6], ["| --- | --- |" + " ---: |" * 4]
    for row in rows:
        figures = [f"{row[key]:,}" if key in row else "" for key in keys]
        figures += [f"{row['accuracy']:.2f}" if "accuracy" in row else ""]
        start = [f"`{row['model']}`", row["bits"]]
        every.append(f"| {' | '.join(start + figures)} |")
        if "ms" in row:
            figures = [f"{row['ms']:.3f}", f"{row['onnx_fused_ms']:.3f}", f"{row['faster']:.2f}"]
            figures.append(f"{row['asked']:.2f}" if row.get("asked") else "")
            timed.append(f"| {' | '.join(start + figures)} |")
    found = {f"| {COLUMNS} | accuracy, % |": every}
    found["| model | numbers | C, ms | fused ONNX, ms | times as fast | asked |"] = timed
    pair = {row["bits"]: row for row in rows if row["model"] == SHOWN}
    if pair.keys() == {"float", "int8"} and all("accuracy" in row for row in pair.values()):
        both = [pair["float"], pair["int8"]]
        found[f"| `{SHOWN.partition('.')[0]}` in C | float | 8 bits |"] = [
            "|---|---:|---:|",
            "| accuracy, 10,000 CIFAR-10 test images | " + " | ".join(f"{q['accuracy']:.2f} %" for q in both) + " |",
            "| SRAM, bytes | " + " | ".join(f"{q['sram']:,}" for q in both) + " |",
            "| weights, bytes | " + " | ".join(f"{q['weights']:,}" for q in both) + " |",
            "| instructions, Cortex-M4 | "
            + " | ".join(f"{q['cortex-m4 instructions'] / 1e6:.1f}M" for q in both) + " |",
        ]  # fmt: skip
    return found


def chosen(only: str) -> list[str]:
    return [name for pair in NETS for name in pair if only in name]


def load(name: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, pretrained="." in name).eval()
    return model


def dataset(name: str, folder: Path | None) -> Dataset:
    return load_dataset(name.partition(".")[2].replace("_", "-"), folder)


def calibration(name: str, folder: Path | None) -> Tensor:
    """Training images; random numbers for a network that is not trained."""
    if "." not in name:
        return torch.randn(CALIBRATION, *load(name).default_cfg["input_size"])  # type: ignore[index]
    found = dataset(name, folder)
    order = torch.randperm(len(found.train), generator=torch.Generator().manual_seed(0))[:CALIBRATION]
    return normalise(found.train.x[order], found.mean, found.std)


def files(model: nn.Module, x: Tensor) -> dict[str, Written]:
    return {"float": write(model, (x,), "net"), "int8": write(model, (x,), "net", int8=[(x,)])}


def on_cores(written: Written, x: Tensor) -> dict[str, Any]:
    """Instructions of one run and bytes of code; the outputs must have the bits of the host's."""
    expected = runner(written.source)([x])[0].reshape(-1)
    result: dict[str, Any] = {}
    for core in (core for core in CORES if BOARDS[core].installed()):
        done = run_on(core, written, x)
        if not torch.equal(done.out, expected):
            raise RuntimeError(f"{core} gives other bits than this machine")
        result |= {f"{core} instructions": done.instructions, f"{core} code": done.code}
    return result


def read() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return kept if kept.get("rows") and "bits" in kept["rows"][0] else {"rows": []}


def keep(name: str, bits: str, what: str, figures: dict[str, Any]) -> None:
    """Adds figures to the row of a network, and the commit that they are of."""
    kept = read()
    row = next((q for q in kept["rows"] if (q["model"], q["bits"]) == (name, bits)), None)
    if row is None:
        row = {"model": name, "bits": bits}
        kept["rows"].append(row)
    if what == "cost":  # nothing of an earlier commit stays, of a core that is not there now
        for key in [key for key in row if key.endswith((" instructions", " code"))]:
            del row[key]
    row |= {**figures, f"{what} commit": latency.environment().get("commit")}
    order = {q: i for i, q in enumerate(chosen(""))}
    kept["rows"].sort(key=lambda q: (order[q["model"]], q["bits"]))
    kept |= {"environment": latency.environment(), "compiler": [*compiler(), *FLAGS]}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    Console().print(name, bits, figures)


if __name__ == "__main__":
    app()
