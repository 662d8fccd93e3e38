"""What condensing saves in ONNX Runtime: `cifar_resnet32_global` (K=5) against `cifar_resnet32`, one thread, one run.

Asked: at least 3.0x faster at batch 1 and 2.7x at batch 64 with fused operators, 1.5x at batch 1 with portable ones.
"""

import json
from pathlib import Path
from typing import Annotated

import timm
import torch
import typer
from rich.console import Console
from rich.table import Table

import pdecnn  # noqa: F401  (registers the models)
from pdecnn.analysis import latency
from pdecnn.deploy.bench import bench, speedup

RESULTS = Path(__file__).parent / "results" / "deploy.json"
TEACHER, STUDENT = "cifar_resnet32", "cifar_resnet32_global"
ASKED = {("onnx-fused", 1): 3.0, ("onnx-fused", 64): 2.7, ("onnx", 1): 1.5}


def run(
    rounds: Annotated[int, typer.Option(help="Samples of each candidate.")] = 30,
    max_seconds: Annotated[float, typer.Option(help="Limit for each batch size.")] = 30.0,
    output: Annotated[Path, typer.Option(help="Where the results are kept.")] = RESULTS,
) -> None:
    torch.manual_seed(0)
    models = {name: (timm.create_model(name).eval(), torch.randn(2, 3, 32, 32)) for name in (TEACHER, STUDENT)}
    rows = bench(models, rounds=rounds, max_seconds=max_seconds)
    base = {row.batch: row for row in rows if row.model == TEACHER and row.runtime == "onnx"}
    table = Table(title="One thread; faster than: cifar_resnet32 in ONNX Runtime")
    for header in ("model", "runtime", "batch", "p50, ms", "p90, ms", "faster", "asked"):
        table.add_column(header, justify="right")
    kept = []
    for row in rows:
        ratio = speedup(row, base[row.batch])
        asked = ASKED.get((row.runtime, row.batch)) if row.model == STUDENT else None
        kept.append({**row.to_dict(), "faster": ratio, "asked": asked})
        figures = (f"{row.p50_ms:.2f}", f"{row.p90_ms:.2f}", f"{ratio:.2f}x", "" if asked is None else f"{asked:.1f}x")
        table.add_row(row.model, row.runtime, str(row.batch), *figures)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"environment": latency.environment(), "rows": kept}, indent=1) + "\n")
    Console().print(table)


if __name__ == "__main__":
    typer.run(run)
