"""What a training step costs: the loop around it, the allocator, ways to compute, and a whole epoch.

    python benchmarks/training.py                      # all parts, on one and two threads
    python benchmarks/training.py steps --threads 1    # parts by name

    loop        the time that `fit` adds to a bare step, and the share of data
    allocator   a step with freed memory kept, against the C library's own habit
    steps       ResNet-32 against ResNet-32-Global (K = 5): memory formats, with and without the compiler
    in_place    activations that overwrite what a norm or a sum left, as autograd allows, in both nets
    depthwise   EfficientNet-lite0 at 128 pixels: torch's depth-wise kernel against ours
    epoch       an epoch of the tiny ResNet-Global on 50,000 images of CIFAR's size, by its recipe

Candidates take turns, so that a machine that is busy or slows down treats them alike; figures are medians over rounds.
Results are merged by part into benchmarks/results/training.json. All parts but the allocator's run with memory kept, as
`pdecnn train` does.
"""

import copy
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import typer
from torch import nn
from torch.nn import functional as nnf

import pdecnn.models  # noqa: F401
from pdecnn.analysis import latency
from pdecnn.training import Dataset, Images, Recipe, fit, keep_memory, load_recipe, make_loaders
from pdecnn.training.choice import Way
from pdecnn.training.progress import Reporter

RESULTS = Path(__file__).parent / "results" / "training.json"
PAIR = ("cifar_resnet32", "cifar_resnet32_global")
TINY = "cifar_resnet_tiny_global"
STEPS = 10
WAYS = [Way(last, "torch", compiled) for compiled in (False, True) for last in (False, True)]


def images(count: int) -> Dataset:
    """Random images of CIFAR's shape; their content does not matter for the time."""
    x = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    kept = Images(x, torch.randint(0, 10, (count,)))
    return Dataset("random", kept, kept[:8], tuple("0123456789"), (0.5,) * 3, (0.25,) * 3)


def step_of(net: nn.Module, x: torch.Tensor, way: Way) -> Callable[[], None]:
    """Forward, cross-entropy, backward and SGD with momentum on one fixed batch."""
    forward, x = way.apply(net.train()), way.ordered(x)
    y = torch.zeros(len(x), dtype=torch.long)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        nnf.cross_entropy(forward(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def loop(threads: int, rounds: int) -> dict[str, Any]:
    """`fit` against a bare loop, and loading and augmentation alone."""
    batch = 128
    settings = Recipe.parse(
        {
            "model": {"name": TINY},
            "data": {"name": "cifar10", "batch_size": batch, "augment": {"pad": 4, "flip": 0.5}},
            "epochs": 1,
            "optimizer": {"lr": 0.01, "weight_decay": 1e-4},
            "evaluate_every": 0,
            "channels_last": False,
        }
    )
    net, data, x = timm.create_model(TINY), images(STEPS * batch), torch.randn(batch, 3, 32, 32)

    def timed(step: Callable[[], object]) -> float:
        began = time.perf_counter()
        step()
        return time.perf_counter() - began

    def in_fit() -> float:
        stamps: list[float] = []
        if fit(copy.deepcopy(net), data, settings, on_step=lambda *_: stamps.append(time.perf_counter())).status != (
            "finished"
        ):
            raise SystemExit(143)
        return statistics.median(b - a for a, b in itertools.pairwise(stamps))

    seconds: dict[str, list[float]] = {"bare": [], "loop": [], "data": []}
    for _ in range(rounds):
        bare = step_of(copy.deepcopy(net), x, Way(False, "torch", False))
        seconds["bare"].append(statistics.median([timed(bare) for _ in range(STEPS)][1:]))
        seconds["loop"].append(in_fit())
        batches = make_loaders(data, settings).train.batches(0)
        seconds["data"].append(statistics.median([timed(lambda: next(batches)) for _ in range(STEPS)][1:]))  # noqa: B023
    ms = {f"{name}_ms_per_step": 1e3 * statistics.median(values) for name, values in seconds.items()}
    ratio = statistics.median(a / b for a, b in zip(seconds["loop"], seconds["bare"], strict=True))
    share = ms["data_ms_per_step"] / ms["loop_ms_per_step"]
    goals = {"loop_over_bare": 1.15, "data_share": 0.10}
    return {"model": TINY, "batch": batch, **ms, "loop_over_bare": ratio, "data_share": share, "goals": goals}


def allocator(threads: int, rounds: int) -> dict[str, Any]:
    """Two processes for each net, one that keeps memory and one that does not, make steps in turns."""
    results: dict[str, Any] = {}
    for name in PAIR:
        workers = {
            word: subprocess.Popen(
                [sys.executable, __file__, "worker", "--net", name, "--threads", str(threads)],
                env=os.environ | {"PDECNN_ALLOCATOR": word},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for word in ("system", "keep")
        }
        lines: dict[str, list[dict[str, float]]] = {word: [] for word in workers}
        for _, (word, process) in itertools.product(range(rounds + 1), workers.items()):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("step\n")
            process.stdin.flush()
            lines[word].append(json.loads(process.stdout.readline()))
        for process in workers.values():
            process.communicate()
        pairs = list(zip(lines["keep"][1:], lines["system"][1:], strict=True))
        medians = {
            word: {key: statistics.median(line[key] for line in kept[1:]) for key in kept[0]}
            for word, kept in lines.items()
        }
        ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)
        results[name] = {**medians, "keep_over_system": ratio}
    return {"batch": 128, **results}


def work(name: str, threads: int) -> None:
    """A process of `allocator`: makes a step for each line that it reads and writes what it took."""
    import resource

    keep_memory()
    torch.set_num_threads(threads)
    step = step_of(timm.create_model(name), torch.randn(128, 3, 32, 32), Way(True, "torch", False))
    for _ in sys.stdin:
        faults, cpu, began = (
            resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
            time.process_time(),
            time.perf_counter(),
        )
        step()
        taken, used = time.perf_counter() - began, time.process_time() - cpu
        usage = resource.getrusage(resource.RUSAGE_SELF)
        line = {
            "seconds": taken,
            "cpu_seconds": used,
            "page_faults": usage.ru_minflt - faults,
            "peak_kb": usage.ru_maxrss,
        }
        print(json.dumps(line), flush=True)


def steps(threads: int, rounds: int) -> dict[str, Any]:
    """Each net by each way; the ratio is that of the fastest ways, without the compiler and with it."""
    x = torch.randn(64, 3, 32, 32)
    timed = {(name, way): step_of(timm.create_model(name), x, way) for name in PAIR for way in WAYS}
    timings = latency.measure(timed, rounds=rounds, warmup=2)
    ratios = {}
    for label, ways in (("plain", WAYS[:2]), ("compiler allowed", WAYS)):
        best = [min((timings[name, way] for way in ways), key=lambda t: t.median) for name in PAIR]
        ratios[label] = {"ratio": best[1].speedup(best[0]).to_dict(), "ways": [timing.name for timing in best]}
    seconds = {name: {str(way): timings[name, way].to_dict() for way in WAYS} for name in PAIR}
    return {"batch": 64, "seconds": seconds, "ratios": ratios, "goal": 3.0}


def in_place(threads: int, rounds: int) -> dict[str, Any]:
    """Steps in channels_last with activations in place and not; the gradients are compared first."""
    x, way = torch.randn(64, 3, 32, 32), Way(True, "torch", False)
    nets: dict[tuple[str, str], nn.Module] = {}
    for name in PAIR:
        nets[name, "beside"] = timm.create_model(name)
        nets[name, "in place"] = twin = copy.deepcopy(nets[name, "beside"])
        for word in ("beside", "in place"):
            for module in nets[name, word].modules():
                if isinstance(module, nn.ReLU):
                    module.inplace = word == "in place"
        gradients = []
        for net in (nets[name, "beside"], twin):
            copied = copy.deepcopy(net).train()
            copied(x).square().mean().backward()
            gradients.append([p.grad for p in copied.parameters()])
        if not all(map(torch.equal, *gradients)):  # type: ignore[arg-type]
            raise SystemExit(f"{name}: gradients in place are others")
    timings = latency.measure({key: step_of(net, x, way) for key, net in nets.items()}, rounds=rounds, warmup=2)
    seconds = {name: {word: timings[name, word].to_dict() for word in ("beside", "in place")} for name in PAIR}
    gain = {name: timings[name, "in place"].speedup(timings[name, "beside"]).to_dict() for name in PAIR}
    return {"batch": 64, "seconds": seconds, "gain": gain}


def depthwise(threads: int, rounds: int) -> dict[str, Any]:
    """EfficientNet-lite0, most of whose training is torch's depth-wise backward pass."""
    x, name = torch.randn(32, 3, 128, 128), "tf_efficientnet_lite0"
    ways = [Way(False, "torch", False), Way(True, "torch", False), Way(False, "native", False)]
    timed = {way: step_of(timm.create_model(name), x, way) for way in ways}
    timings = latency.measure(timed, rounds=rounds, warmup=1)
    best = min(ways[:2], key=lambda way: timings[way].median)
    gain = timings[ways[2]].speedup(timings[best]).to_dict()
    seconds = {str(way): timing.to_dict() for way, timing in timings.items()}
    return {"model": name, "batch": 32, "side": 128, "seconds": seconds, "ours_over_torchs_best": gain}


def epoch(threads: int, rounds: int) -> dict[str, Any]:
    """The second epoch of a run by the recipe; the first one warms up."""

    class Lines(Reporter):
        def __init__(self) -> None:
            self.said: list[str] = []

        def message(self, text: str) -> None:
            self.said.append(text)

    lines = Lines()
    settings = load_recipe("quick/cifar10-tiny-global").override(["epochs=2"])
    result = fit(timm.create_model(TINY), images(50_000), settings, reporter=lines)
    seconds = [row["seconds"] for row in result.history]
    return {"model": TINY, "batch": settings.data.batch_size, "seconds": seconds, "said": lines.said, "goal": 25.0}


PARTS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    part.__name__: part for part in (loop, allocator, steps, in_place, depthwise, epoch)
}


def run(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PARTS)}; all by default.")] = None,
    threads: Annotated[list[int] | None, typer.Option(help="Numbers of threads; 1 and 2 by default.")] = None,
    rounds: Annotated[int, typer.Option(min=3, help="Samples of each candidate.")] = 9,
    output: Annotated[Path, typer.Option(help="Where the results are merged.")] = RESULTS,
    net: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    if names == ["worker"] and net and threads:
        work(net, threads[0])
        return
    unknown = [name for name in names or () if name not in PARTS]
    if unknown:
        raise typer.BadParameter(f"no part named {unknown[0]!r}; there are {', '.join(PARTS)}.", param_hint="NAMES")
    keep_memory()
    torch.manual_seed(0)
    results = json.loads(output.read_text()) if output.exists() else {}
    for name, count in itertools.product(names or PARTS, threads or (1, 2)):
        with latency.threads(count):
            found = PARTS[name](count, rounds)
        found |= {"threads": count, "environment": latency.environment()}
        results.setdefault(name, {})[f"threads {count}"] = found
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(run)
