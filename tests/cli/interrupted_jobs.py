"""Runs `pdecnn condense` in one folder, ends it in the middle again and again, and continues it each time.

    python interrupted_jobs.py FOLDER

Everything is imported once; each part is then a process of its own, on a few images of the embedded data, with its
output in FOLDER/NAME.err and FOLDER/NAME.out. Prints `{name: [exit code, files]}` as JSON. The last job is never ended.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import accelerate  # noqa: F401
import onnxruntime  # noqa: F401
import onnxscript  # noqa: F401
import torch

from pdecnn.cli import main
from pdecnn.condensation import example
from pdecnn.training import load_dataset

QUICK = ("--epochs", "3", "--K", "1", "--only", "stages.2", "--threads", "1")
PARTS = {  # the folder, the line to wait for, seconds after it, the signal, more arguments
    "teacher": ("trained", "epoch 1/", 0.05, signal.SIGINT, ("--train-teacher",)),
    "fit": ("ended", "fitting each new layer", 0.2, signal.SIGKILL, ()),
    "refused": ("ended", None, 0.0, 0, ()),
    "distill": ("ended", "epoch 1/3", 0.05, signal.SIGKILL, ("--resume",)),
    "stop": ("ended", "epoch 2/3", 0.0, signal.SIGINT, ("--resume",)),
    "export": ("ended", "writing for ONNX Runtime", 1.0, signal.SIGKILL, ("--resume",)),
    "last": ("ended", None, 0.0, 0, ("--resume",)),
    "again": ("ended", None, 0.0, 0, ("--resume",)),
    "whole": ("whole", None, 0.0, 0, ()),
}


def child(folder: Path, name: str, target: Path, arguments: tuple[str, ...]) -> None:
    for number, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{name}.{suffix}", os.O_WRONLY | os.O_CREAT), number)
    alone = "--resume" in arguments  # the folder knows the rest
    sys.argv = ["pdecnn", "condense", *(("--threads", "1") if alone else QUICK), "--output", str(target), *arguments]
    try:
        main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)  # the threads of what was imported stayed with the parent


def wait_for(line: str, file: Path, pid: int) -> None:
    for _ in range(6000):
        if file.exists() and line in file.read_text():
            return
        if os.waitpid(pid, os.WNOHANG)[0]:
            raise SystemExit(f"the job ended before {line!r}: {file.read_text()}")
        time.sleep(0.05)
    raise SystemExit(f"no {line!r} in five minutes: {file.read_text()}")


def run(folder: Path) -> dict[str, tuple[int, list[str]]]:
    small = load_dataset("fashion-mini").limit(128, 32)
    example.load_dataset = lambda name: small
    ends = {}
    for name, (home, line, seconds, number, arguments) in PARTS.items():
        target = folder / home
        pid = os.fork()
        if not pid:
            child(folder, name, target, arguments)
        if line is not None:
            wait_for(line, folder / f"{name}.err", pid)
            time.sleep(seconds)
            os.kill(pid, number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        ends[name] = code, sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    return ends


if __name__ == "__main__":
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started deaf to it
    print(json.dumps(run(Path(sys.argv[1]))))
