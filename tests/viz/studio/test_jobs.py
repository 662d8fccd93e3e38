"""Condense: the job, from its start to its files."""

import json
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from pdecnn.training.datasets import FASHION_CLASSES, load_dataset
from pdecnn.training.inputs import Input
from pdecnn.training.own import in_memory
from pdecnn.viz.studio import inside, jobs, nets, planning, worker

COLOUR = Input((3, 8, 8), (0.5,) * 3, (0.25,) * 3)


@pytest.mark.slow
def test_a_job_can_be_cancelled_continued_and_leaves_its_files(example, images, tmp_path):
    job = jobs.Job(example, str(images), epochs=4, folder=tmp_path)  # so long that a cancel comes in time
    job.start()
    while job.running and not job.status.history:
        time.sleep(0.05)
    job.cancel()
    status = jobs.wait_for(job, 300)
    assert status.state == "cancelled", status.text
    assert "Continue goes on" in jobs.progress_bar(status)
    status = jobs.wait_for(job.start(), 600)
    assert status.state == "finished", status.text
    assert [row["epoch"] for row in status.history] == [1, 2, 3, 4]
    names = [Path(path).name for path in status.files]
    assert names == ["student.zip", "student.onnx", "student.c", "student.h", "report.html"]
    assert all(Path(path).is_file() for path in status.files)
    with zipfile.ZipFile(tmp_path / "student.zip") as packed:
        held = {Path(name).name for name in packed.namelist()}
        assert held == {"README.md", "config.json", "manifest.json", "model.safetensors"}
    assert status.samples.count("<figure>") == worker.SHOWN
    assert "accuracy, %" in jobs.outcome(status)
    again = nets.open_net(str(tmp_path))  # what was made can be looked into
    assert len(inside.pde_layers(again.model)) == 3
    assert inside.look(again, torch.zeros(1, *again.wanted.shape)).layers[0].states[0].shape == (8, 28, 28)


def test_the_status_follows_what_the_process_tells():
    status = jobs.Status()
    status.take({"text": "distilling", "done": 0, "total": 8, "epochs": 0})
    for epoch in (1, 2):
        status.take({"epoch": {"epoch": epoch, "train_accuracy": 50.0 * epoch, "eval_accuracy": 40.0}, "line": "a"})
    assert "distilling (0 of 8)" in jobs.progress_bar(status)
    assert jobs.progress_bar(status).endswith('<p class="quiet">a</p>')  # what came out last
    assert jobs.curve(status).count('class="point"') == 4
    assert jobs.outcome(status) == ""
    status.take({"epochs": 1})  # continued from the first epoch
    assert [row["epoch"] for row in status.history] == [1]
    status.take({"state": "finished", "text": "finished", "rows": [["accuracy, %", "1", "2", "+1"]], "worse": ["<x>"]})
    assert 'aria-valuenow="100"' in jobs.progress_bar(status)
    assert "<li>&lt;x&gt;</li>" in jobs.outcome(status)


def test_a_process_that_fails_says_so_in_a_sentence(tmp_path, capsys):
    (tmp_path / worker.SETTINGS).write_text('{"name": "resnet19", "size": ""}')
    out = sys.stdout
    try:
        assert worker.main(str(tmp_path)) == 0
    finally:
        sys.stdout = out
    event = json.loads(capsys.readouterr().out)
    assert event["state"] == "failed"
    assert "no model named 'resnet19'" in event["text"]


def test_both_answers_are_under_each_picture_and_differences_come_first(example):
    net = example.net
    data = in_memory(load_dataset("fashion-mini").limit(64, 40), 32, 0)
    html = worker.both_answers(net.model, example.plan.apply(net.model), data, net.wanted)
    assert html.count("<figure>") == worker.SHOWN
    first = html.partition("<figcaption>")[2].partition("</figcaption>")[0]
    before, after = first.partition(": before ")[2].split(", after ")
    assert before[:-2] != after[:-2]
    assert before[:-2] in FASHION_CLASSES
    truth = first.partition(":")[0]
    assert [said[-1] for said in (before, after)] == ["✓" if said[:-2] == truth else "✗" for said in (before, after)]
    same = worker.both_answers(net.model, net.model, data, net.wanted)
    assert "Of 40 images both give the same answer to 100.0 %." in same


def test_a_job_that_cannot_be_is_refused_in_a_sentence(example, tmp_path):
    with pytest.raises(ValueError, match="no folder '/no/such'"):
        jobs.Job(example, "/no/such")
    whole = example
    for run in example.plan.runs:
        whole = planning.edit(whole, run.path, keep=5, replacement="pde", K=1)
    with pytest.raises(ValueError, match="keeps every block"):
        jobs.Job(whole)
    with pytest.raises(ValueError, match="The images of fashion-mini are 1x28x28, and this net takes 3x8x8"):
        worker.open_images("fashion-mini", COLOUR, 0)
    jobs.ONE_AT_A_TIME.acquire()  # as if another visitor's job ran
    try:
        waiting = jobs.Job(example, folder=tmp_path).start()
        assert waiting.status.text == jobs.WAITING
        with pytest.raises(ValueError, match="running already"):
            waiting.start()
        waiting.close()
    finally:
        jobs.ONE_AT_A_TIME.release()
    assert waiting.status.state == "cancelled"
