"""How cost grows: time and memory against pixels, channels, batch, steps K and threads, and planning against blocks.

    python benchmarks/scaling.py                 # everything, some minutes on a quiet machine
    python benchmarks/scaling.py solver layer    # parts by name
    python benchmarks/scaling.py --show          # nothing is measured: the slopes of the results

One size is changed at a time, the others stay as they are. `slope` is the exponent p of `time ~ size^p`, fitted to the
larger half of the sizes: 1 is linear. Memory is what the process grows by during one call, weights and inputs not
counted; it is read from the system, so that memory of native code is in it. The documentation draws what is in
results/scaling.json.
"""

import ctypes
import gc
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import pdecnn
from pdecnn.analysis.latency import environment, measure, threads
from pdecnn.condensation import plan
from pdecnn.functional import advection_diffusion
from pdecnn.layers import GlobalLayer
from pdecnn.shared.files import write_atomic

RESULTS = Path(__file__).parent / "results" / "scaling.json"
NET = "cifar_resnet32_global"
Call = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """Where one call happens; `pixels` is the side of the map."""

    batch: int = 1
    channels: int = 16
    pixels: int = 32
    K: int = 5
    threads: int = 1


@dataclass(frozen=True)
class Part:
    """Something whose cost is measured, and the sizes that are changed, one at a time."""

    make: Callable[[Size], Call]
    sweeps: dict[str, Sequence[int]]
    base: Size = field(default_factory=Size)


def solver(size: Size) -> Call:
    """The K steps alone, without gradients."""
    h, u, v, D_x, D_y = (torch.rand(size.batch, size.channels, size.pixels, size.pixels) for _ in range(5))
    return lambda: advection_diffusion(h, u=u, v=v, D_x=D_x, D_y=D_y, K=size.K, dt=0.2)


def layer(size: Size) -> Call:
    """A Global layer, forward and backward."""
    made = GlobalLayer(size.channels, K=size.K)
    x = torch.rand(size.batch, size.channels, size.pixels, size.pixels, requires_grad=True)
    return lambda: made(x).sum().backward()


def net(size: Size) -> Call:
    """ResNet-32-Global as it is served."""
    x = torch.rand(size.batch, 3, size.pixels, size.pixels)
    served = pdecnn.optimize_for_inference(timm.create_model(NET, K=size.K).eval(), x[:1])
    return lambda: _without_gradients(served, x)


def training(size: Size) -> Call:
    """A step of its training: forward, loss, backward, SGD."""
    model = timm.create_model(NET, K=size.K).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.rand(size.batch, 3, size.pixels, size.pixels), torch.zeros(size.batch, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _without_gradients(model: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        return model(x)


MAPS = {"pixels": (8, 16, 32, 64, 128, 256, 512), "channels": (8, 32, 128, 512, 1024), "batch": (1, 4, 16, 64, 256)}
STEPS = {"K": (1, 2, 5, 10, 20, 50), "threads": (1, 2)}
PARTS = {
    "solver": Part(solver, {**MAPS, **STEPS}),
    "layer": Part(layer, {**MAPS, **STEPS}),
    "net": Part(net, {"pixels": (16, 32, 64, 128, 256, 512), "batch": MAPS["batch"], **STEPS}),
    "training": Part(
        training, {"pixels": (16, 32, 64, 128), "batch": (4, 16, 64, 256), **STEPS}, Size(batch=16)
    ),
}  # fmt: skip
FAMILIES = {
    "ResNet": ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    "EfficientNet": ("efficientnet_b0", "efficientnet_b2", "efficientnet_b4", "efficientnet_b7"),
}


def quantity(axis: str, value: int) -> int:
    """What cost is compared with: a map has the square of its side of pixels."""
    return value**2 if axis == "pixels" else value


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """The exponent of a power law through the larger half of the points, three at least."""
    most = sorted((s, c) for s, c in zip(sizes, costs, strict=True) if c > 0)
    points = [(math.log(s), math.log(c)) for s, c in most[-max(3, len(most) // 2) :]]
    if len(points) < 3:
        return None
    x, y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def peak_bytes(call: Call) -> int:
    """How much the process grows by during a call, as Linux tells."""
    call()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the largest size so far is forgotten
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
    return 1024 * int(line.split()[1])


def sweep(part: Part, axis: str, rounds: int, max_seconds: float) -> dict[str, Any]:
    """Seconds and bytes at every size along one axis."""
    seconds, memory = [], []
    for value in part.sweeps[axis]:
        size = Size(**{**vars(part.base), axis: value})
        torch.manual_seed(0)
        with threads(size.threads):
            call = part.make(size)
            memory.append(peak_bytes(call))
            seconds.append(measure({axis: call}, rounds=rounds, warmup=1, max_seconds=max_seconds)[axis].median)
    sizes = [quantity(axis, value) for value in part.sweeps[axis]]
    return {
        "sizes": list(part.sweeps[axis]), "seconds": seconds, "bytes": memory,
        "slope": slope(sizes, seconds), "slope_bytes": slope(sizes, memory),
    }  # fmt: skip


def planning() -> Iterator[tuple[str, dict[str, Any]]]:
    """Seconds of a plan against the blocks that it finds."""
    for family, names in FAMILIES.items():
        blocks, seconds = [], []
        for name in names:
            model, x = timm.create_model(name, num_classes=10).eval(), torch.zeros(1, 3, 224, 224)
            began = time.perf_counter()
            made = plan(model, x)
            seconds.append(time.perf_counter() - began)
            blocks.append(sum(len(run.units) for run in made.runs))
        yield family, {"nets": list(names), "sizes": blocks, "seconds": seconds, "slope": slope(blocks, seconds)}


def show(found: dict[str, Any]) -> Table:
    """One row for each sweep."""
    table = Table(title="How cost grows: the exponent of time and of memory", width=80)
    for column in ("what", "against", "from", "to", "seconds", "slope", "memory"):
        table.add_column(column, justify="left" if column in ("what", "against") else "right")
    for part, rows in found.items():
        for axis, row in rows.items():
            cells = [row["slope"], row.get("slope_bytes")]
            ends = [f"{row['sizes'][i]}" for i in (0, -1)]
            clock = f"{row['seconds'][0]:.2g} - {row['seconds'][-1]:.2g}"
            table.add_row(part, axis, *ends, clock, *("" if c is None else f"{c:.2f}" for c in cells))
    return table


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(PARTS)}, planning; all by default.")] = None,
    rounds: int = 9,
    max_seconds: Annotated[float, typer.Option(help="Limit for the timing of each size.")] = 6.0,
    only_show: Annotated[bool, typer.Option("--show", help="Print what was measured.")] = False,
) -> None:
    """Measure, and print the slopes."""
    wanted = parts or [*PARTS, "planning"]
    if unknown := [name for name in wanted if name not in (*PARTS, "planning")]:
        raise typer.BadParameter(f"expected {', '.join(PARTS)} or planning, got {unknown[0]!r}")
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    found = {name: kept[name] for name in (*PARTS, "planning") if name in kept}
    for name in () if only_show else wanted:
        if name == "planning":
            found[name] = dict(planning())
        else:
            found[name] = {axis: sweep(PARTS[name], axis, rounds, max_seconds) for axis in PARTS[name].sweeps}
        write_atomic(RESULTS, json.dumps({**found, "environment": environment()}, indent=1) + "\n")
    Console(width=80).print(show(found))


if __name__ == "__main__":
    typer.run(main)
