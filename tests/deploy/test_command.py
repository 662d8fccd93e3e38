"""The commands `export` and `bench` refuse before they have worked for minutes or written a file."""

import os

import pytest
from typer.testing import CliRunner

from pdecnn.cli import app


@pytest.mark.parametrize(
    "arguments, code, match",
    [
        (["export", "mnist_toy_conv", "--batch", "zero"], 2, "expected positive numbers"),
        (["export", "mnist_toy_conv", "--teacher", "nosuchnet"], 1, "no model named 'nosuchnet'"),
        (["export", "mnist_toy_conv", "--samples", "0"], 2, "--samples"),
        (["export", "mnist_toy_conv", "--input", "1,28"], 2, "expected three numbers C,H,W"),
        (["export", "mnist_toy_conv.nosuch"], 1, "Error: "),
        (["bench", "mnist_toy_conv", "--output", "nowhere/b.json"], 2, "does not exist"),
    ],
)
def test_bad_options_are_refused_first(tmp_path, monkeypatch, arguments, code, match):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    assert match in result.output
    assert os.listdir(tmp_path) == []
