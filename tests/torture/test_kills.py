"""Kills at random moments of saving and of training: a whole checkpoint always, and the same bits after a resume."""

import os
import random
import signal
import time

import pytest
from test_files import kill_overwriting
from test_resume import train
from torture_log import LONG, note
from training_toys import assert_same_weights, single_thread, start

from pdecnn.shared.files import clean_up


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exchange", "plain"])
def test_kills_while_saving(tmp_path, how):
    kills = 1000 if LONG else 100
    kill_overwriting(tmp_path / "net", kills, how, seed=1)
    note(f"kills while overwriting a checkpoint ({how}): {kills}, 0 lost")
    clean_up(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["net"]


@pytest.mark.slow
def test_kills_while_training(tmp_path):
    start(single_thread).join()
    process = start(train, str(tmp_path / "whole"), 4, 0.01)
    began = time.monotonic()
    process.join(200)
    duration, rng, kills, runs = time.monotonic() - began, random.Random(2), 0, 0
    while kills < (300 if LONG else 10):
        folder = tmp_path / f"run{runs}"
        for attempt in range(9):
            process = start(train, str(folder), 4, 0.01)
            process.join(rng.uniform(0, duration) if attempt < 8 else None)
            if process.exitcode is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        assert process.exitcode == 0
        assert_same_weights(folder, tmp_path / "whole")
        runs += 1
    note(f"kills while training: {kills} in {runs} runs, all resumed to the same bits")
