"""Nanoseconds per pixel of the solver over widths, in NCHW and channels_last, forward and backward, on one thread.

    python benchmarks/widths.py                        # all below, into benchmarks/results/widths.json
    python benchmarks/widths.py --dtype bfloat16 8 9   # some widths, printed alone

All is float32 at the widths 4 to 130, float64 and bfloat16 at some of them, and signals, planes of one row, in float32.
`PDECNN_ISA=avx2` or `baseline` chooses the instruction set. A width is compared with its neighbours in the list, and
channels_last with NCHW; the worst of either is printed and kept.
"""

import json
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import torch
import typer

from pdecnn.analysis import latency

RESULTS = Path(__file__).parent / "results" / "widths.json"
PIXELS, CHANNELS, K = 65536, 16, 5
WAYS = ("forward", "backward")
SOME = (7, 8, 9, 14, 16, 28, 32, 56, 112)


def fastest(run: Callable[[], object], least: float = 0.05) -> float:
    """Seconds of processor time of the fastest call."""
    run()
    best, end = math.inf, time.thread_time() + least
    while time.thread_time() < end:
        start = time.thread_time()
        run()
        best = min(best, time.thread_time() - start)
    return best


def measure(height: int, width: int, dtype: torch.dtype) -> dict[str, float]:
    shape = (max(1, PIXELS // (CHANNELS * height * width)), CHANNELS, height, width)
    row = {"width": float(width)}
    for order in (torch.contiguous_format, torch.channels_last):
        maps = [torch.rand(shape).to(dtype).contiguous(memory_format=order) for _ in range(7)]
        problem = (*maps, K, 0.2, 1.0, 1.0, "periodic")
        ops, grad = torch.ops.pdecnn, torch.ones_like(maps[0])
        name = "channels_last" if order is torch.channels_last else "NCHW"
        forward = fastest(partial(ops.advection_diffusion, *problem))
        backward = fastest(partial(ops.advection_diffusion_backward, grad, *problem, [True] * 7))
        row |= {f"forward {name}": 1e9 * forward / grad.numel(), f"backward {name}": 1e9 * backward / grad.numel()}
    typer.echo("  ".join(f"{name} {value:.3g}" for name, value in row.items()))
    return row


def worst(rows: list[dict[str, float]]) -> dict[str, float]:
    """The largest time of a width over its faster neighbour's, and of channels_last over NCHW."""
    kinds = [name for name in rows[0] if name != "width"]
    pairs = [(a[kind], b[kind]) for a, b in pairwise(rows) for kind in kinds]
    return {
        "width / its neighbour": max(max(a, b) / min(a, b) for a, b in pairs),
        "channels_last / NCHW": max(r[f"{way} channels_last"] / r[f"{way} NCHW"] for r in rows for way in WAYS),
    }


def main(
    widths: Annotated[list[int] | None, typer.Argument(help="Widths to print; all are measured by default.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float64 or bfloat16, of some widths.")] = "float32",
) -> None:
    torch.set_num_threads(1)
    if widths:
        for width in widths:
            measure(width, width, getattr(torch, dtype))
        return
    tables = {
        "float32": [measure(width, width, torch.float32) for width in range(4, 131)],
        "float64": [measure(width, width, torch.float64) for width in SOME],
        "bfloat16": [measure(width, width, torch.bfloat16) for width in SOME],
        "signals": [measure(1, width * width, torch.float32) for width in SOME],
    }
    summary = {"float32": worst(tables["float32"])}
    typer.echo(json.dumps(summary, indent=1))
    content = {"environment": latency.environment(), "worst": summary, "ns per pixel": tables}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
