"""Wall-clock comparison: every candidate is timed in turn, round after round, so that drift hits all of them alike.

A ratio of two means taken one after the other on a shared machine says more about the neighbours than about the code.
Here one round times each candidate once, every round begins with another and goes the other way, so that of three or
more none comes right after itself, and `speedup` takes its ratios within a round.
"""

import os
import platform
import subprocess
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

from pdecnn.shared.environment import cpu_name

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one candidate, one sample per round."""

    name: str
    samples: tuple[float, ...]

    @property
    def p20(self) -> float:
        """The 20th percentile."""
        return percentile(self.samples, 0.2)

    @property
    def median(self) -> float:
        """The median."""
        return percentile(self.samples, 0.5)

    @property
    def p80(self) -> float:
        """The 80th percentile."""
        return percentile(self.samples, 0.8)

    def speedup(self, other: "Timing") -> "Timing":
        """How many times faster `self` is than `other`, per round (so the rounds must be shared)."""
        if len(self.samples) != len(other.samples):
            raise ValueError(
                f"Timing.speedup: {self.name!r} has {len(self.samples)} rounds and {other.name!r} "
                f"{len(other.samples)}. Measure both in one call of `measure`."
            )
        ratios = tuple(b / a for a, b in zip(self.samples, other.samples, strict=True))
        return Timing(f"{other.name}/{self.name}", ratios)

    def to_dict(self) -> dict[str, float | int]:
        """The three percentiles and the number of rounds, for a results file."""
        return {"p20": self.p20, "median": self.median, "p80": self.p80, "rounds": len(self.samples)}


def measure(
    candidates: Mapping[Key, Callable[[], object]],
    *,
    rounds: int = 20,
    warmup: int = 3,
    min_seconds: float = 2e-3,
    settle_seconds: float = 5e-3,
    max_seconds: float | None = None,
    done: Callable[[], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> dict[Key, Timing]:
    """Times the candidates in interleaved rounds.

    Args:
        candidates: Functions of no argument, by name or by any other key.
        rounds: Number of samples of each candidate.
        warmup: Calls of each candidate before the first sample.
        min_seconds: A sample repeats the call until it lasts about this long, so that the clock's grain does not show.
        settle_seconds: Calls that are not timed come before each sample for about this long, so that the caches hold
            this candidate and not the one before it; none if a single call lasts longer than twice this.
        max_seconds: Stop after this time in all, but not before 3 rounds.
        done: Called `rounds` times: after each round, and at the end for those that are left out.
        clock: What a sample is read from, `time.perf_counter` by default. `time.thread_time` stands while others have
            the core, but sees nothing of what other threads do.

    Example:
        >>> a = torch.ones(64, 64)
        >>> timings = measure({"one": lambda: a @ a, "ten": lambda: [a @ a for _ in range(10)]}, rounds=5)
        >>> timings["one"].median < timings["ten"].median
        True
    """
    if not candidates:
        raise ValueError("measure: expected at least one candidate, got none.")
    if rounds < 1 or warmup < 0:
        raise ValueError(f"measure: expected rounds >= 1 and warmup >= 0, got rounds={rounds}, warmup={warmup}.")
    settling, calls = {}, {}
    for name, function in candidates.items():
        for _ in range(warmup):
            function()
        once = max(_time(function, 1, clock), 1e-9)
        settling[name], calls[name] = round(settle_seconds / once), max(1, round(min_seconds / once))
    samples: dict[Key, list[float]] = {name: [] for name in candidates}
    start = time.perf_counter()
    for i in range(rounds):
        names, first = list(candidates), i % len(candidates)
        backwards = i % 2 == 1 and len(names) > 2  # two take turns already
        for name in (names[first:] + names[:first])[:: -1 if backwards else 1]:
            for _ in range(settling[name]):
                candidates[name]()
            samples[name].append(_time(candidates[name], calls[name], clock))
        if done:
            done()
        if max_seconds is not None and i >= 2 and time.perf_counter() - start > max_seconds:
            break
    if done:
        for _ in range(rounds - i - 1):
            done()
    return {name: Timing(str(name), tuple(s)) for name, s in samples.items()}


def percentile(samples: Sequence[float], q: float) -> float:
    """The q-quantile, linearly interpolated between order statistics.

    Example:
        >>> percentile([4.0, 1.0, 2.0], 0.5), percentile([0.0, 1.0], 0.2)
        (2.0, 0.2)
    """
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Runs the block on `n` threads of torch and restores the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def environment() -> dict[str, Any]:
    """What a benchmark result must carry: CPU, cores, versions, commit (`+` when the tree has changes), load average.

    The load is that of the moment when this file was imported, before anything was measured, and that of now.
    """
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 1,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": version("timm"),
        "pdecnn": version("pdecnn"),
        "commit": _commit(),
        "load": [_LOAD_BEFORE, _load()],
    }


def _load() -> float | None:
    """Processes that ran or waited in the last minute, on average, where the system tells."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


_LOAD_BEFORE = _load()


def _time(function: Callable[[], object], calls: int, clock: Callable[[], float] | None = None) -> float:
    now = clock or time.perf_counter
    _wait_for_gpu()
    start = now()
    for _ in range(calls):
        function()
    _wait_for_gpu()
    return (now() - start) / calls


def _wait_for_gpu() -> None:
    """Calls return before a GPU has done the work: the clock waits for it. Without a GPU in use, nothing happens."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _commit() -> str:
    root = Path(__file__).parent
    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
