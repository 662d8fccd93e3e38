"""The benchmark runs and writes what it says; its numbers are not judged here."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import timm
import torch
from typer.testing import CliRunner

import pdecnn  # noqa: F401  (registers the models)

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "savings.py"


@pytest.fixture(scope="module")
def savings():
    spec = importlib.util.spec_from_file_location("savings", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["savings"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["savings"]


def app(savings):
    import typer

    application = typer.Typer()
    application.command()(savings.run)
    return application


def test_results_are_merged_by_pair(savings, tmp_path, monkeypatch):
    tiny = savings.Pair("cifar_resnet_tiny", "cifar_resnet_tiny_global", 16, 1.0)
    monkeypatch.setattr(savings, "PAIRS", {"tiny": tiny})
    monkeypatch.setattr(savings, "SETTINGS", (("inference", 1), ("training", 2)))
    output = tmp_path / "savings.json"
    output.write_text('{"other": {"target": null}}')
    result = CliRunner().invoke(app(savings), ["--rounds", "3", "--threads", "1", "--output", str(output), "tiny"])
    assert result.exit_code == 0, result.output
    content = json.loads(output.read_text())
    assert list(content) == ["other", "tiny"]
    measurements = content["tiny"]["measurements"]
    assert [(m["mode"], m["batch"], m["threads"]) for m in measurements] == [("inference", 1, 1), ("training", 2, 1)]
    for m in measurements:
        assert m["ratio"]["rounds"] == 3
        assert m["baseline_seconds"]["p20"] <= m["baseline_seconds"]["median"] <= m["baseline_seconds"]["p80"]
    assert content["tiny"]["environment"]["torch"] == torch.__version__
    assert content["tiny"]["macs_ratio"]["exact"] == pytest.approx(3_298_000 / 3_940_000, rel=0.01)


def test_every_pair_is_registered_and_unknown_ones_are_named(savings):
    for pair in savings.PAIRS.values():
        assert timm.is_model(pair.baseline)
        assert timm.is_model(pair.condensed)
    result = CliRunner().invoke(app(savings), ["alexnet"])
    assert result.exit_code == 2
    assert "no pair named 'alexnet'" in result.output
