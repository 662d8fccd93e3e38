"""A file has the steps that were set when it was made, with the statistics of that K, or takes K as an input."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from pdecnn.deploy import export
from pdecnn.deploy.api import session
from pdecnn.deploy.check import CannotExportError
from pdecnn.layers import GlobalLayer, serve_steps, set_steps
from pdecnn.layers.transport import Transport

X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))


def knob(least=1, most=3, parts=None):
    """A net that serves every K, each with other statistics."""
    torch.manual_seed(0)
    parts = parts or [GlobalLayer(4, K=most), nn.Conv2d(4, 4, 3), nn.ReLU(), GlobalLayer(4, K=most, residual=True)]
    net = serve_steps(nn.Sequential(*parts, nn.Flatten(), nn.LazyLinear(3)), least, most).eval()
    net(X)
    for module in net.modules():
        if hasattr(module, "running_mean"):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return net


def answers(net, K):
    set_steps(net, K)
    with torch.no_grad():
        return net(X).numpy()


def run(file, ops="portable", **more):
    return session(file, ops=ops, threads=1).run(None, {"input": X.numpy(), **more})[0]


@pytest.mark.parametrize("ops", ["portable", "fused"])
@pytest.mark.parametrize("K", [1, 3])
def test_a_file_has_the_K_that_was_set(tmp_path, ops, K):
    net = knob()
    expected = answers(net, K)
    export(net, tmp_path / "net.onnx", X, ops=ops, progress=False)
    np.testing.assert_allclose(run(tmp_path / "net.onnx", ops), expected, rtol=1e-3, atol=1e-5)
    assert np.abs(answers(net, 2) - expected).max() > 1e-3


def test_transport_too(tmp_path):
    net = knob(parts=[Transport(4, K=3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)])
    expected = answers(net, 2)
    export(net, tmp_path / "net.onnx", X, progress=False)
    np.testing.assert_allclose(run(tmp_path / "net.onnx"), expected, rtol=1e-3, atol=1e-5)


def test_K_is_an_input_of_a_fused_file(tmp_path):
    net = knob(2, 4)
    set_steps(net, 3)
    file = tmp_path / "net.onnx"
    report = export(net, file, X, ops="fused", open_steps=True, progress=False)
    assert report.agreement.max_error < 1e-4
    assert net[0].K == 3
    graph = onnx.load(file).graph
    assert [item.name for item in graph.input] == ["input", "K"]
    assert [n.input[-1] for n in graph.node if n.op_type == "GlobalLayer"] == ["K", "K"]
    for K in (2, 3, 4):
        found = run(file, "fused", K=np.array(K, dtype=np.int64))
        np.testing.assert_allclose(found, answers(net, K), rtol=1e-3, atol=1e-5)
    assert np.isnan(run(file, "fused", K=np.array(1, dtype=np.int64))).all()


def test_a_net_without_statistics_of_each_K_needs_no_table(tmp_path, monkeypatch):
    monkeypatch.setattr("pdecnn.deploy.open_steps.UNSERVED", (1, 2))
    net = nn.Sequential(GlobalLayer(4), nn.ReLU()).eval()
    export(net, tmp_path / "net.onnx", X, ops="fused", open_steps=True, progress=False)
    assert not any("table" in item.name for item in onnx.load(tmp_path / "net.onnx").graph.initializer)
    found = run(tmp_path / "net.onnx", "fused", K=np.array(7, dtype=np.int64))
    np.testing.assert_allclose(found, answers(net, 7), rtol=1e-3, atol=1e-5)


def test_what_cannot_stay_open_is_refused(tmp_path):
    file = tmp_path / "net.onnx"
    both = [GlobalLayer(4, K=2), Transport(4, K=2), nn.BatchNorm2d(4)]
    with pytest.raises(ValueError, match="K stays open in fused ONNX files alone"):
        export(knob(), file, X, open_steps=True, progress=False)
    with pytest.raises(CannotExportError, match="no layer with K time steps"):
        export(nn.Conv2d(4, 4, 1), file, X, ops="fused", open_steps=True, progress=False)
    with pytest.raises(CannotExportError, match="K cannot stay open in Sequential"):
        export(knob(1, 2, both), file, X, ops="fused", open_steps=True, progress=False)
    assert not list(tmp_path.iterdir())
