"""The C file in 8 bits: each operator, and whole networks, have the bits of the model of it in Python."""

import threading

import numpy as np
import pytest
import timm
import torch
from c_cases import FLAGS, MOVES, POOLS, SETTINGS, Many, convolutions, global_layers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pdecnn
from pdecnn.deploy.c.build import Built, described, runner
from pdecnn.deploy.c.fixed import Quant, fixed, rescaled
from pdecnn.deploy.c.int8.steps import Fixed, Layer
from pdecnn.deploy.c.write import write
from pdecnn.layers import GlobalLayer


def by_python(written, inputs):
    return written.exact.answers(inputs)


def same_bits(model, inputs, *, in_float=(), error=0.05):
    """Writes, runs and compares; what stays in float must be named."""
    inputs = [x.contiguous() for x in inputs]
    written = write(model.eval(), inputs, "net", int8=[inputs])
    assert set(written.quantised.reasons) == set(in_float), written.quantised.reasons
    got = runner(written.source, flags=FLAGS)(inputs)
    with torch.no_grad():
        expected = model(*[x.clone() for x in inputs])
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    for i, (a, b, c) in enumerate(zip(got, by_python(written, inputs), expected, strict=True)):
        assert torch.equal(a, b.reshape(a.shape)), i
        assert float((a - c).norm() / c.norm().clamp(min=1e-6)) < error, i  # and it is near the model
    return written


@given(st.floats(-50, 0), st.floats(0, 50), st.floats(-80, 80))
def test_values_are_kept_to_half_a_step(low, high, x):
    q = Quant.between(low, high)
    assert q.real(q.of(0.0)) == 0
    inside = min(max(x, low), high)
    assert abs(float(q.real(q.of(inside))) - inside) <= 0.500001 * q.scale


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=5), st.integers(-(2**31), 2**31))
def test_factors_as_multiplier_and_shift(factors, value):
    (integers,), shift = fixed(np.array(factors))
    assert integers.max() < 2**31
    for factor, m in zip(factors, integers.tolist(), strict=True):
        assert abs(rescaled(value * m, shift) - value * factor) <= 0.5 + abs(value) * max(factors) * 2.0**-31 + 1e-6


FEW = settings(SETTINGS, max_examples=1)


@FEW
@given(st.lists(convolutions(), min_size=10, max_size=10))
def test_convolutions_of_all_kinds(cases):
    same_bits(Many(*(conv for conv, _ in cases)), [torch.randn(2, *shape) for _, shape in cases])


class Tail(nn.Module):
    def __init__(self, residual, act):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1)
        self.residual, self.act = residual, act

    def forward(self, x):
        y = self.first(x)
        return self.act(self.second(y) + y if self.residual else self.second(y))


def test_residuals_and_activations():
    parts = [Tail(residual, act) for residual in (False, True) for act in (F.relu, F.relu6, F.hardtanh, F.silu, F.gelu)]
    written = same_bits(Many(*parts), [torch.randn(4, 3, 7, 9)] * len(parts))
    kinds = [layer.arithmetic for layer in written.footprint.layers]
    assert kinds.count("int8, a table") == 4


@FEW
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 70), st.booleans()), min_size=4, max_size=4))
def test_linear(sizes):
    parts = [nn.Sequential(nn.Linear(i, o, bias=b), nn.ReLU(), nn.Linear(o, 3)) for i, o, b in sizes]
    same_bits(Many(*parts), [torch.randn(3, i) for i, _, _ in sizes], error=0.2)


POINTWISE = [
    lambda x: x + x.mean((2, 3), keepdim=True),
    lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: F.relu(x.roll(1, 2) + x),
    lambda x: (x.roll(1, 2) * x).clamp(-0.5, 1.0),
    lambda x: x * x,
    lambda x: F.hardswish(x) + 1,
    lambda x: F.relu(x * torch.arange(4.0).reshape(1, 4, 1, 1) + 1),
    lambda x: x * torch.linspace(-2, 2, 6) - torch.ones(4, 1, 1),
    lambda x: torch.sigmoid(2 * x) * x,
]


def test_element_wise_operators():
    same_bits(Many(*POINTWISE), [torch.randn(3, 4, 5, 6)] * len(POINTWISE))


def test_pooling():
    same_bits(Many(*POOLS), [torch.randn(3, 3, 8, 7)] * len(POOLS))


STILL = [
    m for i, m in enumerate(MOVES) if i not in (7, 21, 26, 27)
]  # no pad with 0.5, no circular one, no interpolation


def test_moves():
    same_bits(Many(*STILL), [torch.randn(2, 4, 5, 6)] * len(STILL))


CHANGED = {"init": None, "act_layer": nn.ReLU, "velocity": "depthwise", "velocity_bound": False, "upwind": False}


@FEW
@given(st.lists(global_layers(), min_size=6, max_size=6), st.data())
def test_global_layers(cases, data):
    """The 16-bit form has the bits of Python's, however far from float it is."""
    layers, inputs = [], []
    for layer, (C, H, W) in cases:
        bound, source = layer.boundary, data.draw(st.sampled_from(["identity", "none"]))
        options = {"K": layer.K, "dt": 0.2, "boundary": bound, "source": source, "residual": data.draw(st.booleans())}
        act = data.draw(st.sampled_from([nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Identity]))
        diffusion = data.draw(st.sampled_from(["depthwise", 0.3]))
        previous = data.draw(st.sampled_from(["init", "input"]))
        layers.append(
            GlobalLayer(C, **{**options, "act_layer": act, "diffusion": diffusion, "h_prev": previous,
                              "init": nn.Conv2d(C, C, 3, padding=1)})
        )  # fmt: skip
        inputs.append(torch.randn(3, C, H, W))
    model = Many(*(layer.eval() for layer in layers))
    written = write(model, inputs, "net", int8=[inputs])
    got = runner(written.source, flags=FLAGS)(inputs)
    for a, b, layer in zip(got, by_python(written, inputs), layers, strict=True):
        if not written.quantised.reasons:
            assert torch.equal(a, b), layer
        else:
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.1)


def trained_like(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    model = timm.create_model("cifar_resnet_tiny_global.cifar10", pretrained=True).eval()
    x = torch.randn(8, 3, 32, 32)
    return model, x, write(model, (x,), "net", int8=[(x,)])


def test_the_shipped_network_is_all_integers_and_has_the_bits_of_python(tiny):
    _, x, written = tiny
    assert not written.quantised.reasons
    assert torch.equal(runner(written.source)([x])[0], by_python(written, [x])[0])
    assert written.footprint.flash < 20_000
    assert written.footprint.sram < 40_000
    assert "float" not in {layer.arithmetic for layer in written.footprint.layers}
    assert all(distance < 0.4 for distance in written.quantised.distances.values())


@pytest.mark.parametrize("K", [1, 3, 40])
def test_steps_are_chosen_when_it_runs(tiny, K):
    _, x, written = tiny
    name, arena_bytes, _ = described(written.source)
    built = Built(written.source, name, flags=FLAGS)
    arena, out = np.empty(arena_bytes // 4, np.float32), np.empty(10, np.float32)
    assert built.run(arena, x[0].numpy(), out, K) == 0
    assert np.array_equal(out, written.exact.with_steps(K).answers([x[:1]])[0][0].numpy())


def test_one_lane_and_many_and_strict_compilers_give_the_same_bits(tiny):
    _, x, written = tiny
    expected = runner(written.source, flags=("-std=c99", "-O0"))([x])[0]
    strict = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-O3", "-march=native")
    scalar = written.source.replace("#define LANES 8", "#define LANES 1").replace("#define LANES 16", "#define LANES 1")
    for source in (written.source, scalar):
        assert torch.equal(runner(source, flags=strict)([x])[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist_resnet_tiny_global", "cifar_resnet_tiny", "lowcost_explicit_tiny"])
def test_other_networks_have_the_bits_of_python(name):
    torch.manual_seed(0)
    model = trained_like(timm.create_model(name))
    x = torch.randn(4, *model.default_cfg["input_size"])
    written = write(model, (x,), "net", int8=[(x,)])
    got, expected = runner(written.source)([x])[0], by_python(written, [x])[0].reshape(4, -1)
    if written.quantised.reasons:
        torch.testing.assert_close(got, expected, rtol=0.1, atol=0.1 * float(expected.abs().max()))
    else:
        assert torch.equal(got, expected)


class Mixed(nn.Module):
    """Something with no form in integers between convolutions."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3)

    def forward(self, x):
        y = self.first(x)
        return self.second(F.softmax(y, 1) * 2 + y)


def test_what_has_no_form_in_integers_is_computed_in_float_and_named(tmp_path):
    model, x = Mixed().eval(), torch.randn(4, 3, 6, 6)
    report = pdecnn.export(model, tmp_path / "net.c", x, format="c", int8=[x], progress=False)
    assert report.int8
    assert [layer.name for layer in report.footprint.layers if layer.arithmetic == "float"] == ["_softmax"]
    assert report.agreement.max_error < 0.05


def test_a_layer_that_is_bad_in_16_bits_stays_in_float(monkeypatch):
    from pdecnn.deploy.c.int8 import steps

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), GlobalLayer(3)).eval(), torch.randn(4, 3, 6, 6)
    assert not write(model, (x,), "net", int8=[(x,)]).quantised.reasons
    monkeypatch.setattr(steps, "WORST", 0.0)
    written = write(model, (x,), "net", int8=[(x,)])
    assert "steps of its output from float" in written.quantised.reasons["global_layer"]
    with torch.no_grad():
        torch.testing.assert_close(runner(written.source)([x])[0], model(x), rtol=0.1, atol=0.1)


def test_the_layer_in_float_agrees_with_torch_on_its_ranges():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.ReLU(), GlobalLayer(3, K=3)).eval(), torch.rand(6, 3, 6, 6)
    forms = write(model, (x,), "net", int8=[(x,)]).quantised.forms.values()
    layer = next(form.layer for form in forms if isinstance(form, Fixed))
    assert isinstance(layer, Layer)
    largest, coefficient, weight = layer.ranges(x[0].double().numpy(), x[0].double().numpy())
    assert largest >= float(x[0].max())
    assert 0 < coefficient < 5
    assert 0.3 < weight < 5


def test_two_threads_with_an_arena_each(tiny):
    _, x, written = tiny
    name, arena_bytes, _ = described(written.source)
    built = Built(written.source, name)
    expected = runner(written.source)([x])[0]
    wrong = []

    def work(i):
        arena, out = np.empty(arena_bytes // 4, np.float32), np.empty(10, np.float32)
        for _ in range(5):
            built.run(arena, x[i].numpy(), out)
            if not np.array_equal(out, expected[i].numpy()):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_calibration_is_checked(tmp_path):
    model, x = Mixed().eval(), torch.randn(4, 3, 6, 6)
    with pytest.raises(ValueError, match=r"int8 needs calibration batches like the example inputs"):
        pdecnn.export(model, tmp_path / "net.c", x, format="c", int8=[torch.randn(4, 1, 6, 6)], progress=False)
    assert not list(tmp_path.iterdir())


def test_inputs_that_are_no_numbers_give_numbers(tiny):
    _, _, written = tiny
    x = torch.full((1, 3, 32, 32), float("nan"))
    x[0, 1], x[0, 2] = float("inf"), -3e38
    out = runner(written.source, flags=FLAGS)([x])[0]
    assert out.isfinite().all()
    assert torch.equal(out, by_python(written, [x])[0].reshape(out.shape))
