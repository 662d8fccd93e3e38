"""Kills `pdecnn condense` at random moments, continues it each time, and compares what it made with a job left alone.

    python killed_jobs.py FOLDER KILLS

Everything is imported once; each attempt is then a process of its own. Prints `{"kills": ..., "jobs": ..., "stages":
...}` after each job; the stages count the kills by what the job had last said that it does.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))

import torch
from interrupted_jobs import QUICK

from pdecnn.cli import main
from pdecnn.condensation import example
from pdecnn.training import load_dataset

ATTEMPTS = 12  # the last of them is left alone
STAGES = {  # what is said when one begins
    "loading the teacher": "loading",
    "running the model": "planning",
    "fitting each": "fitting",
    "CifarResNet: ": "distilling",
    "counting, timing": "timing",
    "writing for ONNX": "exporting",
}


def start(target: Path) -> int:
    """A process that begins the job in `target`, or continues it."""
    pid = os.fork()
    if pid:
        return pid
    log = os.open(f"{target}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["pdecnn", "condense", *QUICK, "--output", str(target), "--resume"]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(code)


def ended(pid: int, seconds: float) -> bool:
    """Whether it ends by itself in that time; it must end well."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            assert status == 0, f"ended with {os.waitstatus_to_exitcode(status)}"
            return True
        time.sleep(0.005)
    return False


def stage(said: str) -> str:
    """The stage that an attempt was in, from all that it said."""
    begun = [name for line in said.splitlines() for start, name in STAGES.items() if line.startswith(start)]
    return begun[-1] if begun else "starting"


def outcome(target: Path) -> tuple[object, ...]:
    """All that must be the same: the bytes of the weights and of the plan, accuracies and losses."""
    result = json.loads((target / "result.json").read_text())
    files = ("teacher/model.safetensors", "student/model.safetensors", "student.onnx")
    losses = [row["train_loss"] for row in result["history"]]
    left = sorted(p.name for p in target.rglob(".*"))
    return *((target / name).read_bytes() for name in files), result["accuracies"], losses, left


def campaign(folder: Path, wanted: int) -> None:
    """Kills until there were enough of them."""
    small = load_dataset("fashion-mini").limit(128, 32)
    example.load_dataset = lambda name: small
    began = time.monotonic()
    assert ended(start(folder / "whole"), 600)
    duration, expected = time.monotonic() - began, outcome(folder / "whole")
    rng, stages, jobs = random.Random(3), Counter[str](), 0
    while stages.total() < wanted:
        target, log = folder / f"job{jobs}", folder / f"job{jobs}.log"
        for attempt in range(ATTEMPTS):
            before = log.stat().st_size if log.exists() else 0
            pid = start(target)
            seconds = duration * rng.random() * rng.random()  # short ones often: the first stages are as short
            if ended(pid, seconds if attempt + 1 < ATTEMPTS else 600):
                break
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            stages[stage(log.read_bytes()[before:].decode() if log.exists() else "")] += 1
        assert outcome(target) == expected, target
        jobs += 1
        print(json.dumps({"kills": stages.total(), "jobs": jobs, "stages": stages}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    campaign(Path(sys.argv[1]), int(sys.argv[2]))
