"""The commands train, validate, distill and recipes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from pdecnn.cli import app
from pdecnn.training import load_checkpoint

RECIPE = """
model: {name: test_resnet, kwargs: {in_chans: 1, num_classes: 10}}
data: {name: fashion-mini, batch_size: 32, train_limit: 64, test_limit: 100, augment: {pad: 2}}
epochs: 2
optimizer: {lr: 0.02}
tensorboard: false
"""


def pdecnn(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    return file


def test_validate_repeats_the_accuracy_of_train_to_the_last_digit(tmp_path, config):
    run = tmp_path / "run"
    trained = pdecnn("train", "--config", config, "--output", run, "--json")
    assert trained.exit_code == 0, trained.output
    events = [json.loads(line) for line in trained.stdout.splitlines()]
    assert [event["event"] for event in events] == ["epoch", "epoch", "finished"]
    report = json.loads(pdecnn("validate", run, "--json").stdout)
    assert report["accuracy"] == events[-1]["accuracy"]
    assert report["loss"] == events[1]["eval_loss"]
    assert report["total"] == 100
    text = pdecnn("validate", run / "last")
    assert text.stdout.startswith(f"Accuracy {report['accuracy']:.2f} % ({report['correct']} of 100)")

    again = pdecnn("train", "--config", config, "--output", run)
    assert again.exit_code == 1
    assert "holds a run already. Continue it with --resume" in again.output

    student = pdecnn(
        "distill",
        "--config",
        config,
        "--teacher",
        run,
        "--output",
        tmp_path / "student",
        "-o",
        "epochs=1",
        "-o",
        "seed=3",
    )
    assert student.exit_code == 0, student.output
    assert "Accuracy" in student.output


def test_a_model_of_ones_own(tmp_path, config, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "def line(num_classes, **_): return nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    trained = pdecnn("train", "--config", config, "--output", run, "--model", "my_nets:line", "--json")
    assert trained.exit_code == 0, trained.output
    monkeypatch.setattr(sys, "argv", ["pdecnn", "validate", str(run)])
    refused = pdecnn("validate", run)
    assert refused.exit_code == 1
    assert f"Run: pdecnn validate {run} --model my_nets:line\n" in refused.output
    accepted = pdecnn("validate", run, "--model", "my_nets:line", "--json")
    assert json.loads(accepted.stdout)["accuracy"] == json.loads(trained.stdout.splitlines()[-1])["accuracy"]


def test_training_starts_from_the_weights_of_another_run(tmp_path, config):
    first = pdecnn("train", "--config", config, "--output", tmp_path / "first", "--json")
    assert first.exit_code == 0, first.output
    args = ("train", "--config", config, "--output", tmp_path / "second", "--init", tmp_path / "first")
    second = pdecnn(*args, "-o", "optimizer.lr=1e-30", "-o", "epochs=1", "--json")
    assert second.exit_code == 0, second.output
    before, after = (dict(load_checkpoint(tmp_path / run).model.named_parameters()) for run in ("first", "second"))
    assert all(torch.equal(after[name], value) for name, value in before.items())
    other = pdecnn(
        *args[:3],
        "--init",
        tmp_path / "first",
        "--output",
        tmp_path / "x",
        "--model",
        "mnist_toy_conv",
        "-o",
        "model.kwargs={}",
    )
    assert other.exit_code == 1
    assert "not those of MnistToy" in other.output


@pytest.mark.parametrize(
    "args, message",
    [
        (["train"], "give the name of a recipe"),
        (["train", "quick/fashion-mni"], "Close: 'quick/fashion-mini'"),
        (["train", "quick/fashion-mini", "-o", "optimizer.rate=1"], "there is no setting 'optimizer.rate'"),
        (["train", "quick/fashion-mini", "--on-nan", "cry"], "expected stop or resume"),
        (["train", "quick/fashion-mini", "--model", "no_such_net"], "no model named 'no_such_net'"),
        (["train", "quick/fashion-mini", "--init", "nowhere"], "expected a checkpoint or a run folder"),
        (["validate", "nowhere"], "expected a checkpoint or a run folder"),
        (["distill", "quick/fashion-mini", "--teacher", "no_such_net"], "no model named 'no_such_net'"),
        (["recipes", "nothing"], "no recipe named 'nothing'"),
    ],
)
def test_mistakes_are_told(args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = pdecnn(*args)
    assert result.exit_code != 0
    assert message in " ".join(result.output.replace("│", " ").split())


def test_recipes_are_listed_and_printed():
    listed = json.loads(pdecnn("recipes", "--json").stdout)
    assert "95.03" in listed["paper/mnist-toy-global"]
    quick = json.loads(pdecnn("recipes", "quick", "--json").stdout)
    assert quick == {key: text for key, text in listed.items() if key.startswith("quick/")} != {}
    printed = pdecnn("recipes", "paper/mnist-toy-global").stdout
    assert "lr: 0.01" in printed
    assert "mnist-toy-conv" in pdecnn("recipes").stdout


def test_sigterm_to_the_command_saves_and_resume_continues(tmp_path, config):
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-c",
        "from pdecnn.cli import main; main()",
        "train",
        "--config",
        config,
        "--output",
        run,
        "-o",
        "epochs=400",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    while not (run / "metrics.csv").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Stopped and saved at step" in log
    assert log.splitlines()[-1] == f"pdecnn train --config {config} --output {run} -o epochs=400 --resume"
    assert "test_resnet: 400 epochs of 2 steps" in log  # a plain log, as this is no terminal
    step = json.loads((run / "last/state.json").read_text())["step"]
    assert 0 < step < 800


def test_the_bar_shows_loss_and_time():
    from io import StringIO

    from rich.console import Console

    from pdecnn.training.progress import RichReporter

    out = StringIO()
    bar = RichReporter(Console(file=out, force_terminal=True, width=120))
    bar.start("net", 2, 5, 0)
    bar.step(5, 0.25, 0.1)
    bar.epoch({"epoch": 1, "train_loss": 0.3, "train_accuracy": 50.0, "eval_accuracy": None, "lr": 0.1, "seconds": 1.0})
    bar.close()
    assert "epoch 1/2 net" in out.getvalue()
    assert "loss 0.250 lr 0.1" in out.getvalue()
    assert "5/10" in out.getvalue()
    assert "epoch 1/2  train loss 0.3000, 50.00 %; lr 0.1; 1.0 s" in out.getvalue()


def test_a_log_tells_where_a_long_epoch_is(monkeypatch):
    from io import StringIO

    from pdecnn.training import progress

    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    log = progress.PlainReporter(StringIO())
    log.start("net", 2, 100, 0)
    for step in range(1, 101):
        now = 0.6 * step
        log.step(step, 0.5, 0.1)
    lines = log.stream.getvalue().splitlines()
    assert lines[1] == "epoch 1/2, step 17/100  loss 0.5000; lr 0.1  1.8 min left"
    assert len(lines) == 1 + 5


def test_threads_are_set(tmp_path, config):
    before = torch.get_num_threads()
    try:
        result = pdecnn("train", "--config", config, "--output", tmp_path / "run", "--threads", "1", "-o", "epochs=1")
        assert result.exit_code == 0, result.output
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "setting, message",
    [
        (
            "foo=1",
            r"Error: model: test_resnet takes no 'foo', got model.kwargs.foo=1. Leave it out; it takes block, layers",
        ),
        ("base_widht=1", "got model.kwargs.base_widht=1. Close: model.kwargs.base_width"),
        ("seeds=1", "got model.kwargs.seeds=1. Close: seed, steps."),
        ("layers=3", "test_resnet cannot be built with model.kwargs.layers=3: TypeError: "),
        ("act_layer=rellu", "test_resnet cannot be built with model.kwargs.act_layer='rellu': KeyError: 'rellu'."),
    ],
)
def test_a_keyword_that_the_model_does_not_take_is_named_in_one_line(tmp_path, config, setting, message):
    run = tmp_path / "run"
    result = pdecnn("train", "--config", config, "--output", run, "-o", f"model.kwargs.{setting}")
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.splitlines()) == 1
    assert not run.exists()
