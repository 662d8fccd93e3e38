"""What planning shows: stages with counts, as bars on a terminal and as lines in a log."""

import io
import os
import pty
import subprocess
import sys
import time

import pytest
import timm
import torch
from rich.console import Console

import pdecnn
from pdecnn.shared.progress import Bars, PlainLines, choose_progress

X = torch.zeros(1, 3, 32, 32)


def test_every_stage_of_a_budget_counts_to_its_end():
    seen: list[tuple[str, int, int]] = []
    pdecnn.plan(
        timm.create_model("cifar_resnet32"), X, budget={"latency_ms": 1e4}, progress=lambda *part: seen.append(part)
    )
    stages = list(dict.fromkeys(text for text, _, _ in seen))
    assert stages == [
        "running the model once",
        "counting what each run costs",
        "trying all replacements together",
        "timing 15 blocks",
        "timing new layers",
        "timing the model",
        "timing plan 1, which may take 10000.00 ms",
    ]
    for stage in stages:
        (total,) = {total for text, _, total in seen if text == stage}
        assert [done for text, done, _ in seen if text == stage] == list(range(total + 1))
    assert ("timing new layers", 3, 3) in seen


def test_a_bar_shows_counts_and_is_stopped_when_a_stage_ends():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    with Bars(console) as bars:
        for done in range(4):
            bars("timing blocks", done, 3)
        assert bars.bar is None
        bars("timing more", 0, 9)
        bars("timing more", 4, 9)
        assert bars.bar is not None
    assert bars.bar is None
    text = stream.getvalue()
    assert "timing blocks" in text
    assert "3/3" in text
    assert "4/9" in text
    assert "left" in text
    assert text.rstrip("\n").endswith("\x1b[?25h")  # the cursor is back


def test_an_error_in_a_stage_leaves_no_live_bar():
    console = Console(file=io.StringIO(), force_terminal=True)
    bars = Bars(console)

    def plan_fails() -> None:
        with bars:
            bars("timing", 0, 2)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        plan_fails()
    assert bars.bar is None
    with console.status("a live display can begin"):
        pass


def test_plain_lines_tell_stages_and_now_and_then_the_time_left(monkeypatch):
    clock = iter([0.0, 0.0, 1.0, 6.0, 7.0, 12.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    lines = PlainLines(stream, every=5)
    for done in range(5):
        lines("timing", done, 4)
    assert stream.getvalue().splitlines() == ["timing: 4 parts", "timing: 2 of 4, 6 s left"]


def test_a_log_gets_lines(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(choose_progress(), PlainLines)


def test_a_terminal_gets_bars():
    master, slave = pty.openpty()
    code = (
        "from pdecnn.shared.progress import choose_progress\n"
        "with choose_progress() as report:\n    report('timing', 0, 2)\n    report('timing', 2, 2)"
    )
    subprocess.run([sys.executable, "-c", code], stderr=slave, check=True, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    text = os.read(master, 65536).decode()
    os.close(master)
    assert "2/2" in text
    assert "━" in text
