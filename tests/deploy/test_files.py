"""What an ONNX file brings along: names, metadata, free sizes, and what fused operators need beside them."""

import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import onnx
import pytest
import timm
import torch
from torch import nn

import pdecnn
from pdecnn.deploy.api import session
from pdecnn.deploy.check import compare
from pdecnn.deploy.metadata import read_metadata
from pdecnn.layers import GlobalLayer

X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Masks(nn.Module):
    """Two inputs, outputs in a dict and in a list."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, image, hint):
        mask = self.conv(image + hint)
        return {"out": mask, "levels": [mask.mean(1), mask.amax((2, 3))]}


def names(path):
    graph = onnx.load(path).graph
    return [i.name for i in graph.input], [o.name for o in graph.output]


def test_names_are_those_of_the_model_or_the_users(tmp_path):
    torch.manual_seed(0)
    file = tmp_path / "net.onnx"
    pdecnn.export(Masks(), file, (X, X))
    assert names(file) == (["image", "hint"], ["out", "levels_output_0", "levels_output_1"])
    pdecnn.export(nn.Conv2d(3, 2, 1), file, X)
    assert names(file) == (["input"], ["output"])
    pdecnn.export(nn.Conv2d(3, 2, 1), file, X, names={"inputs": ["photo"], "outputs": ["mask"]})
    assert names(file) == (["photo"], ["mask"])


@pytest.mark.parametrize(
    "given, words",
    [
        ({"outputs": ["a", "b"]}, "the model has 1 outputs, names has 2"),
        ({"inputs": ["a"], "outputs": ["a"]}, "with no name twice"),
        ({"output": ["a"]}, "names must be such as"),
    ],
)
def test_mistakes_in_names(given, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        pdecnn.export(nn.Conv2d(3, 2, 1), tmp_path / "net.onnx", X, names=given)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("int8", [False, True])
def test_metadata(tmp_path, int8):
    torch.manual_seed(0)
    net = timm.create_model("mnist_toy_conv", num_classes=2).eval()
    x = torch.rand(4, 1, 28, 28)
    notes = {"classes": ["größe", "b"], "input": {"shape": [1, 28, 28], "mean": [0.25], "std": [0.5]}, "task": "toy"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # whether 8 bits are slower here is the machine's affair
        pdecnn.export(net, tmp_path / "net.onnx", x, metadata=notes, int8=[x] if int8 else None)
    found = read_metadata(session(tmp_path / "net.onnx"))
    version = found.pop("pdecnn_version")
    assert version.startswith("0.")
    expected = {"classes": ["größe", "b"], "mean": [0.25], "std": [0.5], "input_size": [1, 28, 28], "task": "toy"}
    assert found == {**expected, "model": type(net).__name__}


def test_mean_and_std_of_a_model_of_timm_are_known(tmp_path):
    net = timm.create_model("test_resnet").eval()
    pdecnn.export(net, tmp_path / "net.onnx", torch.rand(2, 3, 32, 32))
    found = read_metadata(session(tmp_path / "net.onnx"))
    assert found["mean"] == list(net.pretrained_cfg["mean"])
    assert found["input_size"] == [3, 32, 32]
    assert "classes" not in found


class Pyramid(nn.Module):
    """Two levels; the coarse one is brought back, so that sizes must be even."""

    def __init__(self):
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), GlobalLayer(4))
        self.coarse = nn.Conv2d(4, 4, 3, stride=2, padding=1)

    def forward(self, x):
        h = self.fine(x)
        return h + nn.functional.interpolate(self.coarse(h), scale_factor=2)


@pytest.mark.parametrize("ops", ["portable", "fused"])
def test_free_height_and_width(tmp_path, ops):
    torch.manual_seed(0)
    net, file = Pyramid().eval(), tmp_path / "net.onnx"
    assert pdecnn.export(net, file, X, ops=ops, dynamic="size").agreement.max_error < 1e-5
    run = session(file, ops=ops)
    assert run.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    for shape in ((1, 3, 8, 8), (3, 3, 6, 14), (1, 3, 32, 4)):
        x = torch.rand(shape)
        with torch.no_grad():
            expected = net(x)
        (got,) = run.run(None, {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-4, atol=1e-5)


def test_sizes_are_fixed_unless_asked_for(tmp_path):
    net = nn.Conv2d(3, 2, 1)
    for dynamic, shape in (("batch", ["batch", 3, 8, 8]), ("nothing", [2, 3, 8, 8])):
        pdecnn.export(net, tmp_path / "net.onnx", X, dynamic=dynamic)
        assert session(tmp_path / "net.onnx").get_inputs()[0].shape == shape


def test_a_net_that_knows_its_size_is_refused(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 2)).eval()
    with pytest.raises(ValueError, match=r"does not run on inputs of shape \(1, 3, 16, 16\).*Use dynamic='batch'"):
        pdecnn.export(net, tmp_path / "net.onnx", X, dynamic="size")
    with pytest.raises(ValueError, match="dynamic must be one of 'batch', 'size', 'nothing', got 'all'"):
        pdecnn.export(net, tmp_path / "net.onnx", X, dynamic="all")
    with pytest.raises(ValueError, match="names is for format='onnx'"):
        pdecnn.export(net, tmp_path / "net.pt2", X, format="pt2", names={"inputs": ["x"]})
    assert os.listdir(tmp_path) == []


ALONE = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pdecnn", "torch"):
            raise ModuleNotFoundError(f"{name} is not here")

sys.meta_path.insert(0, Nothing())
import numpy as np
from load_my_net import session

np.save("answer.npy", session.run(None, {"input": np.load("x.npy")})[0])
assert not {"pdecnn", "torch"} & set(sys.modules)
"""


def test_a_fused_file_runs_by_onnx_runtime_alone(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), GlobalLayer(4), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    made = tmp_path / "made"
    made.mkdir()
    report = pdecnn.export(net, made / "my-net.onnx", X, ops="fused")
    assert sorted(map(os.path.basename, [report.path, *report.beside])) == sorted(os.listdir(made))
    moved = tmp_path / "elsewhere"
    shutil.move(made, moved)
    np.save(moved / "x.npy", X.numpy())
    command = [sys.executable, "-c", ALONE]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PDECNN", "PYTHON"))}
    done = subprocess.run(command, cwd=moved, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(np.load(moved / "answer.npy")), net(X), rtol=1e-4, atol=1e-5)


class Wrong(nn.Module):
    """Computes something else when it is traced."""

    def forward(self, x):
        return 2 * x if torch.compiler.is_exporting() else x


def test_a_refused_fused_file_leaves_nothing_beside(tmp_path):
    with pytest.raises(RuntimeError, match="differs from the model"):
        pdecnn.export(Wrong(), tmp_path / "net.onnx", X, ops="fused")
    assert os.listdir(tmp_path) == []


def test_agreement_of_maps_is_that_of_their_places():
    a = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]])  # one sample, two classes, three places
    b = a.clone()
    b[0, :, 2] = torch.tensor([2.0, 1.0])
    assert compare([a], [b]).top1 == pytest.approx(2 / 3)
