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
    # not a net of 6 channels: the backward pass of its 1x1 convolutions in channels_last crashes torch 2.15 on AVX2
    tiny = savings.Pair("cifar_resnet32", "cifar_resnet32_global", 8, 1.0)
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
    chosen = measurements[1]["memory_formats"]
    assert set(chosen.values()) <= {"contiguous_format", "channels_last"}
    assert "memory_formats" not in measurements[0]  # inference has chosen for itself
    assert content["tiny"]["environment"]["torch"] == torch.__version__
    assert content["tiny"]["macs_ratio"]["exact"] == pytest.approx(69.12 / 16.04, rel=0.01)


def test_every_pair_is_registered_and_unknown_ones_are_named(savings):
    for pair in savings.PAIRS.values():
        assert timm.is_model(pair.baseline)
        assert timm.is_model(pair.condensed)
    result = CliRunner().invoke(app(savings), ["alexnet"])
    assert result.exit_code == 2
    assert "no pair named 'alexnet'" in result.output


def test_each_network_trains_in_the_format_that_is_faster_for_it(savings, monkeypatch):
    seconds = {"slow planes contiguous_format": 2.0, "slow planes channels_last": 1.0}
    seconds |= {"slow pixels contiguous_format": 0.25, "slow pixels channels_last": 0.5}
    monkeypatch.setattr(savings, "candidates", lambda *_: dict.fromkeys(("contiguous_format", "channels_last")))
    timings = {name: savings.latency.Timing(name, (s, s, s)) for name, s in seconds.items()}
    monkeypatch.setattr(savings.latency, "measure", lambda timed, **_: {name: timings[name] for name in timed})
    result = savings.compare(savings.Pair("slow planes", "slow pixels", 8), "training", 2, 1, 3, 1.0)
    assert result["memory_formats"] == {"baseline": "channels_last", "global": "contiguous_format"}
    assert result["ratio"]["median"] == 4.0
