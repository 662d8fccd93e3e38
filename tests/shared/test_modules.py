"""Listening to modules, replacing them, and batch norms as affine maps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pdecnn.shared.modules import affine, eval_mode, listen, norm_affine, replace, tensors_in, with_momentum


class Failing(nn.Module):
    def forward(self, x):
        raise ArithmeticError("cannot")


def hooks_of(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_always_called")
    return [hook for m in model.modules() for kind in kinds for hook in getattr(m, kind)]


def test_what_is_heard_and_in_which_order():
    model, heard = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), []
    x = torch.ones(1, 2, requires_grad=True)
    with listen(
        model.modules(),
        before=lambda m, args, kwargs: heard.append(("before", m, args[0].shape)),
        after=lambda m, args, kwargs, out: heard.append(("after", m, out.shape)),
        backward=lambda m, grad_inputs, grad_outputs: heard.append(("backward", m, grad_inputs[0].shape)),
    ):
        model(x).sum().backward()
    a, b = model
    assert heard == [
        ("before", model, (1, 2)),
        ("before", a, (1, 2)),
        ("after", a, (1, 3)),
        ("before", b, (1, 3)),
        ("after", b, (1, 1)),
        ("after", model, (1, 1)),
        ("backward", b, (1, 3)),
        ("backward", a, (1, 2)),
        ("backward", model, (1, 2)),
    ]
    assert hooks_of(model) == []


def test_keyword_arguments_are_heard_and_a_module_named_twice_is_heard_once():
    layer, heard = nn.Bilinear(1, 1, 1), []
    with listen([layer, layer], before=lambda m, args, kwargs: heard.append(sorted(kwargs))):
        layer(torch.ones(1, 1), input2=torch.ones(1, 1))
    assert heard == [["input2"]]


@pytest.mark.parametrize("always", [True, False])
def test_nobody_listens_after_an_error(always):
    model, heard = nn.Sequential(nn.ReLU(), Failing()), []
    with (
        pytest.raises(ArithmeticError, match="cannot"),
        listen(model.modules(), after=lambda m, args, kwargs, out: heard.append((m, out is None)), always=always),
    ):
        model(torch.ones(1))
    assert heard == [(model[0], False), *([(model[1], True), (model, True)] if always else [])]
    assert hooks_of(model) == []


def test_hooks_are_removed_where_registering_fails_half_way():
    model = nn.Sequential(nn.ReLU())
    with pytest.raises(AttributeError), listen([model[0], None], before=print):
        pass
    assert hooks_of(model) == []


@pytest.mark.parametrize("first", [True, False])
def test_first_is_before_the_hooks_of_others(first):
    layer, heard = nn.ReLU(), []
    layer.register_forward_hook(lambda m, args, out: heard.append("theirs"))
    with listen([layer], after=lambda m, args, kwargs, out: heard.append("ours"), first=first):
        layer(torch.ones(1))
    assert heard == (["ours", "theirs"] if first else ["theirs", "ours"])


def test_eval_mode_restores_every_module():
    model = nn.Sequential(nn.ReLU(), nn.ReLU().eval())
    with eval_mode(model):
        assert not any(m.training for m in model.modules())
    with pytest.raises(ArithmeticError), eval_mode(model):
        Failing()(None)
    assert [m.training for m in model.modules()] == [True, True, False]


@pytest.mark.parametrize("momentum, mean", [(0.0, 0.0), (1.0, 3.0), (None, 2.0)])
def test_norms_learn_at_another_rate_for_a_while(momentum, mean):
    norms = [nn.BatchNorm1d(1, momentum=0.1), nn.BatchNorm1d(1, momentum=0.2)]
    with with_momentum(norms, momentum):
        for value in (1.0, 3.0):
            norms[0](torch.full((2, 1), value))
    assert norms[0].running_mean.item() == mean
    with pytest.raises(ArithmeticError), with_momentum(norms, momentum):
        Failing()(None)
    assert [norm.momentum for norm in norms] == [0.1, 0.2]


def test_tensors_in_order():
    a, b, c = torch.rand(3, 2)
    found = tensors_in(([a, None, 3], {"x": b, "y": (c, "text")}))
    assert [id(q) for q in found] == [id(a), id(b), id(c)]


def test_replaced_under_every_name_by_one_module():
    shared = nn.Conv2d(1, 1, 1)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(nn.ReLU(), shared)})
    asked = []

    def choose(module):
        asked.append(module)
        return nn.Identity() if isinstance(module, nn.Conv2d) else module

    assert replace(model, choose) is model
    assert model["a"][0] is model["b"][1]
    assert isinstance(model["a"][0], nn.Identity)
    assert asked.count(shared) == 1
    assert list(model.state_dict()) == []


def test_parts_are_replaced_before_the_whole():
    model = nn.Sequential(nn.Sequential(nn.ReLU()))
    seen = replace(model, lambda m: nn.Tanh() if isinstance(m, nn.ReLU) else nn.Sequential(*m))
    assert seen is not model
    assert isinstance(seen[0][0], nn.Tanh)


def test_empty_places_and_modules_that_hold_themselves_are_left_alone():
    model = nn.Sequential(nn.ReLU())
    model.register_module("empty", None)
    model.add_module("self", model)
    assert replace(model, lambda m: m) is model
    assert model._modules["empty"] is None
    assert model._modules["self"] is model


@given(with_affine=st.booleans(), dtype=st.sampled_from([torch.float32, torch.float64]), exponent=st.floats(-6.0, 6.0))
@settings(max_examples=30, deadline=None)
def test_the_affine_map_is_the_norm(with_affine, dtype, exponent):
    g = torch.Generator().manual_seed(0)
    norm = nn.BatchNorm2d(4, affine=with_affine, dtype=dtype).eval()
    with torch.no_grad():
        for q in (*norm.parameters(), norm.running_mean, norm.running_var):
            q.copy_(10**exponent * torch.rand(q.shape, generator=g))
        x = torch.rand(2, 4, 3, 3, generator=g, dtype=dtype)
        scale, shift = (q[:, None, None] for q in norm_affine(norm))
        assert scale.dtype == shift.dtype == dtype
        torch.testing.assert_close(scale * x + shift, norm(x), rtol=1e-5, atol=1e-5 * 10 ** max(exponent, 0))


def test_scale_and_shift_are_rounded_once():
    mean, var, weight, bias = torch.rand(4, 500, generator=torch.Generator().manual_seed(0))
    scale = weight.double() / (var.double() + 1e-5).sqrt()
    shift = bias.double() - mean.double() * scale
    for got, exact in zip(affine(weight, bias, mean, var, 1e-5), (scale, shift), strict=True):
        assert torch.equal(got, exact.float())


def test_a_norm_without_statistics_has_no_affine_map():
    with pytest.raises(ValueError, match=r"keeps no running statistics.*track_running_stats=True"):
        norm_affine(nn.BatchNorm2d(4, track_running_stats=False))
