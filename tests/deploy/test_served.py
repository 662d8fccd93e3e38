"""A model in another runtime is a module like any other: same outputs, any batch, threads, copies, clear refusals."""

import copy
import io
import pickle
import shutil
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn

import pdecnn
from pdecnn.deploy import engines, served
from pdecnn.deploy.check import ExportError
from pdecnn.deploy.served import Served
from pdecnn.layers import GlobalLayer

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")
OUTSIDE = ["onnx", "onnx-fused", pytest.param("c", marks=needs_compiler)]


def sample(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small_net():
    torch.manual_seed(0)
    parts = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), GlobalLayer(4, K=2), nn.Flatten(), nn.Linear(144, 3)
    return nn.Sequential(*parts).eval()


@pytest.fixture(scope="module")
def net():
    return small_net()


@pytest.fixture(scope="module")
def made(net):
    """The net in each runtime, made once."""
    found = {}

    def make(runtime):
        if runtime not in found:
            found[runtime] = pdecnn.optimize_for_inference(net, sample(1, 2, 8, 8), runtime=runtime)
        return found[runtime]

    return make


def check(fast, net, x):
    with torch.no_grad():
        expected, got = net(x), fast(x)
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert not got.requires_grad


@pytest.mark.parametrize("runtime", ["eager", *OUTSIDE])
def test_any_batch_in_any_layout(runtime, made, net):
    fast = made(runtime)
    assert isinstance(fast, Served)
    assert fast.runtime == runtime
    assert f"runtime='{runtime}'" in repr(fast)
    for batch in (1, 2, 5):
        check(fast, net, sample(batch, 2, 8, 8))
    check(fast, net, sample(2, 2, 8, 8).contiguous(memory_format=torch.channels_last))
    check(fast, net, sample(4, 2, 8, 16)[::2, :, :, ::2])
    x = sample(2, 2, 8, 8)
    before = x.clone()
    first = fast(x)
    kept = first.clone()
    fast(sample(2, 2, 8, 8, seed=2))  # a later answer does not write over an earlier one
    assert torch.equal(first, kept)
    assert torch.equal(x, before)


@pytest.mark.parametrize("runtime", OUTSIDE)
def test_two_threads_at_once(runtime, made):
    fast = made(runtime)
    batches = [sample(3, 2, 8, 8, seed=i) for i in range(40)]
    expected = [fast(x) for x in batches]
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(fast, batches))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@needs_compiler
def test_each_thread_has_an_arena_of_its_own(made):
    engine, both = made("c").engine, Barrier(2)

    def arena(_):
        both.wait()
        return engine._arena()

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(arena, range(2)))) == 2


@pytest.mark.parametrize("runtime", ["eager", *OUTSIDE])
def test_copies_and_pickles_give_the_same(runtime, made):
    fast, x = made(runtime), sample(2, 2, 8, 8)
    expected = fast(x)
    copied = copy.deepcopy(fast)
    assert copied.runtime == runtime
    assert torch.equal(copied(x), expected)
    again = pickle.loads(pickle.dumps(fast))
    assert again.runtime == runtime
    assert torch.equal(again(x), expected)
    whole = io.BytesIO()
    torch.save(nn.Sequential(fast), whole)
    whole.seek(0)
    assert torch.equal(torch.load(whole, weights_only=False)(x), expected)


@pytest.mark.parametrize("runtime", ["eager", "onnx"])
def test_gradients_and_training_are_refused(runtime, made):
    fast, x = made(runtime), sample(1, 2, 8, 8)
    with pytest.raises(RuntimeError, match=rf"the input asks for gradients, and {runtime} has none to give"):
        fast(x.clone().requires_grad_())
    with torch.no_grad():
        fast(x.clone().requires_grad_())
    with pytest.raises(RuntimeError, match=r"for inference alone\. Train the model that it was made from"):
        nn.Sequential(fast).train()
    assert not fast.eval().training


def test_other_inputs_than_the_example_are_refused(made):
    message = r"was made for inputs of shape \(N, 2, 8, 8\), torch.float32, on the CPU, got \(1, 2, 9, 8\)"
    with pytest.raises(ValueError, match=message):
        made("onnx")(sample(1, 2, 9, 8))
    with pytest.raises(ValueError, match=r"got \(1, 2, 8, 8\), torch.float64"):
        made("onnx")(sample(1, 2, 8, 8).double())


def test_a_runtime_that_is_not_there_is_refused(net):
    message = "runtime must be one of eager, optimized, compile, onnx, .*auto, got 'onxx'"
    with pytest.raises(ValueError, match=message):
        pdecnn.optimize_for_inference(net, sample(1, 2, 8, 8), runtime="onxx")


def test_8_bits_need_calibration(net):
    x = sample(4, 2, 8, 8)
    with pytest.raises(ValueError, match=r"onnx-int8 has to be calibrated: pass int8=batches"):
        pdecnn.optimize_for_inference(net, x, runtime="onnx-int8")
    fast = pdecnn.optimize_for_inference(net, x, runtime="onnx-int8", int8=x)
    with torch.no_grad():
        assert (fast(x) - net(x)).abs().max() < 0.1 * net(x).abs().max()


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1)

    def forward(self, x):
        y = self.conv(x)
        return OrderedDict(map=y, levels=[y.mean((2, 3)), (y.amax((2, 3)),)])


def test_lists_and_dicts_come_as_the_model_gives_them():
    net, x = Heads().eval(), sample(2, 2, 4, 4)
    fast = pdecnn.optimize_for_inference(net, x, runtime="onnx")
    with torch.no_grad():
        got, expected = fast(x), net(x)
    assert list(got) == ["map", "levels"]
    torch.testing.assert_close(got["map"], expected["map"])
    torch.testing.assert_close(got["levels"], expected["levels"])


class Fake(nn.Module):
    """Stands for a net in a runtime; each has its time, told by `measure` below."""

    def __init__(self, net, runtime):
        super().__init__()
        self.net, self.runtime = net, runtime
        self.engine = None

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("quickest", ["optimized", "onnx-fused", "c"])
def test_auto_takes_the_fastest_and_says_so(quickest, net, monkeypatch):
    from pdecnn.analysis.latency import Timing

    def measured(candidates, **options):
        assert list(candidates) == ["optimized", "onnx-fused", "c"]
        return {name: Timing(name, (1e-3 if name == quickest else 2e-3,) * 3) for name in candidates}

    def make(name):
        if name == "onnx":
            raise RuntimeError("not installed")
        return Fake(net, name)

    monkeypatch.setattr(served, "measure", measured)
    best = served.fastest(served.TRIED_BY_AUTO, sample(1, 2, 8, 8), make)
    assert best.runtime == quickest
    assert best.milliseconds[quickest] == 1
    assert best.left_out == {"onnx": "not installed"}


def test_auto_measures_what_there_is(net, made, monkeypatch):
    monkeypatch.setattr(served, "make_engine", lambda runtime, *_, **options: made(runtime).engine)
    fast = pdecnn.optimize_for_inference(net, sample(1, 2, 8, 8), runtime="auto")
    assert {"optimized", "onnx"} <= set(fast.milliseconds)
    assert fast.runtime == min(fast.milliseconds, key=fast.milliseconds.get)
    assert f"runtime='{fast.runtime}' of optimized" in repr(fast)
    assert not any("int8" in name for name in fast.milliseconds)
    check(fast, net, sample(3, 2, 8, 8))


def test_a_runtime_with_other_outputs_is_refused(net, made, monkeypatch):
    class Wrong(engines.OnnxEngine):
        def __call__(self, inputs):
            return [q + 1 for q in super().__call__(inputs)]

    file = made("onnx").engine.file
    monkeypatch.setattr(served, "make_engine", lambda *_, **options: Wrong(file, 0))
    with pytest.raises(ExportError, match=r"in onnx the outputs differ from the model's by .*Use runtime='optimized'"):
        pdecnn.optimize_for_inference(net, sample(1, 2, 8, 8), runtime="onnx")


def test_plain_nets_have_one_file_for_both_kinds_of_operators():
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()).eval()
    fast = pdecnn.optimize_for_inference(net, sample(1, 2, 8, 8), runtime=("onnx-fused", "onnx"))
    assert fast.runtime == "onnx-fused"
    assert "the same file as onnx-fused" in fast.left_out["onnx"]


def test_an_empty_batch_gives_an_empty_answer(made):
    assert made("onnx")(sample(0, 2, 8, 8)).shape == (0, 3)


@needs_compiler
def test_budgets_are_measured_in_c(net):
    from pdecnn.condensation.latency import time_models

    assert time_models({"net": net}, sample(1, 2, 8, 8), "c", rounds=3)["net"] > 0
