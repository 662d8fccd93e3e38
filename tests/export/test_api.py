"""`pdecnn.export`: what it writes, what it reports, and what it leaves behind when it refuses."""

import importlib
import os
import warnings

import pytest
import timm
import torch
from torch import nn

import pdecnn
from pdecnn.export.api import session
from pdecnn.export.check import ExportError, compare, first_difference, onnx_runner, relative_error


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return timm.create_model("mnist_toy_global").eval()


X = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_report_and_file(net, tmp_path):
    report = pdecnn.export(net, tmp_path / "net.onnx", X)
    assert report.agreement.max_error < 1e-5
    assert report.agreement.top1 == 1.0
    assert report.bytes == os.path.getsize(tmp_path / "net.onnx")
    assert os.listdir(tmp_path) == ["net.onnx"]
    with torch.no_grad():
        torch.testing.assert_close(onnx_runner(session(report.path))([X])[0], net(X), rtol=1e-4, atol=1e-5)


def test_int8_reports_its_agreement(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 26 * 26, 10)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # whether 8 bits are slower here is the machine's affair
        report = pdecnn.export(net, tmp_path / "net.onnx", X, int8=[X])
        plain = pdecnn.export(net, tmp_path / "float.onnx", X)
    assert report.int8
    assert 0 < report.agreement.max_error < 0.1
    assert report.bytes < 0.4 * plain.bytes


class Wrong(nn.Module):
    """Computes something else when it is traced."""

    def forward(self, x):
        return 2 * x if torch.compiler.is_exporting() else x


def test_a_file_that_differs_is_refused_by_name_and_removed(tmp_path):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), Wrong(), nn.Flatten()).eval()
    with pytest.raises(ExportError, match=r"differs from the model by 1\.0e\+00 .*First difference: 1 \(Wrong\)"):
        pdecnn.export(net, tmp_path / "net.onnx", X)
    assert os.listdir(tmp_path) == []


def test_an_old_file_survives_a_refused_export(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"old")
    with pytest.raises(ExportError):
        pdecnn.export(nn.Sequential(Wrong(), nn.Flatten()), tmp_path / "net.onnx", X)
    assert (tmp_path / "net.onnx").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["net.onnx"]


class Sorter(nn.Module):
    """Needs the numbers themselves, which a tracer does not have."""

    def forward(self, x):
        return x if float(x.sum()) > 0 else -x


@pytest.mark.parametrize(
    "model, inputs, options, error, match",
    [
        (None, X[:, :, :1], {}, ValueError, r"does not run on example_inputs of shape \(4, 1, 1, 28\)"),
        (None, "image", {}, TypeError, "example_inputs must be a Tensor or several"),
        (None, X, {"format": "tflite"}, ValueError, "format must be one of 'onnx', 'pte', 'pt2', got 'tflite'"),
        (None, X, {"ops": "fast"}, ValueError, "ops must be one of 'portable', 'fused', got 'fast'"),
        (None, X, {"ops": "fused", "int8": [X]}, ValueError, "int8 is calibrated on portable operators"),
        (None, X, {"int8": []}, ValueError, r"int8 needs calibration batches of 1 input\(s\) each, got 0"),
        (Sorter(), X, {}, ValueError, r"Sorter cannot be traced"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(tmp_path, model, inputs, options, error, match):
    model = model or nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    with pytest.raises(error, match=match):
        pdecnn.export(model, tmp_path / "net.onnx", inputs, **options)
    assert os.listdir(tmp_path) == []


def test_paths_that_cannot_be_written(net, tmp_path):
    with pytest.raises(OSError, match=r"its folder .*nowhere must exist and be writable"):
        pdecnn.export(net, tmp_path / "nowhere" / "net.onnx", X)
    with pytest.raises(ValueError, match=r"an onnx file is named \*\.onnx, got 'net\.pt'|named \*\.onnx"):
        pdecnn.export(net, "net.pt", X)
    with pytest.raises(ValueError, match=r"ops='fused' is for format='onnx', got format='pt2'"):
        pdecnn.export(net, tmp_path / "net.pt2", X, format="pt2", ops="fused")


def test_missing_extra_is_named(net, tmp_path, monkeypatch):
    real = importlib.import_module

    def without_onnx(name, package=None):
        if name == "onnx":
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without_onnx)
    with pytest.raises(ImportError, match=r'needs onnx, .*pip install "pdecnn\[export\]"'):
        pdecnn.export(net, tmp_path / "net.onnx", X)
    assert os.listdir(tmp_path) == []


def test_adaptive_solvers_are_refused_with_the_way_out():
    from pdecnn.export.lower import lower
    from pdecnn.layers.ode_block import ODEBlock

    class Field(nn.Module):
        def forward(self, t, h):
            return -h

    block = ODEBlock(Field(), gradient="direct", method="dopri5", steps=None)
    with pytest.raises(ValueError, match=r"adaptive method 'dopri5'.*--ode-steps 8.*fix_steps\(model, 8\).*steps=8"):
        lower(block, X)


def test_compare_counts_top1_and_sees_nan():
    a = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    b = torch.tensor([[1.0, 2.0], [1.0, 3.0]])
    assert compare([a], [b]).top1 == 0.5
    assert compare([a], [b]).max_error == pytest.approx(2 / 3)
    assert relative_error(a, a * float("nan")) == float("inf")
    with pytest.raises(ExportError, match=r"outputs of shapes \[\(2, 1\)\], the model \[\(2, 2\)\]"):
        compare([a], [b[:, :1]])


def test_first_difference_finds_the_innermost_module():
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.ReLU())
    x = torch.ones(2, 3)

    def broken_tanh(module, inputs):
        return [module(*inputs) + isinstance(module, nn.Tanh)]

    with torch.no_grad():
        assert first_difference(net, (x,), broken_tanh).startswith("0.1 (Tanh), by")


@pytest.mark.slow
def test_pt2_package_runs_and_agrees(net, tmp_path):
    report = pdecnn.export(net, tmp_path / "net.pt2", X, format="pt2")
    assert report.agreement.max_error < 1e-5


def test_pte_file_runs_and_agrees(net, tmp_path):
    pytest.importorskip("executorch", reason="ExecuTorch is a large install of its own: see `make executorch`")
    report = pdecnn.export(net, tmp_path / "net.pte", X, format="pte")
    assert report.agreement.max_error < 1e-4
