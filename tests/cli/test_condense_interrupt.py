"""Ctrl-C in the middle of `pdecnn condense`: a clean end, whole files, and a rerun that works."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pdecnn.condensation import Plan
from pdecnn.shared.files import write_atomic

pytest.importorskip("onnxruntime")

TEACHER = [f"teacher/{name}" for name in ("config.json", "manifest.json", "model.safetensors")]
STUDENT = [name.replace("teacher", "student") for name in TEACHER]
ALL = sorted(
    [*TEACHER, *STUDENT, "student/README.md", "job.json", "plan.json", "report.html", "result.json", "student.onnx"]
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Path, dict[str, tuple[int, list[str]]]]:
    folder = tmp_path_factory.mktemp("interrupted")
    script = Path(__file__).with_name("interrupted_jobs.py")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_a_job_that_was_killed_again_and_again_gives_the_same_bits(ended):
    folder, ends = ended
    assert [ends[name][0] for name in ("fit", "distill", "export")] == [-9, -9, -9]
    for name in ("last", "whole"):
        assert ends[name][0] == 0, (folder / f"{name}.err").read_text()
        assert ends[name][1] == ALL
    weights = [(folder / home / "student/model.safetensors").read_bytes() for home in ("ended", "whole")]
    assert weights[0] == weights[1]
    results = [json.loads((folder / home / "result.json").read_text()) for home in ("ended", "whole")]
    assert results[0]["accuracies"] == results[1]["accuracies"]
    assert [r["train_loss"] for r in results[0]["history"]] == [r["train_loss"] for r in results[1]["history"]]


def test_what_was_done_is_not_done_again(ended):
    folder, _ = ended
    said = {name: (folder / f"{name}.err").read_text() for name in ("distill", "stop", "export", "again")}
    assert "running the model once" in (folder / "fit.err").read_text()
    assert not any("running the model once" in text for text in said.values())
    assert "epoch 1/3" not in said["stop"]
    assert "epoch 2/3" not in said["export"]
    assert "is finished" in said["again"]


def test_ctrl_c_saves_and_the_line_to_continue_is_told(ended):
    folder, ends = ended
    for name, what in (("teacher", "while training the teacher"), ("stop", "of distilling")):
        said = (folder / f"{name}.err").read_text()
        assert ends[name][0] == 130, said
        assert re.search(rf"^Interrupted: stopped (at step \d+ )?{what}", said, re.M), said
        assert "Traceback" not in said
        line = said.splitlines()[-1]
        assert line.startswith("pdecnn condense ")
        assert "--resume" in line
    assert any(file.startswith("teacher-run/checkpoints/") for file in ends["teacher"][1])


def test_an_unfinished_job_is_not_thrown_away(ended):
    folder, ends = ended
    assert ends["refused"][0] == 1
    said = (folder / "refused.err").read_text()
    assert "holds a job that was not finished. Continue it with --resume" in said
    assert Plan.load(folder / "ended/plan.json").runs


def test_an_interrupt_while_writing_leaves_the_old_file_alone(tmp_path, monkeypatch):
    file = tmp_path / "plan.json"
    write_atomic(file, "old")

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(file, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert file.read_text() == "old"


@pytest.mark.slow
@pytest.mark.parametrize("line", ["loading the teacher", "fitting each", "epochs of", "counting, timing", "ONNX"])
def test_the_command_itself_ends_cleanly(line, tmp_path):
    command = [sys.executable, "-m", "pdecnn", "condense", "--epochs", "1", "--threads", "1", "--output", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        said = []
        for text in process.stderr:
            said.append(text)
            if line in text:
                break
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said += process.stderr.readlines()
        assert process.wait(60) == 130, said
    assert any("Interrupted" in text for text in said)
    assert "Traceback" not in "".join(said)
    assert not [p for p in tmp_path.rglob(".*") if p.name.startswith((".tmp", ".trash"))]
    if (tmp_path / "plan.json").exists():
        assert Plan.load(tmp_path / "plan.json").runs
