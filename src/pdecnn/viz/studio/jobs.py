"""A condense job of one visitor: a process that tells how far it is, and can be cancelled and continued."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import safetensors.torch

from pdecnn.condensation.example import DATA, PRESET
from pdecnn.shared.files import write_atomic
from pdecnn.viz.studio.drawing import BLUE, GREY, Chart, Series, chart, note, table
from pdecnn.viz.studio.planning import Planned
from pdecnn.viz.studio.worker import SETTINGS, TEACHER, open_images

ONE_AT_A_TIME = threading.Lock()
WAITING = "waiting for a job of another visitor"
PATIENCE = 30  # seconds between asking a process to stop and ending it
FIELDS = ("text", "done", "total", "state", "samples", "files", "rows", "worse", "notes", "history")


@dataclass
class Status:
    """How far a job is; written by one thread, read by the page."""

    text: str = WAITING
    done: int = 0
    total: int = 0
    state: str = "running"  # then finished, cancelled or failed
    history: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: str = ""
    files: list[str] = field(default_factory=list)

    def take(self, event: dict[str, Any]) -> None:
        """Notes what the process told."""
        for name in FIELDS:
            if name in event:
                setattr(self, name, event[name])
        if "line" in event:
            self.lines.append(event["line"])
        if "epochs" in event:  # it goes on there
            self.history = self.history[: event["epochs"]]
        if "epoch" in event:
            self.history = [*self.history, event["epoch"]]


class Job:
    """A condense job in a process of its own.

    Args:
        planned: The net and its plan as edited.
        data: A folder of images, or a dataset by name.
        epochs: Epochs of distillation.
        seed: Seed of all that is random.
        folder: Where everything goes; by default a temporary folder, which goes with the job.
    """

    def __init__(
        self, planned: Planned, data: str = DATA, *, epochs: int = 10, seed: int = 0, folder: Path | None = None
    ) -> None:
        if not any(run.condenses for run in planned.plan.runs):
            raise ValueError("The plan keeps every block: lower keep of a run first.")
        self.planned, self.data, self.epochs = planned, data.strip() or DATA, int(epochs)
        open_images(self.data, planned.net.wanted, seed)  # a wrong name is told before anything starts
        net = planned.net
        if folder is None:
            home = tempfile.mkdtemp(prefix="pdecnn-studio-")
            weakref.finalize(self, shutil.rmtree, home, True)
            folder = Path(home) / f"{file_name(net.name)}-condensed"  # the card has this name
            folder.mkdir()
        self.folder = folder
        example = net.name.startswith("fashion_resnet32") and self.data == DATA
        settings = {
            "name": net.name, "size": ",".join(map(str, net.wanted.shape)), "input": net.wanted.to_dict(),
            "plan": planned.plan.to_dict(), "data": self.data, "epochs": self.epochs, "seed": seed,
            "rates": PRESET if example else {},
        }  # fmt: skip
        write_atomic(self.folder / SETTINGS, json.dumps(settings))
        weights = {key: value.detach().clone().contiguous() for key, value in net.model.state_dict().items()}
        safetensors.torch.save_file(weights, self.folder / TEACHER)
        self.status, self.stopping = Status(), threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> "Job":
        """Begins, or goes on after a cancel."""
        if self.running:
            raise ValueError("The job is running already.")
        if self.thread is not None:
            self.thread.join()  # its process is on its way out
        self.stopping.clear()
        self.status = Status(history=self.status.history)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def cancel(self) -> None:
        """Asks the process to stop; what it has done can be continued."""
        self.stopping.set()

    @property
    def running(self) -> bool:
        """Whether it is waiting or at work; one that has told its end by itself is not, though its process may be."""
        at_work = self.thread is not None and self.thread.is_alive()
        return at_work and (self.status.state == "running" or self.stopping.is_set())

    def close(self) -> None:
        """Stops and waits for it; for visitors who have left or begin another job."""
        self.cancel()
        if self.thread is not None:
            self.thread.join(timeout=2 * PATIENCE)

    def _run(self) -> None:
        while not ONE_AT_A_TIME.acquire(timeout=0.2):
            if self.stopping.is_set():
                self.status.take({"state": "cancelled", "text": "cancelled"})
                return
        try:
            self._work()
        finally:
            ONE_AT_A_TIME.release()

    def _work(self) -> None:
        status = self.status
        status.text = "starting"
        command = [sys.executable, "-m", "pdecnn.viz.studio.worker", str(self.folder)]
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        watch = threading.Thread(target=self._end, args=(process,), daemon=True)
        watch.start()
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):  # a line that was cut off by the end of the process
                    status.take(json.loads(line))
        process.wait()
        watch.join()
        if status.state == "running" or (self.stopping.is_set() and status.state == "failed"):
            cancelled = self.stopping.is_set()
            said = (self.folder / "log").read_text(errors="replace").strip().rpartition("\n")[2]
            text = "cancelled" if cancelled else f"The process of the job ended by itself: {said[:300]}"
            status.take({"state": "cancelled" if cancelled else "failed", "text": text})

    def _end(self, process: "subprocess.Popen[str]") -> None:
        """Ends the process when the visitor asks to: it saves if it is training, and is ended if it takes too long."""
        while process.poll() is None and not self.stopping.wait(0.2):
            pass
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def file_name(model: str) -> str:
    """The last part of a model's name, fit for a folder.

    Example:
        >>> file_name("timm:resnet18.a1_in1k"), file_name("runs/my net/")
        ('resnet18-a1_in1k', 'my-net')
    """
    last = re.split(r"[/:\\\\]", model.strip("/ "))[-1]
    return re.sub(r"\W+", "-", last).strip("-") or "net"


def progress_bar(status: Status) -> str:
    """What is being done, a bar, and what came out last."""
    share = 100 * status.done / status.total if status.total else 0
    full = 100 if status.state == "finished" else share
    kind = {"failed": "trouble", "cancelled": "quiet"}.get(status.state, "says")
    count = f" ({status.done} of {status.total})" if status.total > 1 and status.state == "running" else ""
    more = "; Continue goes on where it was" if status.state == "cancelled" else ""
    inner = f'<div style="width:{full:.1f}%"></div>'
    bar = f'<div class="progress" role="progressbar" aria-valuenow="{full:.0f}">{inner}</div>'
    last = note(status.lines[-1].strip()) if status.lines and status.state == "running" else ""
    return f'<p class="{kind}" role="status">{escape(status.text)}{count}{more}</p>{bar}{last}'


def curve(status: Status) -> str:
    """Accuracy epoch by epoch."""
    series = []
    kinds = (("training images (augmented)", "train_accuracy", GREY), ("test images", "eval_accuracy", BLUE))
    for name, key, colour in kinds:
        rows = [row for row in status.history if row.get(key) is not None]
        if rows:
            series.append(Series(name, [row["epoch"] for row in rows], [row[key] for row in rows], colour))
    about = Chart("epoch of distillation", "accuracy, %", "distillation", whole=True)
    return chart(series, about) if series else ""


def outcome(status: Status) -> str:
    """Before and after, what did not get better, and the notes."""
    if not status.rows:
        return ""
    worse = "".join(f"<li>{escape(line)}</li>" for line in status.worse)
    notes = "".join(note(line) for line in status.notes)
    head = f"<p>What did not get better:</p><ul>{worse}</ul>" if worse else ""
    return table(("", "before", "after", "change"), status.rows) + head + notes


def wait_for(job: Job, seconds: float) -> Status:
    """The status once the job has ended, or after that many seconds; for scripts and tests."""
    end = time.monotonic() + seconds
    while job.running and time.monotonic() < end:
        time.sleep(0.05)
    return job.status
