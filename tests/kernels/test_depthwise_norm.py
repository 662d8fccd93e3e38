"""Fused stencils, batch norm and activation against torch's modules: values, gradients, statistics, awkward inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from norm_cases import ACTS, FORMATS, KINKS, randn
from torch import nn

from pdecnn.kernels.global_layer import norm
from pdecnn.kernels.registry import is_native


def depthwise_norm(h, weight, bias, gamma, beta, eps=1e-5, act="relu"):
    eps = [eps] * len(gamma) if isinstance(eps, float) else eps
    maps, mean, var = torch.ops.pdecnn.depthwise_norm(h, weight, bias, gamma, beta, eps, act)
    return list(maps), mean, var


def sample(N, C, H, W, M, k, *, bias=True, mean=0.5, seed=0):
    """`h, weight, bias, gamma, beta` in float32; k = 1 stands for no weight."""
    h = (randn(N, C, H, W, seed=seed) + mean).float()
    weight = None if k == 1 else randn(M, C, k, k, seed=seed + 1).float()
    bias = randn(M, C, seed=seed + 2).float() if bias and k > 1 else None
    gamma, beta = randn(M, C, seed=seed + 3).float(), (0.3 * randn(M, C, seed=seed + 4)).float()
    return h, weight, bias, gamma, beta


def before_norm(h, weight, bias):
    """What the norms get."""
    if weight is None:
        return [h]
    biases = [None] * len(weight) if bias is None else bias
    return [
        torch.conv2d(h, w.unsqueeze(1), b, 1, w.shape[-1] // 2, 1, h.shape[1])
        for w, b in zip(weight, biases, strict=True)
    ]


def by_modules(h, weight, bias, gamma, beta, eps, act):
    """The same by torch's modules, which also count the statistics: maps, running means and (unbiased) variances."""
    maps, means, variances = [], [], []
    for m, q in enumerate(before_norm(h, weight, bias)):
        norm = nn.BatchNorm2d(h.shape[1], eps=eps[m], momentum=1.0).to(h.dtype)
        y = torch.func.functional_call(norm, {"weight": gamma[m], "bias": beta[m]}, (q,))
        maps.append(ACTS[act](y))
        means.append(norm.running_mean)
        variances.append(norm.running_var)
    return maps, torch.stack(means), torch.stack(variances)


def results(function, tensors, grads, eps, act):
    """Maps, statistics and all gradients in one list."""
    leaves = [None if q is None else q.detach().clone().requires_grad_() for q in tensors]
    maps, mean, var = function(*leaves, eps, act)
    given = [q for q in leaves if q is not None]
    gradients = torch.autograd.grad(maps, given, grads)
    return [*maps, mean, var], gradients


def condition(h, weight, bias, eps):
    """How much larger the terms of a normalised value may be than itself: what rounding is relative to."""
    sizes = [None if q is None else q.abs() for q in (h, weight, bias)]
    ratios = [1.0]
    for terms, q, e in zip(before_norm(*sizes), before_norm(h, weight, bias), eps, strict=True):
        var = q.var((0, 2, 3), correction=0)
        ratios.append((terms.amax((0, 2, 3)) / (var + e).sqrt()).max().item())
    return max(ratios)


def assert_near(mine, theirs, exact, condition, terms=0.0, slack=4.0):
    """Mine is as near to the exact result as torch's float32 is, or as float32 can come for sums of that condition.

    A sum may be smaller than its terms, whose size is `terms`.
    """
    eps = torch.finfo(torch.float32).eps
    assert len(mine) == len(theirs) == len(exact)
    for a, b, c in zip(mine, theirs, exact, strict=True):
        assert a.dtype == torch.float32
        assert a.shape == c.shape
        error, other = (a.double() - c).abs().max().item(), (b.double() - c).abs().max().item()
        assert error <= slack * max(other, eps * condition * max(terms, c.abs().max().item())), (error, other)


def compare(tensors, eps, act, seed=9):
    h = tensors[0]
    count = h.numel() // h.shape[1]
    M = len(tensors[3])
    grads = [randn(*h.shape, seed=seed + m).float().contiguous(memory_format=torch.channels_last) for m in range(M)]
    wide = [None if q is None else q.double() for q in tensors]
    exact = results(by_modules, wide, [g.double() for g in grads], eps, act)
    theirs = results(by_modules, tensors, grads, eps, act)
    mine = results(depthwise_norm, tensors, grads, eps, act)
    mine[0][-1] = mine[0][-1] * (count / (count - 1))
    has_bias = tensors[2] is not None
    for part in (0, 1):
        pairs = [list(q[part]) for q in (mine, theirs, exact)]
        if part == 1 and has_bias:
            place = 2 if tensors[1] is not None else 1
            zero, _, rounding = (q.pop(place) for q in pairs)
            assert torch.equal(zero, torch.zeros_like(zero))  # exactly; torch leaves rounding errors
            assert rounding.abs().max() < 1e-9 * max(1.0, *(g.abs().max().item() for g in pairs[2]))
        assert_near(*pairs, condition(*wide[:3], eps), terms=float(part))  # gradients of maps are of size 1
    return mine


def away_from_kinks(tensors, eps, act, margin=1e-4):
    """Whether no map is so near a kink of the activation that rounding decides on which side."""
    wide = [None if q is None else q.double() for q in tensors]
    before, _, _ = by_modules(*wide, eps, "identity")
    kinks = KINKS.get(act, ())
    return all(((y - kink).abs() > margin).all() for y in before for kink in kinks)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.tuples(
        st.integers(1, 3),
        st.sampled_from((1, 3, 16, 18)),
        st.integers(1, 9),
        st.integers(1, 9) | st.sampled_from((16, 17, 32, 33)),
    ).filter(lambda s: s[0] * s[2] * s[3] > 3),
    kind=st.sampled_from(((4, 3), (2, 3), (4, 5), (2, 5), (1, 1), (3, 3), (2, 7))),
    act=st.sampled_from(tuple(ACTS)),
    bias=st.booleans(),
    memory_format=st.sampled_from(FORMATS),
)
def test_values_gradients_and_statistics_are_those_of_the_modules(seed, shape, kind, act, bias, memory_format):
    M, k = kind
    eps = [10.0 ** (m - 3) for m in range(M)]
    h, *others = sample(*shape, M, k, bias=bias, seed=seed % 2**30)
    tensors = [h.to(memory_format=memory_format), *others]
    if not away_from_kinks(tensors, eps, act):
        act = "identity"
    (*maps, _, _), _ = compare(tensors, eps, act)
    assert all(q.is_contiguous(memory_format=memory_format) for q in maps)


def test_known_values():
    h = torch.tensor([[[[0.0, 1.0, 0.0]]]])
    weight = torch.zeros(2, 1, 3, 3)
    weight[0, 0, 1, 0] = 1.0  # reads the left neighbour: 0 0 1, with zero beyond the border
    weight[1, 0, 1, 1] = 2.0
    maps, mean, var = depthwise_norm(h, weight, torch.tensor([[5.0], [0.0]]), torch.ones(2, 1), torch.zeros(2, 1), 0.0)
    torch.testing.assert_close(mean, torch.tensor([[5 + 1 / 3], [2 / 3]]))
    torch.testing.assert_close(var, torch.tensor([[2 / 9], [8 / 9]]))
    torch.testing.assert_close(maps[0].flatten(), torch.tensor([0.0, 0.0, 2**0.5]))
    torch.testing.assert_close(maps[1].flatten(), torch.tensor([0.0, 2**0.5, 0.0]))


def test_gradients_are_differences_of_values():
    """A second route, without autograd: central differences of the exact composition."""
    tensors = [q.double() for q in sample(2, 2, 4, 5, 2, 3)]
    eps, grads = [1e-2, 1e-1], [randn(2, 2, 4, 5, seed=m).float() for m in range(2)]
    _, mine = results(depthwise_norm, [q.float() for q in tensors], grads, eps, "identity")

    def value(given):
        maps, _, _ = by_modules(*given, eps, "identity")
        return sum((g.double() * y).sum() for g, y in zip(grads, maps, strict=True)).item()

    for i, gradient in enumerate(mine):
        for place in (0, tensors[i].numel() // 2, tensors[i].numel() - 1):
            change = torch.zeros_like(tensors[i]).view(-1)
            change[place] = 1e-5
            ends = (value([q + s * change.view_as(q) if j == i else q for j, q in enumerate(tensors)]) for s in (1, -1))
            slope = (next(ends) - next(ends)) / 2e-5
            assert gradient.reshape(-1)[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_a_mean_far_from_zero_costs_no_digits_of_the_variance():
    h = (1000 + 0.1 * randn(4, 3, 8, 8)).float()
    _, mean, var = depthwise_norm(h, None, None, torch.ones(1, 3), torch.zeros(1, 3))
    exact = h.double().var((0, 2, 3), correction=0)
    torch.testing.assert_close(var[0].double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(mean[0].double(), h.double().mean((0, 2, 3)), rtol=1e-7, atol=0)


def test_large_planes():
    compare(sample(2, 2, 70, 131, 4, 3, bias=False), [1e-5] * 4, "identity")


def test_same_bits_for_any_number_of_threads():
    threads, seen = torch.get_num_threads(), []
    tensors, grads = sample(37, 5, 18, 18, 4, 3), [randn(37, 5, 18, 18, seed=m).float() for m in range(4)]
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            outputs, gradients = results(depthwise_norm, tensors, grads, [1e-5] * 4, "relu")
            seen.append([*outputs, *gradients])
    finally:
        torch.set_num_threads(threads)
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


def test_views_and_gradients_that_are_missing():
    h, *others = sample(2, 4, 6, 8, 4, 3)
    expected, _, _ = depthwise_norm(h, *others, 1e-3)
    for view in (h.repeat(1, 1, 1, 2)[..., :8], h.transpose(2, 3).contiguous().transpose(2, 3)):
        maps, _, _ = depthwise_norm(view, *others, 1e-3)
        torch.testing.assert_close(maps, expected)
    leaf = h.clone().requires_grad_()
    maps, mean, var = depthwise_norm(leaf, *others, 1e-3)
    assert not mean.requires_grad
    assert not var.requires_grad
    maps[2].square().sum().backward()
    reference = h.clone().requires_grad_()
    by_modules(reference, *others, [1e-3] * 4, "relu")[0][2].square().sum().backward()
    torch.testing.assert_close(leaf.grad, reference.grad, rtol=1e-4, atol=1e-4)


def test_nan_is_not_hidden_by_the_activation():
    h, *others = sample(2, 3, 5, 8, 4, 3)
    h[1, 1, 2, 2] = float("nan")
    maps, mean, _ = depthwise_norm(h, *others)
    for q in maps:
        assert q[:, 1].isnan().all()
        assert q[:, (0, 2)].isfinite().all()
    assert mean[:, 1].isnan().all()


@pytest.mark.parametrize("dtype, kind", [(torch.float32, (4, 3)), (torch.float32, (1, 1)), (torch.float64, (2, 3))])
def test_opcheck(dtype, kind):
    tensors = [None if q is None else q.to(dtype) for q in sample(2, 3, 6, 9, *kind)]
    eps = [1e-3] * kind[0]
    forward, backward = torch.ops.pdecnn.depthwise_norm.default, torch.ops.pdecnn.depthwise_norm_backward.default
    _, mean, var = forward(*tensors, eps, "relu")
    leaves = [None if q is None else q.requires_grad_() for q in tensors]
    torch.library.opcheck(forward, (*leaves, eps, "relu"))
    grads = [torch.ones_like(tensors[0])] * kind[0]
    arguments = (grads, mean, var, *(None if q is None else q.detach() for q in tensors), eps, "relu")
    torch.library.opcheck(backward, arguments)


def test_gradcheck_of_the_reference():
    tensors = [q.double().requires_grad_() for q in sample(2, 2, 3, 4, 2, 3)]
    assert torch.autograd.gradcheck(lambda *q: tuple(depthwise_norm(*q, 0.1, "identity")[0]), tensors)


def test_double_backward_is_refused():
    h, *others = sample(2, 3, 4, 8, 4, 3)
    h.requires_grad_()
    (gradient,) = torch.autograd.grad(depthwise_norm(h, *others)[0][0].sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again by the fused kernel"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"act": "silu"}, r"act must be one of 'identity', 'relu', 'relu6', 'tanh', 'hardtanh', got 'silu'"),
        ({"eps": [1e-5]}, r"expected 4 eps, got 1"),
        ({"h": torch.ones(1, 3, 1, 1)}, r"several values per channel, got h of shape \(1, 3, 1, 1\)"),
        ({"weight": torch.ones(4, 3, 2, 2)}, r"weight of shape \(maps, 3, k, k\), k odd, got \(4, 3, 2, 2\)"),
        (
            {"weight": None, "gamma": torch.ones(1, 3), "beta": torch.ones(1, 3), "bias": torch.ones(1, 3)},
            "needs a weight",
        ),
        ({"gamma": torch.ones(4, 2)}, r"gamma of shape \(4, 3\), got \(4, 2\)"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    names = ("h", "weight", "bias", "gamma", "beta")
    arguments = dict(zip(names, sample(2, 3, 4, 4, 4, 3), strict=True)) | change
    with pytest.raises(ValueError, match=message):
        depthwise_norm(**arguments)


@pytest.mark.skipif(not is_native("global_layer"), reason="no native library with this operator here")
def test_float32_does_not_go_to_the_reference(monkeypatch):
    for name in ("forward_default", "backward_default"):
        monkeypatch.setattr(norm, name, None)
    tensors = sample(2, 3, 4, 8, 4, 3)
    h = tensors[0].requires_grad_()
    depthwise_norm(*tensors)[0][0].sum().backward()
    assert h.grad.isfinite().all()
