"""Kills at random moments of saving, training, exporting and condensing: whole files, and the same bits after a resume.

With PDECNN_TORTURE they are a thousand in all.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_files import kill_overwriting
from test_resume import train
from torture_log import LONG, note
from training_toys import assert_same_weights, single_thread, start

from pdecnn.shared.files import clean_up


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exchange", "plain"])
def test_kills_while_saving(tmp_path, how):
    kills = 300 if LONG else 100
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
    while kills < (150 if LONG else 10):
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


def kill_exporting(folder, kills, seed=0):
    """Kills a process that exports one of two networks over the other; after each the file is one of them, whole."""
    from exports import export, which

    rng, seen = random.Random(seed), set()
    export(folder, 0)
    for i in range(kills):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for n in itertools.count(i):
                    export(folder, n % 2)
                    os.write(write, b".")
            finally:
                os._exit(1)
        os.close(write)
        os.read(read, 1)  # it has written one
        os.close(read)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        seen.add(which(folder))
    assert seen == {0, 1}
    export(folder, 0)  # what kills left is in nobody's way
    clean_up(folder)
    assert [entry.name for entry in folder.iterdir()] == ["net.onnx"]


def test_some_kills_while_exporting(tmp_path):
    pytest.importorskip("onnxruntime")
    kill_exporting(tmp_path, 20)


@pytest.mark.slow
def test_kills_while_exporting(tmp_path):
    kills = 200 if LONG else 40
    kill_exporting(tmp_path, kills, seed=1)
    note(f"kills while exporting: {kills}, the file was whole each time")


@pytest.mark.slow
def test_kills_while_condensing(tmp_path):
    script, kills = Path(__file__).with_name("killed_jobs.py"), 50 if LONG else 5
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    stages = ", ".join(f"{n} {stage}" for stage, n in counts["stages"].items())
    note(f"kills while condensing: {counts['kills']} ({stages}) in {counts['jobs']} jobs, all ended with the same bits")
