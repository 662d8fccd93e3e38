"""Networks as one C file: memory, weights, work, instructions on Cortex-M and milliseconds here, one thread, batch 1.

Asked against the fused ONNX file in ONNX Runtime: `cifar_resnet_tiny_global` and `mnist_resnet_tiny_global` at least as
fast, `cifar_resnet32_global` within 1.5 times. Cortex-M runs in QEMU, if it and arm-none-eabi-gcc are installed.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import typer
from rich.console import Console
from rich.table import Table

import pdecnn  # noqa: F401  (registers the models)
from pdecnn.analysis import latency
from pdecnn.deploy.bench import bench, speedup
from pdecnn.deploy.c.boards import installed, run_on
from pdecnn.deploy.c.build import FLAGS, compiler, runner
from pdecnn.deploy.c.write import Written, write

RESULTS = Path(__file__).parent / "results" / "edge.json"
# each network with a PDE and the one without it
NETS = (
    ("mnist_toy_global", "mnist_toy_conv"),
    ("mnist_resnet_tiny_global", "mnist_resnet_tiny"),
    ("cifar_resnet_tiny_global", "cifar_resnet_tiny"),
    ("cifar_resnet32_global", "cifar_resnet32"),
    ("lowcost_explicit_tiny", "lowcost_resnet_tiny"),
)
ASKED = {"cifar_resnet_tiny_global": 1.0, "mnist_resnet_tiny_global": 1.0, "cifar_resnet32_global": 1 / 1.5}
BASE = "onnx-fused"


def run(
    rounds: Annotated[int, typer.Option(help="Samples of each candidate.")] = 30,
    max_seconds: Annotated[float, typer.Option(help="Limit for the timing of each pair.")] = 30.0,
    boards: Annotated[bool, typer.Option(help="Whether to run on Cortex-M too.")] = True,
    output: Annotated[Path, typer.Option(help="Where the results are kept.")] = RESULTS,
) -> None:
    rows: list[dict[str, Any]] = []
    for pair in NETS:
        torch.manual_seed(0)
        models = {name: timm.create_model(name).eval() for name in pair}
        inputs = {name: torch.randn(1, *model.default_cfg["input_size"]) for name, model in models.items()}
        given = {name: (models[name], inputs[name]) for name in pair}
        times = bench(given, runtimes=("c", BASE), batches=(1,), rounds=rounds, max_seconds=max_seconds)
        found = {(row.model, row.runtime): row for row in times}
        for name in pair:
            written = write(models[name], (inputs[name],), "net")
            own, base = found[name, "c"], found[name, BASE]
            cost = written.footprint
            row = {"model": name, "sram": cost.sram, "least_sram": cost.least_sram, "weights": cost.flash}
            row |= {"macs": cost.macs, "c_ms": own.p50_ms, "onnx_fused_ms": base.p50_ms}
            row |= {"faster": speedup(own, base), "asked": ASKED.get(name)}
            rows.append(row | (on_boards(written, inputs[name]) if boards and installed() else {}))
            Console().print(rows[-1])
    output.parent.mkdir(parents=True, exist_ok=True)
    flags = [*compiler(), *FLAGS]
    kept = {"environment": latency.environment(), "compiler": flags, "rows": rows}
    output.write_text(json.dumps(kept, indent=1) + "\n")
    Console().print(shown(rows))


def on_boards(written: Written, x: torch.Tensor) -> dict[str, Any]:
    """Instructions of one run and bytes of code; the outputs must have the bits of the host's."""
    expected = runner(written.source)([x])[0].reshape(-1)
    result: dict[str, Any] = {}
    for cpu in ("cortex-m4", "cortex-m7"):
        done = run_on(cpu, written, x)
        if not torch.equal(done.out, expected):
            raise RuntimeError(f"{cpu} gives other bits than this machine")
        result |= {f"{cpu} instructions": done.instructions, f"{cpu} code": done.code}
    return result


def shown(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="One run of the C file, batch 1, one thread; faster than the fused ONNX file")
    headers = ("SRAM, kB", "weights, kB", "code M4, kB", "MMACs", "Minstr M4", "C, ms", "ONNX, ms", "faster", "asked")
    table.add_column("model")
    for header in headers:
        table.add_column(header, justify="right")
    for row in rows:
        code, work = row.get("cortex-m4 code"), row.get("cortex-m4 instructions")
        table.add_row(
            row["model"], f"{row['sram'] / 1024:.1f}", f"{row['weights'] / 1024:.1f}",
            "" if code is None else f"{code / 1024:.1f}", f"{row['macs'] / 1e6:.2f}",
            "" if work is None else f"{work / 1e6:.1f}", f"{row['c_ms']:.3f}", f"{row['onnx_fused_ms']:.3f}",
            f"{row['faster']:.2f}x", "" if row["asked"] is None else f"{row['asked']:.2f}x",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(run)
