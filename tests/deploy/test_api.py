"""`pdecnn.export`: what it writes, what it reports, and what it leaves behind when it refuses."""

import importlib
import os
import warnings

import pytest
import timm
import torch
from torch import nn

import pdecnn
from pdecnn.deploy.api import session
from pdecnn.deploy.check import ExportError, compare, first_difference, onnx_runner, relative_error
from pdecnn.shared.modules import tensors_in


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
        labels = torch.zeros(len(X), dtype=torch.int64)  # of a DataLoader; not read
        report = pdecnn.export(net, tmp_path / "net.onnx", X, int8=[(X, labels)])
        plain = pdecnn.export(net, tmp_path / "float.onnx", X)
    assert report.int8
    assert 0 < report.agreement.max_error < 0.1
    assert report.bytes < 0.4 * plain.bytes


class LogOfConv(nn.Conv2d):
    """Minus infinity where 8 bits round a small value to zero."""

    def forward(self, x):
        return super().forward(x).log()


@pytest.mark.filterwarnings("ignore::UserWarning")  # whether 8 bits are slower here is the machine's affair
def test_an_8_bit_file_that_is_not_finite_is_refused_and_removed(tmp_path):
    net = LogOfConv(1, 1, 1, bias=False)
    nn.init.ones_(net.weight)
    x = (X + 1e-4).index_fill(3, torch.tensor([5]), 1e-4)
    with pytest.raises(ExportError, match="not finite where the model's are"):
        pdecnn.export(net.eval(), tmp_path / "net.onnx", x, int8=[x])
    assert os.listdir(tmp_path) == []


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


class Bessel(nn.Module):
    """Uses an operator that ONNX does not have."""

    def forward(self, x):
        return torch.special.bessel_j0(x)


class Picky(nn.Module):
    """Refuses as the patch embeddings of timm do."""

    def forward(self, x):
        assert x.shape[-1] == 16, f"takes 16, not {x.shape[-1]}"
        return x


@pytest.mark.parametrize(
    "model, inputs, options, error, match",
    [
        (None, X[:, :, :1], {}, ValueError, r"does not run on example_inputs of shape \(4, 1, 1, 28\)"),
        (None, "image", {}, TypeError, "example_inputs must be a Tensor or several"),
        (None, X, {"format": "tflite"}, ValueError, "format must be one of 'onnx', 'c', 'pte', 'pt2', got 'tflite'"),
        (None, X, {"ops": "fast"}, ValueError, "ops must be one of 'portable', 'fused', got 'fast'"),
        (None, X, {"ops": "fused", "int8": [X]}, ValueError, "int8 is calibrated on portable operators"),
        (None, X, {"int8": []}, ValueError, r"int8 needs calibration batches of 1 input\(s\) each, got 0"),
        (Sorter(), X, {}, ValueError, r"Sorter cannot be traced"),
        (Sorter(), X, {"format": "pt2"}, ValueError, r"Sorter cannot be traced"),
        (Bessel(), X, {}, ValueError, r"Bessel cannot be written as ONNX: .*bessel_j0"),
        (Bessel(), X[:0], {}, ValueError, r"at least one sample, got shape \(0, 1, 28, 28\)"),
        (Picky(), X, {}, ValueError, r"Picky does not run on example_inputs .*: takes 16, not 28"),
        (nn.Conv2d(1, 2, 3, device="meta"), X, {}, ValueError, r"on the meta device, without values"),
        (
            None,
            X,
            {"int8": [X[:, :, :9]]},
            ValueError,
            r"\(N, 1, 28, 28\) float32; batch 0 holds \(N, 1, 9, 28\) float",
        ),
        (None, X, {"int8": [(X, X)]}, ValueError, r"like the example inputs, .*; batch 0 holds .*float32, .*float32\."),
        (None, X, {"int8": [X, X / 0]}, ValueError, r"calibration batches of finite values; batch 1 holds others"),
        (None, X, {"opset": 99}, ValueError, r"opset 99 cannot be written for this model, only 18"),
        (None, X, {"opset": "20"}, TypeError, r"opset must be an int such as 20, got '20'"),
        (
            nn.Conv2d(1, 2, 3).double(),
            X.double(),
            {},
            ExportError,
            r"(?s)cannot run the file: .*export model\.float\(\)",
        ),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(tmp_path, model, inputs, options, error, match):
    model = model or nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    with pytest.raises(error, match=match):
        pdecnn.export(model, tmp_path / f"net.{options.get('format', 'onnx')}", inputs, **options)
    assert os.listdir(tmp_path) == []


class Mean(nn.Module):
    """One number per sample."""

    def forward(self, x):
        return x.mean((1, 2, 3))


def test_outputs_of_one_dimension_and_inputs_with_gradients(tmp_path):
    agreement = pdecnn.export(Mean(), tmp_path / "net.onnx", X.clone().requires_grad_()).agreement
    assert agreement.max_error < 1e-5
    assert agreement.samples == 4


def test_every_module_keeps_its_own_mode_and_the_inputs_their_values():
    from pdecnn.deploy.lower import check_inputs

    net = nn.Sequential(nn.Hardswish(inplace=True), nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).train()
    net[2].eval()  # frozen
    x = X - 0.5
    check_inputs(net, x)
    assert [m.training for m in net] == [True, True, False]
    assert torch.equal(x, X - 0.5)


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
    from pdecnn.deploy.lower import lower
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


class Scaled(nn.Module):
    """Calls a module with a keyword, and one that answers with a tensor and None."""

    def __init__(self):
        super().__init__()
        self.scale, self.attention, self.wrong = Scale(), nn.MultiheadAttention(3, 1, batch_first=True), nn.Tanh()

    def forward(self, x):
        y = self.scale(x, by=3.0).unsqueeze(1)
        return self.wrong(self.attention(y, y, y, need_weights=False)[0])


class Scale(nn.Module):
    def forward(self, x, by=1.0):
        return by * x


@pytest.mark.parametrize(
    "net, name",
    [
        (nn.Sequential(nn.Linear(3, 3), nn.SiLU(inplace=True), nn.Tanh()), "2"),  # changes its input
        (nn.Sequential(nn.Identity(), nn.Tanh()), "1"),  # begins with a module that cannot be exported alone
        (Scaled(), "wrong"),
    ],
)
def test_first_difference_blames_no_innocent_module(net, name):
    def broken_tanh(module, inputs):
        if isinstance(module, nn.Identity):
            raise KeyError("of some runtime")
        return [q + isinstance(module, nn.Tanh) for q in tensors_in(module(*inputs))]

    with torch.no_grad():
        assert first_difference(net, (torch.ones(2, 3),), broken_tanh).startswith(f"{name} (Tanh), by")


def test_parts_are_written_under_the_suffix_of_their_format():
    from pdecnn.deploy.api import _run_part

    seen = []
    _run_part(lambda module, inputs, file: seen.append(file.suffix), lambda file: lambda inputs: [], ".pt2", None, ())
    assert seen == [".pt2"]


@pytest.mark.slow
def test_pt2_package_runs_and_agrees(net, tmp_path):
    report = pdecnn.export(net, tmp_path / "net.pt2", X, format="pt2")
    assert report.agreement.max_error < 1e-5


def test_pte_file_runs_and_agrees(net, tmp_path):
    pytest.importorskip("executorch", reason="ExecuTorch is a large install of its own: see `make executorch`")
    report = pdecnn.export(net, tmp_path / "net.pte", X, format="pte")
    assert report.agreement.max_error < 1e-4
