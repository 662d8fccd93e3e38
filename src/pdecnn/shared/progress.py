"""How work other than training shows itself: stages of so many parts, as bars on a terminal or as lines in a log.

What does the work calls a `ProgressCallback`; here are those that show it, on standard error.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TextIO, TypeVar

from rich.console import Console
from rich.progress import Progress

from pdecnn.shared.bars import make_bar

ProgressCallback = Callable[[str, int, int], None]
"""Called with what is being done, how many of its parts are done, and how many there are; 0 begins a stage."""

PATIENCE = 2.0  # seconds; shorter work shows nothing

Item = TypeVar("Item")


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


def counted(items: Iterable[Item], report: ProgressCallback | None, text: str) -> Iterator[Item]:
    """The items, as a stage with a part for each; with one part if nobody knows how many they are.

    Example:
        >>> list(counted("ab", lambda text, n, total: print(f"{text}: {n} of {total}"), "reading"))
        reading: 0 of 2
        reading: 1 of 2
        reading: 2 of 2
        ['a', 'b']
    """
    try:
        total = len(items)  # type: ignore[arg-type]
    except TypeError:  # also that of a DataLoader on a dataset without a length
        total = None
    if total == 0:
        return
    done = begin(report, text, total or 1)
    for item in items:
        yield item
        if total is not None:
            done()
    if total is None:
        done()


class PlainLines:
    """A line when a stage begins and, if it lasts, one every few seconds with the time that is left."""

    def __init__(self, stream: TextIO | None = None, *, every: float = 5.0) -> None:
        self.stream, self.every = stream or sys.stderr, every
        self.began = self.said = time.monotonic()

    def __call__(self, text: str, done: int, total: int) -> None:
        """A part of a stage is done."""
        now = time.monotonic()
        if done == 0:
            self.start(text, total, now)
        elif done < total and now - self.said >= self.every:
            self.said = now
            left = (now - self.began) / done * (total - done)
            self.stream.write(f"{text}: {done} of {total}, {left:.0f} s left\n")
        self.stream.flush()

    def start(self, text: str, total: int, began: float) -> None:
        """Writes the first line of a stage."""
        self.began = self.said = began
        self.stream.write(f"{text}\n" if total == 1 else f"{text}: {total} parts\n")
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
            self.start(text, total, time.monotonic())
        assert self.bar is not None
        self.bar.update(self.task, completed=done)
        if done >= total:
            self.close()

    def start(self, text: str, total: int, began: float) -> None:
        """Shows the bar of a stage."""
        self.close()
        self.bar = make_bar(self.console)
        self.bar.start()
        self.task = self.bar.add_task(text, total=total)
        self.bar.tasks[0].start_time = began

    def close(self) -> None:
        """Leaves the terminal tidy."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Patient:
    """A display that shows nothing in the first seconds, and then where the work stands; for a `with` statement."""

    def __init__(self, display: Bars | PlainLines, seconds: float) -> None:
        self.display, self.awake = display, seconds <= 0
        self.stage: tuple[str, int, float] | None = None  # what, how many parts, since when
        self.done = 0
        self.lock, self.timer = threading.Lock(), threading.Timer(seconds, self._wake)
        self.timer.daemon = True

    def __call__(self, text: str, done: int, total: int) -> None:
        """A part of a stage is done."""
        with self.lock:
            self.done = done
            if done == 0:
                self.stage = text, total, time.monotonic()
            elif done >= total:
                self.stage = None
            if self.awake:
                self.display(text, done, total)

    def _wake(self) -> None:
        with self.lock:
            self.awake = True
            if self.stage is not None:
                self.display.start(*self.stage)
                if self.done:
                    self.display(self.stage[0], self.done, self.stage[1])

    def __enter__(self) -> "Patient":
        self.timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self.lock:
            self.timer.cancel()
            self.stage = None
            self.display.__exit__(kind, error, at)


def choose_progress() -> Bars | PlainLines:
    """Bars on a terminal, plain lines otherwise; use it in a `with` statement."""
    return Bars() if sys.stderr.isatty() else PlainLines()


def showing(progress: ProgressCallback | bool) -> AbstractContextManager[ProgressCallback | None]:
    """The callback to use: the given one; for True one that shows what takes over two seconds; for False none."""
    if isinstance(progress, bool):
        return Patient(choose_progress(), PATIENCE) if progress else nullcontext(None)
    return nullcontext(progress)
