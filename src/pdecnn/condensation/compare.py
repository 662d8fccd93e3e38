"""A model before and after, side by side: accuracy, cost, latency as served, size on disk."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.analysis.cost import profile
from pdecnn.analysis.latency import Timing, measure
from pdecnn.condensation.deployed import BATCHES, in_words
from pdecnn.shared.progress import ProgressCallback, begin, counted
from pdecnn.shared.trees import arguments, sized, takes_images


@dataclass(frozen=True)
class Figures:
    """What a user wants to know of one model; times are medians in milliseconds, sizes bytes, accuracies per cent."""

    accuracy: float | None
    params: int
    macs: int
    macs_conv_fc: int
    macs_thop: int
    depth: int
    ms_batch_1: float
    ms_batch_64: float | None
    bytes_on_disk: int
    peak_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


ROWS = (
    ("accuracy", "accuracy, %", "{:.2f}"),
    ("params", "parameters", "{:,}"),
    ("macs", "MACs, exact", "{:,}"),
    ("macs_conv_fc", "MACs, conv+fc (as papers count)", "{:,}"),
    ("depth", "depth, layers", "{:,}"),
    ("ms_batch_1", "latency, batch 1, ms", "{:.2f}"),
    ("ms_batch_64", "latency, batch 64, ms", "{:.1f}"),
    ("bytes_on_disk", "size on disk, bytes", "{:,}"),
    ("peak_bytes", "activations alive, bytes", "{:,}"),
)


def figures(
    models: Mapping[str, nn.Module],
    image: Any,
    accuracies: Mapping[str, float | None],
    files: Mapping[str, Path],
    *,
    rounds: int = 15,
    batches: Sequence[int] = BATCHES,
    progress: ProgressCallback | None = None,
) -> tuple[dict[str, Figures], dict[str, float]]:
    """The figures of each model and, for each of the batches, how much faster the last one is than the first.

    Models are timed as they would be served, prepared alike by `optimize_for_inference`, in interleaved rounds.

    Args:
        models: By name; the first is the one before.
        image: One input, `(1, C, H, W)`, or what else the models take.
        accuracies: By name.
        files: The weights on disk, by name.
        rounds: Samples of each latency.
        batches: How many images at a time: 1, or 1 and 64.
        progress: Called with each round that is done, as `plan` does.
    """
    several = takes_images(next(iter(models.values())), image)
    timings = {n: latencies(models, sized(image, n, several), rounds, progress, f"batches of {n}") for n in batches}
    found = {}
    for name, model in models.items():
        cost = profile(model, image)
        found[name] = Figures(
            accuracies.get(name),
            cost.params,
            cost.exact,
            cost.conv_fc,
            cost.thop,
            cost.depth,
            1e3 * timings[1][name].median,
            1e3 * timings[64][name].median if 64 in timings else None,
            files[name].stat().st_size,
            cost.peak_bytes,
        )
    first, last = next(iter(models)), list(models)[-1]
    return found, {f"batch_{n}": t[last].speedup(t[first]).median for n, t in timings.items()}


def latencies(
    models: Mapping[str, nn.Module],
    x: Any,
    rounds: int,
    progress: ProgressCallback | None = None,
    what: str = "models",
) -> dict[str, Timing]:
    """Times the models as served, in interleaved rounds of at most 8 seconds in all."""
    served = {name: serve(model, x) for name, model in counted(models.items(), progress, f"preparing {what}")}

    def call(model: nn.Module) -> Any:
        with torch.inference_mode():
            return model(*arguments(model, x))

    calls = {name: partial(call, model) for name, model in served.items()}
    return measure(calls, rounds=rounds, max_seconds=8.0, done=begin(progress, f"timing {what}", rounds))


def serve(model: nn.Module, x: Any) -> nn.Module:
    """The model as it would be served: batch norms folded, Global layers fused; as it is if `x` is not one tensor."""
    if not isinstance(x, Tensor):
        return model.eval()
    from pdecnn.deploy.optimize import optimize_for_inference

    return optimize_for_inference(model, x)


BUSY = (
    "This machine was busy while models were timed: their medians and the ratios within rounds disagree. Time them "
    "again with pdecnn bench."
)


def was_busy(times: Iterable[tuple[float, float, float]]) -> bool:
    """Whether medians before and after are in another ratio than the third number, the median of ratios within rounds.

    Example:
        >>> was_busy([(2.0, 1.0, 1.9)]), was_busy([(2.0, 1.0, 1.9), (1.0, 2.0, 1.1)])
        (False, True)
    """
    return any(not 0.8 < before / after / ratio < 1.25 for before, after, ratio in times)


def comparison_rows(before: Figures, after: Figures, speedups: Mapping[str, float]) -> list[tuple[str, str, str, str]]:
    """Label, before, after and change as text: a difference of accuracies, a ratio of costs.

    The ratio of latencies is the median over rounds in which both were timed side by side, not that of the medians.
    """
    rows = []
    for name, label, form in ROWS:
        b, a = getattr(before, name), getattr(after, name)
        if b is None or a is None:
            continue
        ratio = speedups.get(name.removeprefix("ms_"), b / a)
        change = f"{a - b:+.2f}" if name == "accuracy" else in_words(ratio)
        rows.append((label, form.format(b), form.format(a), change))
    return rows
