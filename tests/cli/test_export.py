"""The commands `export` and `bench`."""

import json
import os
import sys

import onnx
import pytest
import timm
import torch
from typer.testing import CliRunner

from pdecnn.analysis.latency import Timing
from pdecnn.cli import app
from pdecnn.deploy import session
from pdecnn.deploy.metadata import read_metadata

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


def test_free_height_and_width_and_what_the_file_says_of_itself(tmp_path):
    file = tmp_path / "net.onnx"
    options = [
        "--output",
        str(file),
        "--batch",
        "",
        "--samples",
        "2",
        "--dynamic",
        "size",
        "--mean",
        "0.2",
        "--std",
        "0.5",
    ]
    result = run(app, ["export", "fashion_resnet32.fashion_mini", *options, "--json"])
    assert result.exit_code == 0, result.output
    proto = onnx.load(file)
    onnx.checker.check_model(proto, full_check=True)
    sizes = [d.dim_param or d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    assert sizes[1] == 1
    assert all(isinstance(sizes[i], str) for i in (0, 2, 3))
    found = read_metadata(session(file))
    assert (found["mean"], found["std"], found["input_size"]) == ([0.2], [0.5], [1, 28, 28])
    net = timm.create_model("fashion_resnet32", pretrained=True).eval()
    for shape in ((3, 1, 28, 28), (1, 1, 40, 52)):
        x = torch.rand(shape)
        (logits,) = session(file).run(None, {"input": x.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(logits), net(x), rtol=1e-4, atol=1e-4)


def test_an_8_bit_file_is_timed_itself_beside_its_float_twin(tmp_path):
    file = tmp_path / "toy.onnx"
    options = ["--output", str(file), "--batch", "1", "--samples", "16", "--int8", "--json"]
    result = run(app, ["export", "mnist_toy_conv", *options])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    sizes = {row["runtime"]: row["bytes"] for row in report["latency"]}
    assert list(sizes) == ["eager", "optimized", "onnx", "onnx-int8"]
    assert sizes["onnx-int8"] == report["bytes"] == file.stat().st_size
    assert sizes["onnx-int8"] != sizes["onnx"]
    assert report["int8"]
    assert report["agreement"]["max_error"] > 0


def test_a_slower_8_bit_file_is_told_in_one_line(tmp_path, monkeypatch):
    def slower(candidates, **options):
        return {name: Timing(name, (2e-3 if name == "int8" else 1e-3,)) for name in candidates}

    monkeypatch.setattr(sys.modules["pdecnn.deploy.api"], "measure", slower)
    options = ["--output", str(tmp_path / "toy.onnx"), "--batch", "", "--samples", "8", "--int8"]
    result = run(app, ["export", "mnist_toy_conv", *options])
    assert result.exit_code == 0, result.output
    expected = "Warning: export: on this machine the 8-bit file takes 2.00 ms for one sample, the float file 1.00 ms."
    assert [line for line in result.stderr.splitlines() if "Warning" in line] == [expected]


def test_a_tag_loads_trained_weights_and_a_bare_name_is_told_to_be_random(tmp_path):
    options = ["--output", str(tmp_path / "net.onnx"), "--batch", "", "--samples", "8"]
    plain = run(app, ["export", "mnist_toy_conv", *options])
    assert "The weights of mnist_toy_conv are random" in plain.output
    trained = run(app, ["export", "mnist_toy_conv.mnist", *options])
    assert trained.exit_code == 0, trained.output
    assert "random" not in trained.output
    wrong = run(app, ["export", "mnist_toy_conv", "--data", "fashion-mid", *options])
    assert wrong.exit_code == 1
    assert "no dataset named 'fashion-mid'. Close: 'fashion-mini'" in wrong.output
    x = torch.rand(2, 1, 28, 28)
    (logits,) = session(tmp_path / "net.onnx").run(None, {"input": x.numpy()})
    with torch.no_grad():
        expected = timm.create_model("mnist_toy_conv", pretrained=True).eval()(x)
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-4)


def test_an_adaptive_solver_is_refused_and_the_advice_works(tmp_path):
    pytest.importorskip("torchdiffeq")
    options = ["--output", str(tmp_path / "ode.onnx"), "--batch", "", "--samples", "4"]
    result = run(app, ["export", "mnist_odenet", *options])
    assert result.exit_code == 1
    assert "--ode-steps 8" in result.output
    assert os.listdir(tmp_path) == []
    result = run(app, ["export", "mnist_odenet", "--ode-steps", "8", *options])
    assert result.exit_code == 0, result.output
    assert "8 steps of rk4 against the adaptive solver: max error" in result.output
    assert os.listdir(tmp_path) == ["ode.onnx"]
    result = run(app, ["export", "mnist_toy_conv", "--ode-steps", "8", *options])
    assert result.exit_code == 1
    assert "has no ODE block with an adaptive solver" in result.output


def test_export_refuses_and_leaves_nothing(tmp_path):
    result = run(app, ["export", "mnist_toy_conv", "--output", str(tmp_path / "net.tflite"), "--format", "tflite"])
    assert result.exit_code == 1
    assert "format must be one of 'onnx', 'c', 'pte', 'pt2'" in result.output
    result = run(app, ["export", "mnist_toy_conv", "--output", str(tmp_path / "no" / "net.onnx")])
    assert result.exit_code == 1
    assert "must exist and be writable" in result.output
    result = run(app, ["export", "mnist_toy_con", "--output", str(tmp_path / "net.onnx")])
    assert result.exit_code == 1
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
