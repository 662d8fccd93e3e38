"""`validate --K`, `export --K` and `condense --steps`: one checkpoint, any number of steps."""

import json
import os

import numpy as np
import pytest
import timm
import torch
from typer.testing import CliRunner

import pdecnn
from pdecnn.cli import app
from pdecnn.cli.condense import parse_steps
from pdecnn.deploy.api import session
from pdecnn.layers import serve_steps, set_steps
from pdecnn.layers.step_norm import StepNorm
from pdecnn.layers.steps import served_steps
from pdecnn.training import evaluate, load_dataset
from pdecnn.training.data import EvalLoader


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of a net that serves K from 1 to 3, each with other statistics, and the net."""
    torch.manual_seed(0)
    net = serve_steps(timm.create_model("mnist_toy_global").eval(), 1, 3)
    for module in net.modules():
        if isinstance(module, StepNorm):
            torch.nn.init.uniform_(module.running_mean, -0.5, 0.5)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
    folder = pdecnn.save(net, tmp_path_factory.mktemp("knob") / "net")
    return folder, net


def test_a_saved_knob_opens_without_code(saved):
    folder, net = saved
    again = pdecnn.load(folder)
    assert served_steps(again) == (1, 3)
    x = torch.randn(2, 1, 28, 28)
    for K in (1, 2, 3):
        set_steps(net, K), set_steps(again, K)
        with torch.no_grad():
            assert torch.equal(net(x), again(x))
    set_steps(net, 2)


def test_validate_shows_accuracy_against_milliseconds(saved):
    folder, net = saved
    report = json.loads(run("validate", folder, "--data", "fashion-mini", "--K", "1,3", "--json").stdout)
    assert [row["K"] for row in report["steps"]] == [1, 3]
    data = load_dataset("fashion-mini")
    for row in report["steps"]:
        set_steps(net, row["K"])
        assert row["accuracy"] == pytest.approx(evaluate(net, EvalLoader(data.test, 250, data.mean, data.std)).accuracy)
        assert row["total"] == 1000
        assert row["ms"] > 0
    set_steps(net, 2)
    refused = run("validate", folder, "--data", "fashion-mini", "--K", "1,4", code=1)
    assert "trained for K from 1 to 3, got K=4" in refused.output
    refused = run("validate", "fashion_resnet32.fashion_mini", "--data", "fashion-mini", "--K", "1", code=1)
    assert "has no layer with K time steps" in refused.output
    run("validate", folder, "--K", "one", code=2)


@pytest.mark.parametrize("K", ["1", "open"])
def test_export_chooses_K_or_leaves_it_open(saved, tmp_path, K):
    folder, net = saved
    file = tmp_path / "net.onnx"
    run("export", folder, "--output", file, "--K", K, "--ops", "fused", "--samples", 2, "--batch", "", "--json")
    x = torch.randn(2, 1, 28, 28)
    for steps in (1,) if K == "1" else (1, 3):
        set_steps(net, steps)
        with torch.no_grad():
            expected = net(x).numpy()
        extra = {} if K == "1" else {"K": np.array(steps, dtype=np.int64)}
        found = session(file, ops="fused", threads=1).run(None, {"input": x.numpy(), **extra})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    set_steps(net, 2)


def test_wrong_steps_are_refused_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = [
        (["export", "mnist_toy_global", "--K", "few"], 2, "expected a number of time steps or open"),
        (["export", "mnist_toy_conv", "--K", "2"], 1, "has no layer with K time steps"),
        (["export", "mnist_toy_global", "--K", "open"], 1, "K stays open in fused ONNX files alone"),
        (["condense", "--steps", "10"], 2, "expected a range of K such as 1-10"),
        (["condense", "resnet18", "--steps", "1-10"], 2, "is for jobs with --data"),
    ]
    for arguments, code, text in cases:
        assert text in " ".join(run(*arguments, code=code).output.replace("│", " ").split())
    assert os.listdir(tmp_path) == []


def test_a_range_of_steps_is_read():
    assert parse_steps("1-10") == {"steps": (1, 10)}
    assert parse_steps(None) == {}
