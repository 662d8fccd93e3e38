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


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["nothing", "residual", "neumann", "tanh"])
def test_forward_derivatives_are_those_of_float64(name, training):
    layer, x, t = changed([name]).train(training), sample(*SHAPE), sample(*SHAPE, seed=1)
    wide = copy.deepcopy(layer).double()
    step = 1e-6
    with torch.no_grad():
        slope = (wide(x.double() + step * t) - wide(x.double() - step * t)) / (2 * step)
    with torch.no_grad():  # where the fused operators would else be used
        try:
            _, tangent = torch.func.jvp(layer, (x,), (t,))
        except RuntimeError as error:  # torch's own batch norm counts in place
            assert training and "in-place" in str(error)  # noqa: PT017, PT018
        else:
            assert_near(tangent, slope, "jvp")
        with torch.autograd.forward_ad.dual_level():
            dual = layer(torch.autograd.forward_ad.make_dual(x, t))
            assert_near(torch.autograd.forward_ad.unpack_dual(dual).tangent, slope, "dual")


def test_maps_that_overlap_in_memory():
    layer = changed(["nothing"])
    x = torch.as_strided(sample(200), (2, C, 8, 8), (1, 1, 8, 1))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), layer(x.contiguous()))
    layer.train()
    torch.testing.assert_close(layer(x), layer(x.contiguous()), rtol=1e-4, atol=1e-4)


def test_permuted_maps_run_without_copies_in_their_order():
    layer, x = changed(["residual"]), sample(3, 9, 8, C).permute(0, 3, 1, 2)
    with torch.no_grad():
        out = layer(x)
        torch.testing.assert_close(out, layer(x.contiguous()), rtol=1e-5, atol=1e-5)
    assert out.permute(0, 2, 3, 1).is_contiguous()


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
@pytest.mark.parametrize("training", [True, False])
def test_hooks_of_every_kind_are_heard(kind, training):
    for path in ("velocity", "velocity.op_x", "diffusion.norm_y", "velocity.act", "source", "norm", "act"):
        layer, seen = changed(["nothing"]).train(training), []
        getattr(layer.get_submodule(path), f"register_{kind}")(lambda *args, seen=seen: seen.append(args[0]))
        layer(sample(*SHAPE).requires_grad_()).sum().backward()
        assert seen, path


@pytest.mark.parametrize("training", [True, False])
def test_a_norm_in_the_other_mode_keeps_it(training):
    for path in ("velocity.norm_x", "norm"):
        layer, x = changed(["nothing"]).train(training), sample(*SHAPE)
        layer.get_submodule(path).train(not training)
        wide = copy.deepcopy(layer).double()
        with torch.no_grad():
            assert_near(layer(x), wide(x.double()), path)
        for (name, q), exact in zip(layer.named_buffers(), wide.buffers(), strict=True):
            assert_near(q, exact.double(), name)


def test_statistics_of_another_type_are_used_as_they_are():
    layer, x = changed(["nothing"]), sample(*SHAPE)
    norm = layer.velocity.norm_x
    norm.running_mean, norm.running_var = norm.running_mean.double(), norm.running_var.double()
    outcomes = []
    for context in (torch.enable_grad, torch.no_grad):
        with context():
            try:
                outcomes.append(layer(x).detach())
            except RuntimeError as error:
                outcomes.append(str(error))
    assert type(outcomes[0]) is type(outcomes[1])
    torch.testing.assert_close(outcomes[0], outcomes[1]) if torch.is_tensor(outcomes[0]) else None
