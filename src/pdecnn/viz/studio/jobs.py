"""A condense job of one visitor: it runs in a thread, tells how far it is, can be cancelled and continued."""

import logging
import shutil
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pdecnn.condensation.example import DATA, PRESET
from pdecnn.condensation.job import JobResult, run_job
from pdecnn.deploy.api import export
from pdecnn.training import Loaders
from pdecnn.training.inputs import Input
from pdecnn.training.own import open_data
from pdecnn.training.progress import Reporter, describe
from pdecnn.viz.studio.drawing import BLUE, GREY, Chart, Series, chart, note, table, tile, tiles
from pdecnn.viz.studio.pictures import to_picture
from pdecnn.viz.studio.planning import Planned

SHOWN, DIFFERENT = 12, 6  # pictures with both answers; of them at most so many where the answers differ
ONE_AT_A_TIME = threading.Lock()
EXPECTED = (OSError, ValueError, RuntimeError, ImportError, TypeError)


class CancelledError(Exception):
    """The visitor asked to stop."""


@dataclass
class Status:
    """How far a job is; written by its thread, read by the page."""

    text: str = "waiting for a job of another visitor"
    done: int = 0
    total: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    state: str = "running"  # then finished, cancelled or failed
    samples: str = ""
    files: list[str] = field(default_factory=list)
    result: JobResult | None = None


class Job:
    """A condense job in a thread.

    Args:
        planned: The net and its plan as edited.
        data: A folder of images, or a dataset by name.
        epochs: Epochs of distillation.
        seed: Seed of all that is random.
        folder: Where everything goes; a fresh temporary folder by default.
    """

    def __init__(
        self, planned: Planned, data: str = DATA, *, epochs: int = 10, seed: int = 0, folder: Path | None = None
    ) -> None:
        if not any(run.condenses for run in planned.plan.runs):
            raise ValueError("The plan keeps every block: lower keep of a run first.")
        self.planned, self.epochs, self.seed = planned, int(epochs), int(seed)
        self.data = data.strip() or DATA
        self.loaders = open_images(self.data, planned.net.wanted, self.seed)
        self.folder = Path(tempfile.mkdtemp(prefix="pdecnn-studio-")) if folder is None else folder
        self.status, self.stopping = Status(), threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> "Job":
        """Begins, or goes on after a cancel."""
        if self.running:
            raise ValueError("The job is running already.")
        self.stopping.clear()
        self.status = Status(history=self.status.history)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def cancel(self) -> None:
        """Asks the thread to stop at its next step."""
        self.stopping.set()

    @property
    def running(self) -> bool:
        """Whether the thread is at work."""
        return self.thread is not None and self.thread.is_alive()

    def close(self) -> None:
        """Stops, and removes the files; for visitors who have left."""
        self.cancel()
        if self.thread is not None:
            self.thread.join(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        status = self.status
        try:
            self._wait()
            try:
                self._condense()
            finally:
                ONE_AT_A_TIME.release()
            status.state, status.text = "finished", "finished"
        except CancelledError:
            status.state, status.text = "cancelled", "cancelled; Continue goes on from the last whole epoch"
        except EXPECTED as error:
            status.state, status.text = "failed", str(error)
        except Exception as error:
            logging.getLogger(__name__).exception("a job of the studio failed")
            status.state, status.text = "failed", f"This is a defect, please report it: {type(error).__name__}: {error}"

    def _wait(self) -> None:
        while not ONE_AT_A_TIME.acquire(timeout=0.2):
            self._go_on()

    def _go_on(self) -> None:
        if self.stopping.is_set():
            raise CancelledError

    def progress(self, text: str, done: int, total: int) -> None:
        """What the job calls with each part that is done."""
        self._go_on()
        self.status.text, self.status.done, self.status.total = text, done, total

    def _condense(self) -> None:
        rates = dict(PRESET) if self._is_example() else {}
        student, result = run_job(
            self.folder,
            self.planned.net.model,
            self.loaders,
            epochs=self.epochs,
            seed=self.seed,
            prepared=self.planned.plan,
            resume=(self.folder / "job.json").is_file(),
            say=self._say,
            progress=self.progress,
            reporter=lambda: _Watch(self),
            **rates,
        )
        self.status.result, self.status.history = result, list(result.history)
        self.progress("writing C, drawing samples", 0, 1)
        self.status.samples = both_answers(self.planned.net.model, student, self.loaders, self.planned.net.wanted)
        self.status.files = [str(path) for path in self._files(student)]

    def _say(self, text: str) -> None:
        self._go_on()
        self.status.lines.append(text)

    def _is_example(self) -> bool:
        return self.planned.net.name.startswith("fashion_resnet32") and self.data == DATA

    def _files(self, student: nn.Module) -> list[Path]:
        packed = self.folder / "student.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted((self.folder / "student").iterdir()):
                archive.write(file, f"student/{file.name}")
        files = [packed]
        if (self.folder / "student.onnx").is_file():
            files.append(self.folder / "student.onnx")
        try:
            x = next(iter(self.loaders.evaluation or self.loaders.plain or self.loaders.train.batches(0)))[0][:1]
            made = export(
                student,
                self.folder / "student.c",
                x,
                format="c",
                metadata={"classes": list(self.loaders.classes)},
                progress=False,
            )
            files += [Path(made.path), *(Path(made.path).with_name(Path(b).name) for b in made.beside)]
        except EXPECTED as error:
            self.status.lines.append(f"No C file: {error}")
        return [*files, self.folder / "report.html"]


class _Watch(Reporter):
    """Tells the job of each step and epoch."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def start(self, name: str, epochs: int, steps: int, step: int) -> None:
        """Notes the size of the run."""
        self.total, self.steps = epochs * steps, steps
        self.job.status.history = self.job.status.history[: step // steps]
        self.job.progress("distilling", step, self.total)

    def step(self, step: int, loss: float, lr: float) -> None:
        """A step was made."""
        self.job.progress(f"distilling, epoch {-(-step // self.steps)}, loss {loss:.3f}", step, self.total)

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch ended."""
        self.job.status.history = [*self.job.status.history, row]
        self.job.status.lines.append(f"epoch {row['epoch']}: {describe(row)}")


def open_images(data: str, wanted: Input, seed: int) -> Loaders:
    """The embedded images or the visitor's own."""
    loaders = open_data(data, wanted, seed=seed, workers=0)
    shape = tuple(loaders.input.get("shape") or wanted.shape)
    if shape != tuple(wanted.shape):
        sizes = ("x".join(map(str, q)) for q in (shape, wanted.shape))
        raise ValueError("The images of {} are {}, and this net takes {}: choose others.".format(data, *sizes))
    return loaders


@torch.no_grad()
def both_answers(teacher: nn.Module, student: nn.Module, data: Loaders, wanted: Input) -> str:
    """Pictures with the true class and both answers; those where they differ first."""
    x, y = next(iter(data.evaluation or data.plain or data.train.batches(0)))[:2]
    a, b = (model.eval()(x).argmax(1) for model in (teacher, student))
    order = [*(a != b).nonzero().flatten().tolist()[:DIFFERENT], *(a == b).nonzero().flatten().tolist()][:SHOWN]
    known = Input(
        tuple(data.input.get("shape", wanted.shape)),
        tuple(data.input.get("mean", wanted.mean)),
        tuple(data.input.get("std", wanted.std)),
    )

    def name(i: int) -> str:
        return data.classes[i] if 0 <= i < len(data.classes) else f"class {i}" if i >= 0 else "unknown"

    items = [
        tile(to_picture(x[i], known), f"{name(int(y[i]))}: before {name(int(a[i]))}, after {name(int(b[i]))}")
        for i in order
    ]
    same = 100 * float((a == b).double().mean())
    return tiles(items, "small") + note(f"Of {len(x)} images both give the same answer to {same:.1f} %.")


def progress_bar(status: Status) -> str:
    """What is being done, and a bar."""
    share = 100 * status.done / status.total if status.total else 0
    full = 100 if status.state == "finished" else share
    kind = {"failed": "trouble", "cancelled": "quiet"}.get(status.state, "says")
    count = f" ({status.done} of {status.total})" if status.total > 1 and status.state == "running" else ""
    inner = f'<div style="width:{full:.1f}%"></div>'
    bar = f'<div class="progress" role="progressbar" aria-valuenow="{full:.0f}">{inner}</div>'
    return f'<p class="{kind}" role="status">{escape(status.text)}{count}</p>{bar}'


def curve(status: Status) -> str:
    """Accuracy epoch by epoch."""
    rows = status.history
    if not rows:
        return ""
    series = [
        Series(
            name,
            [r["epoch"] for r in rows if r.get(key) is not None],
            [r[key] for r in rows if r.get(key) is not None],
            colour,
        )
        for name, key, colour in (
            ("training images (augmented)", "train_accuracy", GREY),
            ("test images", "eval_accuracy", BLUE),
        )
    ]
    return chart([s for s in series if s.x], Chart("epoch of distillation", "accuracy, %", "distillation", whole=True))


def outcome(status: Status) -> str:
    """Before and after, what did not get better, and the notes."""
    result = status.result
    if result is None:
        return ""
    rows = table(("", "before", "after", "change"), result.rows())
    worse = "".join(f"<li>{escape(line)}</li>" for line in result.worse)
    notes = "".join(note(line) for line in result.notes)
    return rows + (f"<p>What did not get better:</p><ul>{worse}</ul>" if worse else "") + notes


def wait_for(job: Job, seconds: float) -> Status:
    """The status once the job has ended, or after that many seconds; for scripts and tests."""
    end = time.monotonic() + seconds
    while job.running and time.monotonic() < end:
        time.sleep(0.05)
    return job.status
