"""Both models in ONNX Runtime, one thread: latency, size, and whether the files compute what the models do."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from pdecnn.analysis.latency import Timing, measure
from pdecnn.shared.modules import tensors_in
from pdecnn.shared.progress import ProgressCallback, begin
from pdecnn.shared.trees import sized

BATCHES = (1, 64)


@dataclass(frozen=True)
class OnnxFile:
    """One model as an ONNX file; times are medians in milliseconds, the error is relative to the largest output."""

    ops: str
    bytes: int
    ms_batch_1: float
    ms_batch_64: float | None
    max_error: float
    top1: float
    samples: int

    @property
    def agreement(self) -> str:
        """How the file's answers compare with the model's, in words."""
        return (
            f"on {self.samples} images: max error {self.max_error:.1e} of the largest output, "
            f"top-1 agreement {100 * self.top1:.1f} %"
        )


@dataclass(frozen=True)
class OnnxComparison:
    """The ONNX files of the model before and after; `fused`: the latter with its Global layers as one node each.

    `speedups` are medians of the ratios within rounds in which all files took turns: `batch_1`, `batch_64` and, for the
    fused file, `fused_batch_1`, `fused_batch_64`.
    """

    file: str
    before: OnnxFile
    after: OnnxFile
    fused: OnnxFile | None
    speedups: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "OnnxComparison":
        """The inverse of `to_dict`."""
        files = {name: values[name] and OnnxFile(**values[name]) for name in ("before", "after", "fused")}
        return cls(**{**values, **files})

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Label, before, after and change, as `compare.comparison_rows` gives them."""
        rows = [(f"{label}, ms", f"{b:.2f}", f"{a:.2f}", in_words(ratio)) for label, b, a, ratio in self.times()]
        b, a = self.before.bytes, self.after.bytes
        return [*rows, ("ONNX file, bytes", f"{b:,}", f"{a:,}", in_words(b / a))]

    def times(self) -> list[tuple[str, float, float, float]]:
        """Label, milliseconds before and after, and how many times faster, for each file and batch."""
        found = []
        for prefix, label, file in (("", "ONNX Runtime", self.after), ("fused_", "ONNX Runtime, fused", self.fused)):
            for n in (n for n in BATCHES if file and f"{prefix}batch_{n}" in self.speedups):
                b, a = (getattr(f, f"ms_batch_{n}") for f in (self.before, file))
                found.append((f"{label}, batch {n}", b, a, self.speedups[f"{prefix}batch_{n}"]))
        return found

    def lines(self) -> list[str]:
        """What the rows do not tell: how well the student's files agree with the student."""
        lines = [f"{self.file} against the student {self.after.agreement}."]
        return lines + ([f"The same with fused ops {self.fused.agreement}."] if self.fused else [])


def in_words(ratio: float) -> str:
    """`1.5` -> `"1.50 x less"`, `0.5` -> `"2.00 x more"`, `1.001` -> `"the same"`."""
    if f"{ratio:.2f}" == "1.00":
        return "the same"
    return f"{ratio:.2f} x less" if ratio >= 1 else f"{1 / ratio:.2f} x more"


def compare_onnx(
    before: nn.Module,
    after: nn.Module,
    images: Any,
    path: Path,
    *,
    rounds: int = 15,
    max_seconds: float = 2.0,
    say: Callable[[str], None] | None = None,
    batches: Sequence[int] = BATCHES,
    metadata: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> OnnxComparison:
    """Exports both models, runs the files on `images`, and times them side by side; `path` keeps that of `after`.

    Args:
        before: The model before.
        after: The condensed model.
        images: Real images to compare the answers on, a few dozen.
        path: Where the file of `after`, in portable operators, goes.
        rounds: Samples of each latency.
        max_seconds: Limit for the timing of each batch size.
        say: Called with a line if the fused operators cannot be tried.
        metadata: What the files say of themselves, as in `export`.
        progress: Called with each part that is done, as `plan` does.

    Without the extra `export` this is an ImportError that names it; if a file does not compute what its model does, an
    `ExportError` says where they part, and if none can be written, a `CannotExportError` says why.
    """
    from pdecnn.deploy.api import export, session
    from pdecnn.deploy.check import CannotExportError, ExportError, onnx_runner

    with tempfile.TemporaryDirectory() as folder:
        wanted = {"after": (after, "portable", path), "before": (before, "portable", Path(folder) / "before.onnx")}
        if why_not := fused_is_missing():
            (say or (lambda text: None))(f"fused ops are left out: {why_not}")
        else:
            wanted["fused"] = (after, "fused", Path(folder) / "fused.onnx")
        reports, done = {}, begin(progress, "writing and comparing ONNX files", len(wanted))
        for name, (model, ops, file) in list(wanted.items()):
            try:
                reports[name] = export(model.eval(), file, images, ops=ops, metadata=metadata, progress=False)
            except (ExportError, CannotExportError) as error:
                if name != "fused":
                    raise
                (say or (lambda text: None))(f"fused ops are left out: {error}")
                del wanted[name]
            done()
        runs = {name: onnx_runner(session(file, ops=ops, threads=1)) for name, (_, ops, file) in wanted.items()}
        timings: dict[int, dict[str, Timing]] = {}
        for n in batches:
            x = tensors_in(sized(images, n))
            calls = {name: partial(run, x) for name, run in runs.items()}
            done = begin(progress, f"timing batches of {n} in ONNX Runtime", rounds)
            timings[n] = measure(calls, rounds=rounds, max_seconds=max_seconds, done=done)
    files = {}
    for name, report in reports.items():
        found = report.agreement
        assert found is not None
        one, many = 1e3 * timings[1][name].median, 1e3 * timings[64][name].median if 64 in timings else None
        files[name] = OnnxFile(report.ops, report.bytes, one, many, found.max_error, found.top1, found.samples)
    speedups = {
        f"{prefix}batch_{n}": timings[n][name].speedup(timings[n]["before"]).median
        for prefix, name in (("", "after"), ("fused_", "fused"))
        for n in batches
        if name in files
    }
    return OnnxComparison(path.name, files["before"], files["after"], files.get("fused"), speedups)


def fused_is_missing() -> str:
    """Why ONNX Runtime cannot use the operators of pdecnn here; empty if it can."""
    from pdecnn.deploy.sessions import session_options

    try:
        session_options(fused=True)
    except RuntimeError as error:
        return str(error)
    return ""
