"""What condensing saves in each runtime: `cifar_resnet32_global` against `cifar_resnet32`, one thread, one run.

All candidates of a batch size take turns in each round; `auto` is `optimize_for_inference(runtime="auto")`, made for
that batch. The student's file of plain ONNX operators is there for K = 1 and 2 too.

Asked, against the teacher in ONNX Runtime: 3.0x at batch 1 and 2.7x at batch 64 with fused operators, 1.5x and 1.0x
with plain ones; against the teacher behind `auto`: 3.5x at batch 1.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import typer
from rich.console import Console
from rich.table import Table

import pdecnn
from pdecnn.analysis import latency
from pdecnn.deploy.bench import Row, bench, speedup
from pdecnn.layers.steps import with_steps

RESULTS = Path(__file__).parent / "results" / "deploy.json"
TEACHER, STUDENT = "cifar_resnet32", "cifar_resnet32_global"
RUNTIMES = ("eager", "optimized", "onnx", "onnx-fused", "onnx-int8", "c", "auto")
OTHER_STEPS = (1, 2)  # K of the plain files beside that of K = 5
ASKED = {("onnx-fused", 1): 3.0, ("onnx-fused", 64): 2.7, ("onnx", 1): 1.5, ("onnx", 64): 1.0, ("auto", 1): 3.5}


def timed(batch: int, rounds: int, max_seconds: float) -> list[Row]:
    """All rows of one batch size."""
    x = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    models = {name: (timm.create_model(name).eval(), x) for name in (STUDENT, TEACHER)}
    net, _ = models[STUDENT]
    with tempfile.TemporaryDirectory() as folder:
        files = {f"onnx, K={K}": ("portable", Path(folder) / f"{K}.onnx") for K in OTHER_STEPS}
        for K, (_, file) in zip(OTHER_STEPS, files.values(), strict=True):
            with with_steps(net, K):
                pdecnn.export(net, file, x[:2], progress=False)
        settings: dict[str, Any] = {"rounds": rounds, "max_seconds": max_seconds, "progress": False}
        return bench(models, runtimes=RUNTIMES, batches=(batch,), files=files, **settings)


def run(
    rounds: Annotated[int, typer.Option(help="Samples of each candidate.")] = 30,
    max_seconds: Annotated[float, typer.Option(help="Limit for each batch size.")] = 60.0,
    output: Annotated[Path, typer.Option(help="Where the results are kept.")] = RESULTS,
) -> None:
    load = os.getloadavg()
    rows = [row for batch in (1, 64) for row in timed(batch, rounds, max_seconds)]
    teacher = {(row.runtime, row.batch): row for row in rows if row.model == TEACHER}
    table = Table(title="One thread; times faster than cifar_resnet32 in ONNX Runtime, and in the same runtime")
    for header in ("model", "runtime", "batch", "p50, ms", "p90, ms", "than ONNX", "than here", "asked"):
        table.add_column(header, justify="right")
    kept: list[dict[str, Any]] = []
    for row in rows:
        here = teacher.get((row.runtime, row.batch), teacher["onnx", row.batch])
        faster, faster_here = speedup(row, teacher["onnx", row.batch]), speedup(row, here)
        asked = ASKED.get((row.runtime, row.batch)) if row.model == STUDENT else None
        kept.append({**row.to_dict(), "faster": faster, "faster_here": faster_here, "asked": asked})
        figures = (f"{row.p50_ms:.2f}", f"{row.p90_ms:.2f}", f"{faster:.2f}x", f"{faster_here:.2f}x")
        table.add_row(row.model, row.runtime, str(row.batch), *figures, "" if asked is None else f"{asked:.1f}x")
    environment = {**latency.environment(), "load_before": load, "load_after": os.getloadavg()}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"environment": environment, "rows": kept}, indent=1) + "\n")
    Console().print(table)


if __name__ == "__main__":
    typer.run(run)
