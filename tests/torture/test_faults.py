"""A disk that is full at the n-th call, once or from then on, and writes that are cut short: told, and nothing lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torture_log import LONG, note

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    file = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", file, HERE / "faults.c", "-ldl"], check=True)
    return file


def run(library, names, folder, every, modes="once,full,short"):
    """The counts of each campaign, all in one process."""
    path = os.pathsep.join(str(p) for p in (HERE, HERE.parent / "training", os.environ.get("PYTHONPATH", "")) if p)
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", str(HERE / "writers.py"), names, str(folder), str(every), modes]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=7200)
    assert result.returncode == 0, result.stderr[-3000:]
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    for counts in found:
        note(f"faults: {json.dumps(counts)}")
        assert counts["told"] == counts["failed"]
        assert counts["calls"] >= 4
        if counts["mode"] != "short":
            assert counts["failed"] >= counts["faults"] // 2 > 0
    return found


def test_every_call_of_a_save(library, tmp_path):
    pytest.importorskip("onnxruntime")
    assert len(run(library, "checkpoint,new checkpoint,plan,export", tmp_path, 1)) == 12


def test_some_calls_of_a_run(library, tmp_path):
    (counts,) = run(library, "train", tmp_path, 60, "full")
    assert counts["calls"] > 100


@pytest.mark.slow
def test_every_call_of_a_run(library, tmp_path):
    assert len(run(library, "train", tmp_path, 1 if LONG else 20)) == 3
