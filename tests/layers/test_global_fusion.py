"""Whatever is done to a Global layer, all ways to run it agree: fused, by modules, compiled, optimized and lowered."""

import copy

import pytest
import torch
from changes import CHANGES, C
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pdecnn
from pdecnn.deploy.lower import lower
from pdecnn.layers import GlobalLayer

SHAPE = (3, C, 9, 8)
FORMATS = (torch.contiguous_format, torch.channels_last)


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def changed(names, seed=0):
    """A layer whose norms have seen something, with the named changes."""
    torch.manual_seed(seed)
    layer = GlobalLayer(C, K=2).eval()
    for name in names:
        CHANGES[name](layer)
    for norm in layer.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for q, low, high in (
                (norm.running_mean, -0.5, 0.5),
                (norm.running_var, 0.5, 2.0),
                (norm._parameters.get("weight"), 0.5, 1.5),
                (norm._parameters.get("bias"), -0.5, 0.5),
            ):
                if q is not None:
                    nn.init.uniform_(q, low, high)
    return layer.eval()


def by_modules(layer, x):
    """The layer in float64 and with gradients, where its modules run one by one."""
    return copy.deepcopy(layer).double()(x.double().requires_grad_()).detach()


def ways(layer, x, *, compiled=True):
    """The output in every way to run the layer in evaluation."""
    yield "gradient", layer(x.clone().requires_grad_()).detach()
    with torch.no_grad():
        yield "no_grad", layer(x)
        if compiled:
            torch.compiler.reset()
            yield "compile", torch.compile(layer, backend="aot_eager")(x)
        net = nn.Sequential(layer)
        yield "optimized", pdecnn.optimize_for_inference(net, x, memory_format=torch.contiguous_format)(x)
        yield "lowered", lower(net, x)(x)
    with torch.inference_mode():
        yield "inference_mode", layer(x)


def assert_near(out, expected, what):
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4 * scale, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize("name", CHANGES)
def test_every_way_to_run_a_changed_layer_agrees(name):
    layer, x = changed([name]), sample(*SHAPE)
    expected = by_modules(layer, x)
    for way, out in ways(layer, x, compiled=False):
        assert_near(out, expected, way)
    assert_near(layer(x.to(memory_format=torch.channels_last).requires_grad_()).detach(), expected, "channels_last")
    with torch.no_grad():
        assert_near(layer(x.to(memory_format=torch.channels_last)), expected, "channels_last in inference")


COMPILED = ("nothing", "circular", "subclass with solve", "hook on a norm", "parametrized", "tanh", "residual")


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_layers_agree(name):
    layer, x = changed([name]), sample(*SHAPE)
    expected = by_modules(layer, x)
    for way, out in ways(layer, x):
        assert_near(out, expected, way)


@settings(max_examples=25, deadline=None)
@given(
    names=st.lists(st.sampled_from(tuple(CHANGES)), min_size=2, max_size=4, unique=True),
    seed=st.integers(0, 99),
)
def test_several_changes_at_once(names, seed):
    try:
        layer, x = changed(names, seed), sample(*SHAPE, seed=seed)
        expected = by_modules(layer, x)
    except (AttributeError, TypeError, RuntimeError, KeyError, ValueError):
        return  # changes that exclude one another
    if not expected.isfinite().all() or expected.abs().max() > 1e4:
        return
    for way, out in ways(layer, x, compiled=False):
        assert_near(out, expected, f"{names}: {way}")


def step(layer, x):
    """Output, gradients and buffers after one pass in training."""
    x = x.detach().clone().requires_grad_()
    out = layer(x)
    (out * sample(*out.shape, seed=1).to(out)).sum().backward()
    gradients = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "x": x.grad, **gradients, **dict(layer.named_buffers())}


@pytest.mark.parametrize("memory_format", FORMATS, ids=["planes", "channels_last"])
@pytest.mark.parametrize("name", CHANGES)
def test_training_a_changed_layer_is_that_of_float64(name, memory_format):
    layer, x = changed([name]).train(), sample(*SHAPE)
    wide = copy.deepcopy(layer).double()
    exact, mine = step(wide, x.double()), step(layer, x.to(memory_format=memory_format))
    assert mine.keys() == exact.keys()
    for part, q in exact.items():
        scale = max(1.0, float(q.abs().max()))
        torch.testing.assert_close(
            mine[part].double(), q.double(), rtol=2e-4, atol=5e-4 * scale, msg=lambda m, p=part: f"{p}: {m}"
        )
