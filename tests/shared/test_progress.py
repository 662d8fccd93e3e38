"""What shows work other than training: counted items, and displays that wait before they show anything."""

import io
import time

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from pdecnn.shared import progress
from pdecnn.shared.progress import Patient, PlainLines, counted, showing


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(3.0))


@pytest.mark.parametrize(
    "items, wanted",
    [
        (DataLoader(torch.arange(3.0), batch_size=2), [("reading", 0, 2), ("reading", 1, 2), ("reading", 2, 2)]),
        (DataLoader(Stream()), [("reading", 0, 1), ("reading", 1, 1)]),
        (iter("ab"), [("reading", 0, 1), ("reading", 1, 1)]),
        ([], []),
    ],
)
def test_items_are_counted_as_far_as_their_number_is_known(items, wanted):
    seen = []
    list(counted(items, lambda *part: seen.append(part), "reading"))
    assert seen == wanted
    assert list(counted("ab", None, "reading")) == ["a", "b"]


def test_short_work_shows_nothing():
    stream = io.StringIO()
    with Patient(PlainLines(stream), 60.0) as report:
        report("timing", 0, 2)
        report("timing", 2, 2)
        assert report.timer.is_alive()
    report.timer.join(10)
    assert not report.timer.is_alive()
    assert stream.getvalue() == ""


def test_long_work_is_shown_while_its_part_still_runs_and_since_when_it_began(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    lines = PlainLines(stream, every=5)
    report = Patient(lines, 60.0)
    report("preparing", 0, 1)
    report("preparing", 1, 1)
    report("timing", 0, 4)
    report("timing", 1, 4)
    assert stream.getvalue() == ""
    report._wake()  # as the clock does, from another thread
    assert stream.getvalue() == "timing: 4 parts\n"
    clock[0] = 110.0
    report("timing", 2, 4)
    assert stream.getvalue().splitlines()[1:] == ["timing: 2 of 4, 10 s left"]


def test_the_clock_wakes_it():
    stream = io.StringIO()
    with Patient(PlainLines(stream), 0.05) as report:
        report("writing", 0, 1)
        report.timer.join(10)
        assert stream.getvalue() == "writing\n"


def test_nothing_is_shown_after_the_end():
    stream = io.StringIO()
    with Patient(PlainLines(stream), 60.0) as report:
        report("writing", 0, 1)
    report._wake()
    assert stream.getvalue() == ""


def test_what_to_show_is_asked_for_by_one_word(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with showing(True) as report:
        report("timing", 0, 2)
    assert capsys.readouterr().err == "timing: 2 parts\n"
    with showing(False) as report:
        assert report is None
    with showing(print) as report:
        assert report is print
