"""One model, several runtimes, one run: what each takes for a batch, on the same threads, in interleaved rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.analysis.latency import measure, percentile, threads
from pdecnn.deploy.api import session
from pdecnn.deploy.check import onnx_runner
from pdecnn.deploy.engines import make_engine
from pdecnn.deploy.optimize import optimize_for_inference
from pdecnn.deploy.served import RUNTIMES as RUNTIMES
from pdecnn.deploy.served import Served, check_runtime
from pdecnn.shared.progress import ProgressCallback, begin, showing


@dataclass(frozen=True)
class Row:
    """Milliseconds of one model in one runtime at one batch size; `bytes` of its weights or its file."""

    model: str
    runtime: str
    batch: int
    threads: int
    p50_ms: float
    p90_ms: float
    bytes: int
    samples: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All but the samples, for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "samples"}


def bench(
    models: Mapping[str, tuple[nn.Module, Tensor]],
    *,
    runtimes: Sequence[str] = ("eager", "optimized", "onnx", "onnx-fused"),
    batches: Sequence[int] = (1, 64),
    num_threads: int = 1,
    rounds: int = 20,
    max_seconds: float = 20.0,
    files: Mapping[str, tuple[str, Path]] | None = None,
    progress: ProgressCallback | bool = True,
) -> list[Row]:
    """Times every model in every runtime; all candidates of a batch size take turns in each round.

    Args:
        models: By name, a model and an example batch of its inputs.
        runtimes: Of `RUNTIMES`.
        batches: Batch sizes.
        num_threads: Threads inside an operator.
        rounds: Samples of each candidate.
        max_seconds: Limit for each batch size; never fewer than 3 rounds.
        files: ONNX files of the first model that take their turns too, `{label: (ops, path)}`.
        progress: Whether to show what takes over two seconds, or what is called with each part that is done.
    """
    for name in runtimes:
        check_runtime("bench", name)
    with threads(num_threads), torch.no_grad(), showing(progress) as report:
        made, done = {}, begin(report, "preparing", len(models) * len(runtimes))
        for name, (model, x) in models.items():
            for runtime in runtimes:
                made[name, runtime] = make_runner(runtime, model.eval(), x, num_threads)
                done()
        first = next(iter(models))
        for label, (ops, path) in (files or {}).items():
            made[first, label] = _file_runner(path, ops, num_threads)
        rows = []
        for batch in batches:
            inputs = {name: _batch(x, batch) for name, (_, x) in models.items()}
            candidates = {(name, runtime): partial(run, inputs[name]) for (name, runtime), (run, _) in made.items()}
            done = begin(report, f"timing batches of {batch}", rounds)
            timings = measure(candidates, rounds=rounds, max_seconds=max_seconds, done=done)
            for (name, runtime), (_, size) in made.items():
                samples = timings[name, runtime].samples
                p50, p90 = (1e3 * percentile(samples, q) for q in (0.5, 0.9))
                rows.append(Row(name, runtime, batch, num_threads, p50, p90, size, samples))
        return rows


def speedup(row: Row, baseline: Row) -> float:
    """How many times faster `row` is than `baseline`: the median of the ratios within each round."""
    return percentile([b / a for a, b in zip(row.samples, baseline.samples, strict=True)], 0.5)


def _batch(x: Tensor, batch: int) -> Tensor:
    return x.repeat(-(-batch // len(x)), *[1] * (x.ndim - 1))[:batch].contiguous()


def make_runner(runtime: str, model: nn.Module, x: Tensor, num_threads: int) -> tuple[Callable[[Tensor], object], int]:
    """The model in a runtime, as a function of its input, and the bytes of its weights or of its file."""
    check_runtime("bench", runtime)
    weights = sum(q.numel() * q.element_size() for q in model.state_dict().values())
    match runtime:
        case "eager":
            return model, weights
        case "optimized":
            return optimize_for_inference(model, x[:1]), weights
        case "compile":
            return compiled(model), weights
        case "auto":
            served = optimize_for_inference(model, x, runtime="auto")
            assert isinstance(served, Served)
            return served, served.engine.bytes if served.engine else weights
    # how long it takes does not depend on the scales
    engine = make_engine(
        runtime, model, (x,), threads=num_threads, int8=[(x[:8],)] if runtime.endswith("int8") else None
    )
    return lambda inputs: engine([inputs]), engine.bytes


def compiled(model: nn.Module) -> Any:
    """The model compiled by itself: of networks that share their code, torch otherwise compiles the first eight."""
    own: dict[str, Any] = (
        {"isolate_recompiles": True} if "isolate_recompiles" in signature(torch.compile).parameters else {}
    )
    return torch.compile(model, dynamic=True, **own)


def _file_runner(file: Path, ops: str, num_threads: int) -> tuple[Callable[[Tensor], object], int]:
    run = onnx_runner(session(file, ops=ops, threads=num_threads))
    return lambda inputs: run([inputs]), file.stat().st_size
