"""The commands `export` and `bench`."""

import json
import os

from typer.testing import CliRunner

from pdecnn.cli import app

run = CliRunner().invoke


def test_export_prints_the_comparison_and_the_latency(tmp_path):
    file = tmp_path / "toy.onnx"
    result = run(app, ["export", "mnist_toy_conv", "--output", str(file), "--batch", "1", "--samples", "8"])
    assert result.exit_code == 0, result.output
    assert "top-1 agreement 100.0 %" in result.output
    assert "optimized" in result.output
    assert file.stat().st_size > 0


def test_export_json(tmp_path):
    file = tmp_path / "toy.onnx"
    options = ["--output", str(file), "--batch", "", "--samples", "8", "--ops", "fused", "--json"]
    result = run(app, ["export", "mnist_toy_global", *options])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["agreement"]["top1"] == 1.0
    assert report["agreement"]["max_error"] < 1e-4
    assert report["bytes"] == file.stat().st_size
    assert report["latency"] == []


def test_export_refuses_and_leaves_nothing(tmp_path):
    result = run(app, ["export", "mnist_toy_conv", "--output", str(tmp_path / "net.tflite"), "--format", "tflite"])
    assert result.exit_code == 1
    assert "format must be one of 'onnx', 'pte', 'pt2'" in result.output
    result = run(app, ["export", "mnist_toy_conv", "--output", str(tmp_path / "no" / "net.onnx")])
    assert result.exit_code == 1
    assert "must exist and be writable" in result.output
    result = run(app, ["export", "mnist_toy_con", "--output", str(tmp_path / "net.onnx")])
    assert result.exit_code == 2
    assert "mnist_toy_conv" in result.output
    assert os.listdir(tmp_path) == []


def test_bench_gives_one_row_per_runtime_and_batch(tmp_path):
    file = tmp_path / "bench.json"
    options = ["--runtime", "eager,onnx", "--batch", "1,3", "--rounds", "3", "--json", "--output", str(file)]
    result = run(app, ["bench", "mnist_toy_conv", *options])
    assert result.exit_code == 0, result.output
    rows = json.loads(file.read_text())["rows"]
    assert [(row["runtime"], row["batch"]) for row in rows] == [("eager", 1), ("onnx", 1), ("eager", 3), ("onnx", 3)]
    assert all(0 < row["p50_ms"] <= row["p90_ms"] for row in rows)
    assert json.loads(result.output)["rows"] == rows


def test_bench_refuses_unknown_runtimes_and_batches():
    result = run(app, ["bench", "mnist_toy_conv", "--runtime", "tensorrt"])
    assert result.exit_code == 1
    assert "runtime must be one of eager, optimized, compile, onnx, onnx-fused" in result.output
    result = run(app, ["bench", "mnist_toy_conv", "--batch", "zero"])
    assert result.exit_code == 2
