"""Two trees of pdecnn against each other: time(after) / time(before) for each case, in interleaved rounds.

    python benchmarks/ab.py --before OLD/bin/python --after NEW/bin/python            # all cases, 15 rounds
    python benchmarks/ab.py --before OLD/bin/python --after NEW/bin/python solver     # those whose name has `solver`

Each tree is installed in an environment of its own, whose Python is named. A process of each tree holds the case ready;
they run in turns, so that both meet the same load of the machine. What is shown is the median of the rounds' ratios and
the interval that holds the true median with 95 % confidence (order statistics of the binomial law). A change is slower
where the whole interval lies above 1.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

SHAPES = ("64x16x32x32", "64x32x16x16", "64x64x8x8", "32x64x56x56", "1x16x32x32", "8x24x112x112")
CASES = [
    *(f"solver forward {shape}" for shape in SHAPES),
    *(f"solver training {shape}" for shape in SHAPES),
    *(f"net {setting}" for setting in ("inference 1", "inference 64", "training 64")),
    *(f"onnx {ops} {batch}" for ops in ("portable", "fused") for batch in (1, 64)),
]
RESULTS = Path(__file__).parent / "results" / "ab.json"
NET = "cifar_resnet32_global"


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median."""
    ordered, n = sorted(ratios), len(ratios)
    below = 0
    while sum(math.comb(n, i) for i in range(below + 1)) / 2**n <= 0.025:
        below += 1
    below = max(below - 1, 0)
    return ordered[below], ordered[n - 1 - below]


def main(
    before: Annotated[Path, typer.Option(help="Python of the old tree.")],
    after: Annotated[Path, typer.Option(help="Python of the new tree.")],
    pattern: Annotated[str, typer.Argument(help="Cases whose name has this.")] = "",
    rounds: int = 15,
    threads: int = 1,
    save: Annotated[bool, typer.Option(help="Keep the figures in benchmarks/results/ab.json.")] = False,
) -> None:
    table = Table("case", "before, ms", "after, ms", "after / before", "95 % interval", title=f"{rounds} rounds")
    results: dict[str, Any] = {}
    workers = {name: Worker(python, threads) for name, python in (("before", before), ("after", after))}
    try:
        for case in (c for c in CASES if pattern in c):
            for worker in workers.values():
                worker.ask(case)
            times: dict[str, list[float]] = {name: [] for name in workers}
            for i in range(rounds):
                for name in sorted(workers, reverse=bool(i % 2)):
                    times[name].append(float(workers[name].ask("time")))
            ratios = [b / a for a, b in zip(times["before"], times["after"], strict=True)]
            low, high = interval(ratios)
            results[case] = {
                **{name: [round(1e3 * t, 4) for t in times[name]] for name in times},
                "ratio": median(ratios),
                "interval": [low, high],
            }
            milliseconds = (f"{1e3 * median(times[name]):.3f}" for name in ("before", "after"))
            table.add_row(case, *milliseconds, f"{median(ratios):.3f}", f"{low:.3f} - {high:.3f}")
            print(f"{case}: {median(ratios):.3f} ({low:.3f} - {high:.3f})", file=sys.stderr, flush=True)
    finally:
        for worker in workers.values():
            worker.process.kill()
    Console().print(table)
    if save:
        from pdecnn.analysis.latency import environment

        content = {"environment": environment(), "rounds": rounds, "threads": threads, "cases": results}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n")


class Worker:
    """A process of one tree that prepares a case and times it when asked."""

    def __init__(self, python: Path, threads: int) -> None:
        command = [str(python), __file__, "--worker", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> str:
        """Sends a line and waits for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        for answer in self.process.stdout:
            if answer.startswith("answer "):
                return answer.removeprefix("answer ").strip()
        raise RuntimeError(f"ab: the process of {self.process.args!r} ended at {line!r}; run it by hand to see why.")


def serve(threads: int) -> None:
    """The worker's side: a line names a case to prepare, or is `time`."""
    import torch

    torch.set_num_threads(threads)
    run: Callable[[], object] = lambda: None  # noqa: E731
    for line in sys.stdin:
        if line.strip() == "time":
            print("answer", seconds(run), flush=True)
            continue
        run = prepare(line.strip())
        seconds(run)
        print("answer ready", flush=True)


def seconds(run: Callable[[], object], least: float = 0.05) -> float:
    """The fastest of as many calls as fit in `least` seconds, after one that is not counted."""
    run()
    best, end = math.inf, time.perf_counter() + least
    while best == math.inf or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def prepare(case: str) -> Callable[[], object]:
    import torch

    torch.manual_seed(0)
    kind, what, size = case.split()
    if kind == "solver":
        return solver([int(n) for n in size.split("x")], training=what == "training")
    if kind == "net":
        return net(int(size), training=what == "training")
    return onnx(what, int(size))


def solver(shape: list[int], *, training: bool) -> Callable[[], object]:
    import torch

    import pdecnn

    # up to 0.1 `functional` was the plain-torch definition and `kernels` what one calls
    room: Any = pdecnn.functional if hasattr(pdecnn, "reference") else pdecnn.kernels
    fields = [torch.rand(shape, requires_grad=training) for _ in range(6)]
    grad = torch.rand(shape)

    def run() -> None:
        out = room.advection_diffusion(*fields, K=5)
        if training:
            torch.autograd.grad(out, fields, grad)

    return run


def net(batch: int, *, training: bool) -> Callable[[], object]:
    import timm
    import torch

    import pdecnn

    model = timm.create_model(NET)
    x = torch.rand(batch, 3, 32, 32)
    if training:
        model = model.train().to(memory_format=torch.channels_last)
        x, y = x.to(memory_format=torch.channels_last), torch.randint(10, (batch,))

        def step() -> None:
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()

        return step
    served = pdecnn.optimize_for_inference(model.eval(), x, memory_format=torch.channels_last)

    def run() -> None:
        with torch.no_grad():
            served(x)

    return run


def onnx(ops: str, batch: int) -> Callable[[], object]:
    import tempfile

    import timm
    import torch

    import pdecnn

    session = import_module("pdecnn.deploy" if hasattr(pdecnn, "reference") else "pdecnn.export.api").session
    x = torch.rand(batch, 3, 32, 32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        pdecnn.export(timm.create_model(NET).eval(), file, x, ops=ops)
        ready = session(file, ops=ops, threads=torch.get_num_threads())
    feed = {ready.get_inputs()[0].name: x.numpy()}
    return lambda: ready.run(None, feed)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        serve(int(sys.argv[-1]))
    else:
        typer.run(main)
