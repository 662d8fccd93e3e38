"""Nanoseconds per pixel of the solver over widths, in NCHW and channels_last, forward and backward, on one thread.

    python benchmarks/widths.py                        # widths 5 to 130, into benchmarks/results/widths.json
    python benchmarks/widths.py --dtype bfloat16 8 9   # some widths, printed alone

`PDECNN_ISA=avx2` or `baseline` chooses the instruction set. A width is compared with its neighbours in the list.
"""

import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from pdecnn.analysis import latency

RESULTS = Path(__file__).parent / "results" / "widths.json"
PIXELS, CHANNELS, K = 65536, 16, 5


def fastest(run: Callable[[], object], least: float = 0.05) -> float:
    """Seconds of processor time of the fastest call."""
    run()
    best, end = math.inf, time.thread_time() + least
    while time.thread_time() < end:
        start = time.thread_time()
        run()
        best = min(best, time.thread_time() - start)
    return best


def measure(width: int, dtype: torch.dtype) -> dict[str, float]:
    shape = (max(1, PIXELS // (CHANNELS * width * width)), CHANNELS, width, width)
    row = {"width": float(width)}
    for order in (torch.contiguous_format, torch.channels_last):
        maps = [torch.rand(shape).to(dtype).contiguous(memory_format=order) for _ in range(7)]
        problem = (*maps, K, 0.2, 1.0, 1.0, "periodic")
        ops, grad = torch.ops.pdecnn, torch.ones_like(maps[0])
        name = "channels_last" if order is torch.channels_last else "NCHW"
        forward = fastest(partial(ops.advection_diffusion, *problem))
        backward = fastest(partial(ops.advection_diffusion_backward, grad, *problem, [True] * 7))
        row |= {f"forward {name}": 1e9 * forward / grad.numel(), f"backward {name}": 1e9 * backward / grad.numel()}
    return row


def main(
    widths: Annotated[list[int] | None, typer.Argument(help="Widths; 5 to 130 by default.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float64 or bfloat16.")] = "float32",
) -> None:
    torch.set_num_threads(1)
    rows = []
    for width in widths or range(5, 131):
        rows.append(measure(width, getattr(torch, dtype)))
        typer.echo("  ".join(f"{name} {value:.3g}" for name, value in rows[-1].items()))
    if not widths:
        content = {"environment": latency.environment(), "dtype": dtype, "rows": rows}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
