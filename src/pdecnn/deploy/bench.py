"""One model, several runtimes, one run: what each takes for a batch, on the same threads, in interleaved rounds."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.analysis.latency import measure, percentile, threads
from pdecnn.deploy.api import session
from pdecnn.deploy.check import onnx_runner
from pdecnn.deploy.onnx import to_onnx
from pdecnn.shared.progress import ProgressCallback, begin, showing

RUNTIMES = ("eager", "optimized", "compile", "onnx", "onnx-fused", "onnx-int8", "c", "c-int8")


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
    unknown = [name for name in runtimes if name not in RUNTIMES]
    if unknown:
        raise ValueError(f"bench: runtime must be one of {', '.join(RUNTIMES)}, got {unknown[0]!r}.")
    with tempfile.TemporaryDirectory() as folder, threads(num_threads), torch.no_grad(), showing(progress) as report:
        made, done = {}, begin(report, "preparing", len(models) * len(runtimes))
        for i, (name, (model, x)) in enumerate(models.items()):
            for runtime in runtimes:
                file = Path(folder) / f"{i}-{runtime}.onnx"
                made[name, runtime] = make_runner(runtime, model.eval(), x, file, num_threads)
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


def make_runner(
    runtime: str, model: nn.Module, x: Tensor, file: Path, num_threads: int
) -> tuple[Callable[[Tensor], object], int]:
    """The model in a runtime, as a function of its input, and the bytes of its weights or its `file`."""
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime must be one of {', '.join(RUNTIMES)}, got {runtime!r}.")
    weights = sum(q.numel() * q.element_size() for q in model.state_dict().values())
    match runtime:
        case "eager":
            return model, weights
        case "optimized":
            from pdecnn.deploy.optimize import optimize_for_inference

            return optimize_for_inference(model, x[:1]), weights
        case "compile":
            return torch.compile(model, dynamic=True), weights
        case "c" | "c-int8":
            from pdecnn.deploy.c.build import runner
            from pdecnn.deploy.c.write import write

            # how long it takes does not depend on the scales
            written = write(model, (x,), "net", int8=[(x[:8],)] if runtime == "c-int8" else None)
            run = runner(written.source)
            return lambda inputs: run([inputs]), written.footprint.flash
    ops = "fused" if runtime == "onnx-fused" else "portable"
    proto = to_onnx(model, (x,), ops=ops)
    if runtime == "onnx-int8":
        from pdecnn.deploy.int8 import quantise

        proto = quantise(proto, [(x,)])  # how long it takes does not depend on the scales
    file.write_bytes(proto.SerializeToString())
    return _file_runner(file, ops, num_threads)


def _file_runner(file: Path, ops: str, num_threads: int) -> tuple[Callable[[Tensor], object], int]:
    run = onnx_runner(session(file, ops=ops, threads=num_threads))
    return lambda inputs: run([inputs]), file.stat().st_size
