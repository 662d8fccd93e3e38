"""K as a knob: a net set to K is the net built with K, by every path, with the statistics of that K."""

import copy
import re

import pytest
import torch
from global_layers import sample
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pdecnn.deploy.optimize import optimize_for_inference
from pdecnn.layers import GlobalLayer, GlobalLayer1d, GlobalLayer3d, serve_steps, set_steps, with_steps
from pdecnn.layers.global_fusion import FusedGlobalLayer, match
from pdecnn.layers.step_norm import StepNorm
from pdecnn.layers.steps import find_statistics, served_steps
from pdecnn.layers.transport import Transport

LEAST, MOST = 1, 6
MAKERS = {
    "planes": lambda **o: GlobalLayer(3, **o),
    "by modules": lambda **o: GlobalLayer(3, upwind=True, **o),
    "source each step": lambda **o: GlobalLayer(3, source="residual_each_step", **o),
    "signals": lambda **o: GlobalLayer1d(3, **o),
    "volumes": lambda **o: GlobalLayer3d(3, **o),
    "transport": lambda **o: nn.Sequential(Transport(3, **o), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1)),
}
SHAPES = {"signals": (2, 3, 9), "volumes": (2, 3, 4, 5, 6)}


def known(module, seed=0):
    """The module in evaluation with random statistics, scales and shifts, those of each K among them."""
    g = torch.Generator().manual_seed(seed)
    for norm in module.modules():
        if hasattr(norm, "running_mean"):
            for q, low, high in (
                (norm.running_mean, -0.5, 0.5),
                (norm.running_var, 0.5, 2.0),
                (norm.weight, 0.5, 1.5),
                (norm.bias, -1.0, 1.0),
            ):
                nn.init.uniform_(q, low, high, generator=g)
    return module.eval()


def alone(net, K):
    """The net as one that was never a knob: plain norms with the statistics of K."""
    net = copy.deepcopy(net)
    for parent in list(net.modules()):
        for name, part in parent.named_children():
            if isinstance(part, StepNorm):
                norm = type(part.at(K))(part.channels, eps=part.eps).eval()
                row, own = K - LEAST, part.state_dict()
                norm.load_state_dict({k: q if k in ("weight", "bias") else q[row] for k, q in own.items()})
                setattr(parent, name, norm)
    set_steps(net, K)
    return net


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(tuple(MAKERS)), K=st.integers(1, 12), built=st.integers(1, 12))
def test_a_net_set_to_K_is_the_net_built_with_K(name, K, built):
    torch.manual_seed(0)
    other = known(MAKERS[name](K=built))
    net = known(MAKERS[name](K=K))
    net.load_state_dict(other.state_dict())
    x = sample(*SHAPES.get(name, (2, 3, 7, 8)), dtype=torch.float32)
    assert set_steps(other, K) == 1
    with torch.no_grad():
        assert torch.equal(other(x), net(x))


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(tuple(MAKERS)), K=st.integers(LEAST, MOST))
def test_each_K_has_its_own_statistics_by_every_path(name, K):
    torch.manual_seed(0)
    net = known(serve_steps(MAKERS[name](K=2), LEAST, MOST))
    x = sample(*SHAPES.get(name, (2, 3, 7, 8)), dtype=torch.float32)
    with torch.no_grad():
        expected = alone(net, K).double()(x.double()).float()
        assert set_steps(net, K) == 1
        outs = {"eager": net(x)}
        if name == "planes":
            assert match(net, x, x, K) is not None
            fused = FusedGlobalLayer(net)
            outs["fused"] = fused(x)
            fused.set_steps(2)
            outs["fused, told K"] = fused(x, K=K)
        if name not in SHAPES:
            outs["optimized"] = optimize_for_inference(nn.Sequential(net), x, memory_format=torch.contiguous_format)(x)
    with torch.enable_grad():
        outs["with gradients"] = net(x.clone().requires_grad_()).detach()
    if isinstance(net, GlobalLayer):
        net.set_steps(2)
        with torch.no_grad():
            outs["told K"] = net(x, K=K)
    for path, out in outs.items():
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5, msg=lambda m, p=path: f"{p}: {m}")


@pytest.mark.parametrize("name", MAKERS)
def test_training_counts_in_the_row_of_its_K_alone(name):
    torch.manual_seed(0)
    plain = MAKERS[name](K=3).train()
    net = serve_steps(copy.deepcopy(plain), LEAST, MOST)
    x = sample(*SHAPES.get(name, (4, 3, 7, 8)), dtype=torch.float32)
    for model in (plain, net):
        model(x).square().mean().backward()
    for a, b in zip(plain.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    norm = next(m for m in net.modules() if isinstance(m, StepNorm))
    own = next(m for key, m in plain.named_modules() if net.get_submodule(key) is norm)
    torch.testing.assert_close(norm.running_mean[2], own.running_mean)
    torch.testing.assert_close(norm.running_var[2], own.running_var)
    assert norm.num_batches_tracked.tolist() == [0, 0, 1, 0, 0, 0]
    assert not norm.running_mean[[0, 1, 3, 4, 5]].any()


def test_it_compiles_whole_and_follows_K():
    torch.manual_seed(0)
    net = known(serve_steps(GlobalLayer(3, K=2), LEAST, MOST))
    x = sample(2, 3, 5, 6, dtype=torch.float32)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    with torch.no_grad():
        for K in (2, 4):
            set_steps(net, K)
            torch.testing.assert_close(compiled(x), net(x))


def test_with_steps_restores_what_each_layer_had():
    net = nn.Sequential(GlobalLayer(2, K=3), GlobalLayer(2, K=5), Transport(2, K=2))
    with with_steps(net, 4):
        assert [layer.K for layer in net] == [4, 4, 4]
    assert [layer.K for layer in net] == [3, 5, 2]
    with pytest.raises(ZeroDivisionError), with_steps(net, 4):
        1 / 0  # noqa: B018
    assert [layer.K for layer in net] == [3, 5, 2]


def test_statistics_found_anew_are_those_of_the_images():
    torch.manual_seed(0)
    net = serve_steps(nn.Sequential(nn.BatchNorm2d(3), GlobalLayer(3, K=2)), LEAST, MOST)
    net.train()
    before = {key: q.clone() for key, q in net.state_dict().items() if not key.startswith("1.norm")}
    batches = [sample(4, 3, 6, 6, seed=s, dtype=torch.float32) for s in range(3)]
    find_statistics(net, batches)
    assert net[1].norm.training
    assert net[1].norm.momentum == 0.1
    assert all(torch.equal(q, net.state_dict()[key]) for key, q in before.items())
    layer = net.eval()[1]
    for K in range(LEAST, MOST + 1):
        set_steps(net, K)
        with torch.no_grad():
            states = [layer.trajectory(net[0](x))[-1] for x in batches]
        mean = torch.stack([h.mean((0, 2, 3)) for h in states]).mean(0)
        var = torch.stack([h.var((0, 2, 3)) for h in states]).mean(0)
        torch.testing.assert_close(layer.norm.running_mean[K - LEAST], mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.norm.running_var[K - LEAST], var, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_served_is_refused():
    net = serve_steps(nn.Sequential(GlobalLayer(2, K=3), GlobalLayer(2, K=3)), LEAST, MOST)
    assert served_steps(net) == (LEAST, MOST)
    assert serve_steps(net, LEAST, MOST) is net
    assert serve_steps(GlobalLayer(2, K=9), 1, 3).K == 3
    said = [
        (lambda: set_steps(net, 7), "StepNorm: this net was trained for K from 1 to 6, got K=7."),
        (lambda: net[0](sample(1, 2, 4, 4, dtype=torch.float32), K=7), "trained for K from 1 to 6, got K=7"),
        (lambda: FusedGlobalLayer(net[0].eval()).set_steps(7), "trained for K from 1 to 6, got K=7"),
        (lambda: serve_steps(net, 1, 3), "serves K from 1 to 6 already"),
        (lambda: serve_steps(nn.ReLU(), 1, 3), "ReLU has no layer with K time steps"),
        (lambda: serve_steps(GlobalLayer(2), 0, 3), "serve_steps: least: K"),
        (lambda: serve_steps(GlobalLayer(2), 5, 3), "least <= most <= 64, got least=5, most=3"),
        (lambda: serve_steps(GlobalLayer(2), 1, 65), "least <= most <= 64"),
        (lambda: StepNorm(nn.GroupNorm(1, 2), 1, 2), "expected a batch norm with running statistics"),
    ]
    for call, text in said:
        with pytest.raises(ValueError, match=re.escape(text)):
            call()
    assert [layer.K for layer in net] == [3, 3]


def test_a_norm_without_statistics_is_left():
    net = GlobalLayer(2, norm_layer=lambda C, **o: nn.GroupNorm(1, C, **o) if not o else nn.GroupNorm(1, C))
    assert isinstance(serve_steps(net, 1, 5).norm, nn.GroupNorm)
    assert served_steps(net) is None
