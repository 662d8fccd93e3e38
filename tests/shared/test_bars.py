"""Bars in narrow terminals."""

import io

import pytest
from rich.console import Console

from pdecnn.shared.bars import make_bar


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("fields", [(), ("loss",)])
def test_counts_and_times_are_whole(width, fields):
    stream = io.StringIO()
    bar = make_bar(Console(file=stream, force_terminal=True, width=width, color_system=None), *fields)
    with bar:
        values = dict.fromkeys(fields, "loss 0.125 lr 0.05")
        task = bar.add_task("epoch 12/300 " + "a long name of a run " * 4, total=98_765, **values)
        bar.update(task, completed=98_764)
    last = [line for line in stream.getvalue().replace("\r", "\n").splitlines() if "left" in line][-1]
    for part in ("98764/98765", "0:00:00 left -:--:--", *values.values()):
        assert part in last
    if width >= 80:
        assert "epoch 12/300" in last
