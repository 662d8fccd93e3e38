"""How a run shows itself: a live bar on a terminal, plain lines in a log, JSON lines for machines, or nothing."""

import json
import sys
import time
from typing import Any, TextIO

from rich.console import Console

from pdecnn.shared.bars import make_bar


class Reporter:
    """Says nothing; the base of the others."""

    def start(self, name: str, epochs: int, steps: int, step: int) -> None:
        """A run of `epochs * steps` steps begins or goes on at `step`."""

    def step(self, step: int, loss: float, lr: float) -> None:
        """A step was made."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch ended; `row` is its line of metrics."""

    def message(self, text: str) -> None:
        """Something else worth knowing."""

    def close(self) -> None:
        """The run ended."""


class PlainReporter(Reporter):
    """One line per epoch, with the time that is left, and one every few seconds of a long epoch."""

    def __init__(self, stream: TextIO | None = None, *, every: float = 10.0) -> None:
        self.stream, self.every = stream or sys.stderr, every

    def start(self, name: str, epochs: int, steps: int, step: int) -> None:
        """Notes the size of the run."""
        self.epochs, self.steps, self.first = epochs, steps, step
        self.began = self.said = time.monotonic()
        at = f", from step {step}" if step else ""
        self.message(f"{name}: {epochs} epochs of {steps} steps{at}")

    def step(self, step: int, loss: float, lr: float) -> None:
        """Writes a line if there was none for a while."""
        if time.monotonic() - self.said >= self.every and step % self.steps:
            epoch, within = divmod(step, self.steps)
            at = f"epoch {epoch + 1}/{self.epochs}, step {within}/{self.steps}"
            self.message(f"{at}  loss {loss:.4f}; lr {lr:.3g}  {self._left(step)}")

    def epoch(self, row: dict[str, Any]) -> None:
        """Writes the line of an epoch."""
        left = self._left(row["epoch"] * self.steps)
        self.message(f"epoch {row['epoch']}/{self.epochs}  {describe(row)}  {left}")

    def _left(self, step: int) -> str:
        each = (time.monotonic() - self.began) / max(step - self.first, 1)
        return f"{(self.epochs * self.steps - step) * each / 60:.1f} min left"

    def message(self, text: str) -> None:
        """Writes a line."""
        self.said = time.monotonic()
        self.stream.write(text + "\n")
        self.stream.flush()


class JsonReporter(Reporter):
    """One JSON object per epoch, on standard output."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout

    def epoch(self, row: dict[str, Any]) -> None:
        """Writes the row."""
        self.stream.write(json.dumps({"event": "epoch", **row}) + "\n")
        self.stream.flush()

    def message(self, text: str) -> None:
        """Writes the text as an object."""
        self.stream.write(json.dumps({"event": "message", "text": text}) + "\n")
        self.stream.flush()


class RichReporter(Reporter):
    """A live bar with speed and the time that is left, and one line per epoch above it."""

    def __init__(self, console: Console | None = None) -> None:
        self.bar = make_bar(console or Console(stderr=True), "loss")

    def start(self, name: str, epochs: int, steps: int, step: int) -> None:
        """Shows the bar."""
        self.bar.start()
        self.task = self.bar.add_task(name, total=epochs * steps, completed=step, loss="")
        self.name, self.epochs, self.steps = name, epochs, steps

    def step(self, step: int, loss: float, lr: float) -> None:
        """Moves the bar."""
        at = f"epoch {-(-step // self.steps)}/{self.epochs} {self.name}"
        self.bar.update(self.task, description=at, completed=step, loss=f"loss {loss:.3f} lr {lr:.2g}")

    def epoch(self, row: dict[str, Any]) -> None:
        """Prints the line of the epoch."""
        self.message(f"epoch {row['epoch']}/{self.epochs}  {describe(row)}")

    def message(self, text: str) -> None:
        """Prints a line above the bar."""
        self.bar.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        """Leaves the terminal tidy."""
        self.bar.stop()


def describe(row: dict[str, Any]) -> str:
    """The metrics of an epoch in words.

    Example:
        >>> describe({"train_loss": 0.5, "train_accuracy": 81.0, "eval_accuracy": 80.125, "lr": 0.1, "seconds": 3.2})
        'train loss 0.5000, 81.00 %; eval 80.12 %; lr 0.1; 3.2 s'
    """
    train = f"train loss {row['train_loss']:.4f}"
    train += "; " if row["train_accuracy"] is None else f", {row['train_accuracy']:.2f} %; "
    value, name = row.get("eval_accuracy"), row.get("metric")
    evaluated = "" if value is None else f"{name} {value:.4g}; " if name else f"eval {value:.2f} %; "
    return f"{train}{evaluated}lr {row['lr']:.3g}; {row['seconds']:.1f} s"


def choose_reporter(*, as_json: bool = False) -> Reporter:
    """JSON lines if asked for, the bar on a terminal, plain lines otherwise."""
    if as_json:
        return JsonReporter()
    return RichReporter() if sys.stderr.isatty() else PlainReporter()
