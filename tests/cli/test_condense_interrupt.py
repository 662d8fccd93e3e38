"""Ctrl-C in the middle of `pdecnn condense`: a clean end, whole files, and a rerun that works."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pdecnn.condensation import Plan
from pdecnn.shared.files import write_atomic
from pdecnn.training import load_checkpoint

pytest.importorskip("onnxruntime")

TEACHER = [f"teacher/{name}" for name in ("config.json", "manifest.json", "model.safetensors")]
STUDENT = [name.replace("teacher", "student") for name in TEACHER]
ALL = sorted([*TEACHER, *STUDENT, "plan.json", "report.html", "result.json", "student.onnx"])


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Path, dict[str, tuple[int, list[str]]]]:
    folder = tmp_path_factory.mktemp("interrupted")
    script = Path(__file__).with_name("interrupted_jobs.py")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize(
    "moment, files, message",
    [
        ("teacher", [], "Interrupted: stopped while training the teacher, at step "),
        ("fit", ["plan.json", *TEACHER], "Interrupted. What was finished is in "),
        ("distill", ["plan.json", *TEACHER], "of distilling; the plan and the teacher are in "),
        ("export", ["plan.json", *STUDENT, *TEACHER], "Interrupted. What was finished is in "),
    ],
)
def test_an_interrupt_ends_the_job_cleanly(ended, moment, files, message):
    folder, ends = ended
    code, left = ends[moment]
    said = (folder / f"{moment}.err").read_text()
    assert code == 130, said
    assert left == sorted(files)
    assert message in said.splitlines()[-1]
    assert "Traceback" not in said
    assert "Error" not in said
    if files:
        assert Plan.load(folder / moment / "plan.json").runs
        load_checkpoint(folder / moment / "teacher")


def test_a_rerun_in_the_same_folder_works(ended):
    folder, ends = ended
    code, left = ends["again"]
    assert code == 0, (folder / "again.err").read_text()
    assert left == ALL
    assert json.loads((folder / "export" / "result.json").read_text())["onnx"]["after"]["top1"] == 1.0


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
    assert "Interrupted" in said[-1]
    assert "Traceback" not in "".join(said)
    assert not [p for p in tmp_path.rglob(".*") if p.name.startswith((".tmp", ".trash"))]
    if (tmp_path / "plan.json").exists():
        assert Plan.load(tmp_path / "plan.json").runs
