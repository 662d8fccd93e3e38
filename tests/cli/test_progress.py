"""Commands that may last show on standard error how far they are; with --json they show nothing."""

import json

import pytest
from typer.testing import CliRunner

from pdecnn.cli import app
from pdecnn.shared import progress

COMMANDS = {
    "bench": (
        ["bench", "mnist_toy_conv", "--batch", "1", "--runtime", "eager,onnx", "--rounds", "3"],
        ["preparing: 2 parts", "timing batches of 1: 3 parts"],
    ),
    "tables": (
        ["tables", "1", "--latency", "--results", "."],
        ["timing 3 networks: 20 parts", "counting the networks of table 1: 3 parts"],
    ),
    "validate": (["validate", "fashion_resnet32.fashion_mini", "--data", "fashion-mini"], ["evaluating: 4 parts"]),
    "export": (
        ["export", "mnist_toy_conv", "--output", "toy.onnx", "--batch", "1", "--samples", "4"],
        [
            "reading images",
            "writing toy.onnx",
            "comparing toy.onnx with the model",
            "preparing: 2 parts",
            "timing batches of 1: 20 parts",
        ],
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_stages_are_told_and_json_stays_alone(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    arguments, stages = COMMANDS[name]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert [line for line in shown.stderr.splitlines() if " left" not in line] == stages
    assert not any(stage in shown.stdout for stage in stages)
    silent = CliRunner().invoke(app, [*arguments, "--json"])
    assert silent.stderr == ""
    assert json.loads(silent.stdout)
