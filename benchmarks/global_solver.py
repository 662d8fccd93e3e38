"""The advection-diffusion solver against the loop that a user would write from the paper, compiled and not.

    python benchmarks/global_solver.py            # all shapes, 1 and 2 threads: twenty minutes
    python benchmarks/global_solver.py --K 5 --threads 1    # some of its rows anew, each written when it is known
    python benchmarks/global_solver.py --quick    # two shapes, K = 5; nothing is written

Peers, timed in interleaved rounds on the same inputs: `roll`, the K-step loop with `torch.roll` and all its
element-wise operations; `compile`, the same under `torch.compile`; and `copy`, a copy of the seven input maps, which is
the floor for anything that has to read them. Outputs are compared before anything is timed. The results are in
benchmarks/results/global_solver.json, those of an instruction set that was asked for (`PDECNN_ISA=avx2`) beside it. A
file is of one CPU: rows of another are dropped.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from pdecnn.analysis import latency
from pdecnn.functional import advection_diffusion
from pdecnn.shared.files import write_atomic

ISA = os.environ.get("PDECNN_ISA", "")
RESULTS = Path(__file__).parent / "results" / f"global_solver{'-' * bool(ISA)}{ISA}.json"
SHAPES = (
    (64, 16, 32, 32),
    (64, 32, 16, 16),
    (64, 64, 8, 8),
    (32, 64, 56, 56),
    (1, 16, 32, 32),
    (8, 24, 112, 112),
)
LARGE = ((32, 64, 56, 56), (8, 24, 112, 112))
STEPS = (1, 5, 20)
DT = 0.2


def roll_loop(*maps: Tensor, K: int, dt: float = DT) -> Tensor:
    """Eq. (4) as published, dx = dy = 1: K steps of rolls and element-wise operations."""
    h, h_prev, u, v, D_x, D_y, f = maps
    u_x = (torch.roll(u, -1, 3) - torch.roll(u, 1, 3)) / 2
    v_y = (torch.roll(v, -1, 2) - torch.roll(v, 1, 2)) / 2
    for _ in range(K):
        A_x, A_y = u * dt, v * dt
        B_x, B_y = D_x * dt, D_y * dt
        rhs = (1 - 2 * B_x - 2 * B_y) * h_prev - 2 * dt * (u_x + v_y) * h + 2 * dt * f
        rhs = rhs + (-A_x + 2 * B_x) * torch.roll(h, -1, 3) + (A_x + 2 * B_x) * torch.roll(h, 1, 3)
        rhs = rhs + (-A_y + 2 * B_y) * torch.roll(h, -1, 2) + (A_y + 2 * B_y) * torch.roll(h, 1, 2)
        h_prev, h = h, rhs / (1 + 2 * B_x + 2 * B_y)
    return h


def fused(*maps: Tensor, K: int) -> Tensor:
    h, h_prev, u, v, D_x, D_y, f = maps
    return advection_diffusion(h, u, v, D_x, D_y, f, h_prev=h_prev, K=K, dt=DT)


def make_inputs(shape: tuple[int, ...], channels_last: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    maps = [torch.rand(shape, generator=generator) for _ in range(7)]
    return [q.to(memory_format=torch.channels_last) for q in maps] if channels_last else maps


def forward_call(solve: Callable[..., Tensor], maps: list[Tensor], K: int) -> Callable[[], object]:
    def call() -> None:
        with torch.no_grad():
            solve(*maps, K=K)

    return call


def training_call(solve: Callable[..., Tensor], maps: list[Tensor], K: int) -> Callable[[], object]:
    leaves = [q.clone().requires_grad_() for q in maps]
    grad = torch.ones_like(maps[0])
    return lambda: torch.autograd.grad(solve(*leaves, K=K), leaves, grad)


def copy_call(maps: list[Tensor]) -> Callable[[], object]:
    to = [torch.empty_like(q) for q in maps]

    def call() -> None:
        for a, b in zip(to, maps, strict=True):
            a.copy_(b)

    return call


def compare(
    shape: tuple[int, ...], K: int, threads: int, rounds: int, seconds: float, compiled: bool
) -> dict[str, Any]:
    """Times all peers of one shape and number of steps; refuses to if they do not agree."""
    maps, last = make_inputs(shape), make_inputs(shape, channels_last=True)
    torch.testing.assert_close(fused(*maps, K=K), roll_loop(*maps, K=K), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused(*last, K=K), fused(*maps, K=K), rtol=1e-5, atol=1e-6)
    peers: dict[str, Callable[..., Tensor]] = {"fused": fused, "roll": roll_loop}
    if compiled:
        torch.compiler.reset()
        peers["compile"] = torch.compile(roll_loop, dynamic=False)
    with latency.threads(threads):
        candidates = {f"forward {name}": forward_call(solve, maps, K) for name, solve in peers.items()}
        candidates["forward channels_last"] = forward_call(fused, last, K)
        candidates["copy"] = copy_call(maps)
        for name in ("fused", "roll"):
            candidates[f"training {name}"] = training_call(peers[name], maps, K)
        candidates["training channels_last"] = training_call(fused, last, K)
        timings = latency.measure(candidates, rounds=rounds, warmup=2, max_seconds=seconds)
    forward, training, copy = timings["forward fused"], timings["training fused"], timings["copy"]
    ratios = {
        "forward: roll / fused": forward.speedup(timings["forward roll"]),
        "forward: fused / copy": copy.speedup(forward),
        "forward: channels_last / NCHW": forward.speedup(timings["forward channels_last"]),
        "training: roll / fused": training.speedup(timings["training roll"]),
        "training: channels_last / NCHW": training.speedup(timings["training channels_last"]),
    }
    if compiled:
        ratios["forward: compile / fused"] = forward.speedup(timings["forward compile"])
    return {
        "shape": list(shape),
        "K": K,
        "threads": threads,
        "seconds": {name: t.to_dict() for name, t in timings.items()},
        "ratios": {name: t.to_dict() for name, t in ratios.items()},
    }


def saved_bytes(shape: tuple[int, ...], K: int) -> dict[str, int]:
    """What forward keeps for backward, and the growth of the process's peak memory over both passes."""
    kept = 0

    def keep(q: Tensor) -> Tensor:
        nonlocal kept
        kept += q.untyped_storage().nbytes()
        return q

    leaves = [q.requires_grad_() for q in make_inputs(shape)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda q: q):
        out = fused(*leaves, K=K)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.autograd.grad(out, leaves, torch.ones_like(out))
    allocated = sum(max(0, e.self_cpu_memory_usage) for e in profiler.key_averages())
    return {"K": K, "saved_bytes": kept, "allocated_in_backward_bytes": allocated}


def thread_gain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Time on one thread over time on two, for the large shapes."""
    seconds = {(tuple(r["shape"]), r["K"], r["threads"]): r["seconds"] for r in rows}
    gains = []
    for shape in LARGE:
        for K in STEPS:
            one, two = seconds.get((shape, K, 1)), seconds.get((shape, K, 2))
            if one and two:
                gain = {p: one[f"{p} fused"]["p20"] / two[f"{p} fused"]["p20"] for p in ("forward", "training")}
                gains.append({"shape": list(shape), "K": K, **gain})
    return gains


def table_of(rows: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for r in rows for name in r["ratios"]))
    table = Table(
        "shape", "K", "threads", "forward ms", "training ms", *names, title="ratios are medians within a round"
    )
    for r in rows:
        ms = [f"{1e3 * r['seconds'][f'{p} fused']['median']:.3f}" for p in ("forward", "training")]
        ratios = [f"{r['ratios'][n]['median']:.2f}" if n in r["ratios"] else "-" for n in names]
        table.add_row("x".join(map(str, r["shape"])), str(r["K"]), str(r["threads"]), *ms, *ratios)
    return table


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in the place of those of the same cells in the file, in the order of the cells."""
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.is_file() else []
    known = [r for r in known if r.get("cpu") == rows[0]["cpu"]]
    found = {(tuple(r["shape"]), r["K"], r["threads"]): r for r in [*known, *rows]}
    return [found[cell] for threads in (1, 2) for cell in cells(SHAPES, STEPS, (threads,)) if cell in found]


def cells(shapes: Sequence[Any], steps: Sequence[int], threads: Sequence[int]) -> list[tuple[Any, int, int]]:
    return [(shape, K, n) for n in threads for shape in shapes for K in steps]


def main(
    quick: Annotated[bool, typer.Option(help="Two shapes, K = 5, nothing written.")] = False,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds per row.")] = 15,
    seconds: Annotated[float, typer.Option(help="Time limit per row.")] = 12.0,
    steps: Annotated[str, typer.Option("--K", help="Numbers of steps; the other rows of the file stay.")] = "1,5,20",
    threads: Annotated[str, typer.Option(help="Threads; the other rows of the file stay.")] = "1,2",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    console = Console(stderr=as_json)
    shapes, some = (SHAPES[::4], [5]) if quick else (SHAPES, [int(K) for K in steps.split(",")])
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {"rows": rows, "two_threads": thread_gain(rows)}
    with Progress(console=console, transient=True) as progress:
        chosen = cells(shapes, some, [int(n) for n in threads.split(",")])
        for shape, K, n in progress.track(chosen, description="timing"):
            made = compare(shape, K, n, rounds, 3.0 if quick else seconds, compiled=K == 5 and not quick)
            where = latency.environment()
            rows.append(made | {key: where[key] for key in ("cpu", "commit", "load")})
            all_rows = rows if quick else merged(rows)
            memory = [saved_bytes((8, 16, 32, 32), K) for K in STEPS]
            result = {"environment": where, "rows": all_rows, "two_threads": thread_gain(all_rows), "memory": memory}
            if not quick:
                write_atomic(RESULTS, json.dumps(result, indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(result))
        return
    console.print(table_of(rows))
    for gain in result["two_threads"]:
        console.print(
            f"two threads, {tuple(gain['shape'])}, K={gain['K']}: forward {gain['forward']:.2f}x, "
            f"training {gain['training']:.2f}x one thread"
        )
    for m in result["memory"]:
        console.print(
            f"memory at K={m['K']}: {m['saved_bytes']:,} bytes saved for backward, "
            f"{m['allocated_in_backward_bytes']:,} allocated in it"
        )


if __name__ == "__main__":
    typer.run(main)
