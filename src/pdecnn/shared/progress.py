"""How planning shows itself: stages of so many parts, as live bars on a terminal or as plain lines in a log."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import Progress

from pdecnn.shared.bars import make_bar

ProgressCallback = Callable[[str, int, int], None]
"""Called with what is being done, how many of its parts are done, and how many there are; 0 begins a stage."""


def begin(report: ProgressCallback | None, text: str, total: int) -> Callable[[], None]:
    """Begins a stage; each call of what is returned says that one more part is done.

    Example:
        >>> done = begin(lambda text, n, total: print(f"{text}: {n} of {total}"), "timing", 2)
        timing: 0 of 2
        >>> done()
        timing: 1 of 2
    """
    count = 0

    def done() -> None:
        nonlocal count
        count = min(count + 1, total)
        if report:
            report(text, count, total)

    if report:
        report(text, 0, total)
    return done


class PlainLines:
    """A line when a stage begins and, if it lasts, one every few seconds with the time that is left."""

    def __init__(self, stream: TextIO | None = None, *, every: float = 5.0) -> None:
        self.stream, self.every = stream or sys.stderr, every
        self.began = self.said = time.monotonic()

    def __call__(self, text: str, done: int, total: int) -> None:
        """A part of a stage is done."""
        now = time.monotonic()
        if done == 0:
            self.began = self.said = now
            self.stream.write(f"{text}\n" if total == 1 else f"{text}: {total} parts\n")
        elif done < total and now - self.said >= self.every:
            self.said = now
            left = (now - self.began) / done * (total - done)
            self.stream.write(f"{text}: {done} of {total}, {left:.0f} s left\n")
        self.stream.flush()

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing to tidy up."""


class Bars:
    """A live bar per stage, with counts and the time that is left; a stage that ends leaves its bar behind."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.bar: Progress | None = None

    def __call__(self, text: str, done: int, total: int) -> None:
        """A part of a stage is done."""
        if done == 0 or self.bar is None:
            self.close()
            self.bar = make_bar(self.console)
            self.bar.start()
            self.task = self.bar.add_task(text, total=total)
        self.bar.update(self.task, completed=done)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Leaves the terminal tidy."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def choose_progress() -> Bars | PlainLines:
    """Bars on a terminal, plain lines otherwise; use it in a `with` statement."""
    return Bars() if sys.stderr.isatty() else PlainLines()
