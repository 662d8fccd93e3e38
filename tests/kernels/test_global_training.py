"""Normed coefficients and K steps by one operator, against torch's modules and the definition of the solver."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from norm_cases import ACTS, FORMATS, randn
from training_cases import STEPS, away_from_kinks, by_modules, compare, global_training, options, results, sample

from pdecnn.kernels.global_layer import training
from pdecnn.kernels.registry import is_native

needs_native = pytest.mark.skipif(not is_native("global_layer"), reason="no native library with this operator here")
BOUNDARIES = ("periodic", "neumann", "dirichlet")


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**30),
    shape=st.tuples(
        st.integers(1, 4),
        st.sampled_from((1, 3, 16, 18)),
        st.integers(1, 9),
        st.sampled_from((7, 8, 14, 16, 28, 32)) | st.integers(1, 10),
    ).filter(lambda s: s[0] * s[2] * s[3] > 3),
    k=st.sampled_from((3, 5, 7)),
    act=st.sampled_from(tuple(ACTS)),
    D=st.sampled_from((None, (1.0, 0.5))),
    other=st.booleans(),
    has_source=st.booleans(),
    previous_is_input=st.booleans(),
    memory_format=st.sampled_from(FORMATS),
    K=st.integers(1, 4),
    boundary=st.sampled_from(("periodic", *BOUNDARIES)),
    flow_sign=st.sampled_from((1, -1)),
)
def test_values_gradients_and_statistics_are_those_of_the_modules(
    seed, shape, k, act, D, other, has_source, previous_is_input, memory_format, K, boundary, flow_sign
):
    eps = [0.5, 0.1, 0.2, 0.4][: 4 if D is None else 2]
    tensors = sample(*shape, k, M=len(eps), other=other, seed=seed)
    if not away_from_kinks(tensors, eps, act):
        act = "identity"
    # diffusivities must stay away from the poles of the scheme, which no activation but ReLU's kind keeps them from
    steps = {**STEPS, "K": K, "dt": 0.2 if act in ("relu", "relu6") else 0.02}
    roles = {"D": D, "has_source": has_source, "previous_is_input": previous_is_input}
    roles |= {"boundary": boundary, "flow_sign": flow_sign}
    out = compare(tensors, eps, act, steps | roles, memory_format)[0]
    assert out.is_contiguous(memory_format=memory_format)


@needs_native
@pytest.mark.parametrize("memory_format", FORMATS, ids=("NCHW", "channels_last"))
@pytest.mark.parametrize("C, K", [(8, 3), (9, 3), (21, 3), (9, 400)])
def test_small_planes_are_solved_together(C, K, memory_format):
    """Eight of 8x8 at once, what is left over, and one by one where so many states would leave the cache."""
    chosen = STEPS | {"K": K, "dt": 0.01, "previous_is_input": True}
    compare(sample(3, C, 8, 8), [0.1] * 4, "tanh", chosen, memory_format)


@needs_native
@pytest.mark.parametrize("memory_format", FORMATS, ids=("NCHW", "channels_last"))
@pytest.mark.parametrize("D", [None, (1.0, 0.5)], ids=("learned", "constant"))
def test_channels_that_do_not_stay_in_cache_together_go_part_by_part(memory_format, D):
    """A part holds a million numbers: here of 25 channels in NCHW, of 16 in channels_last."""
    eps = [0.1] * (4 if D is None else 2)
    tensors = sample(8, 53, 32, 32, M=len(eps))
    for act in ("identity", "tanh"):
        compare(tensors, eps, act, STEPS | {"D": D, "dt": 0.02}, memory_format)


def test_gradients_are_differences_of_values():
    """A second route, without autograd: central differences of the exact composition."""
    eps, tensors = [0.1] * 4, sample(2, 2, 4, 8)
    given = [q.float() for q in tensors]
    mine = results(global_training, given, eps, "identity", STEPS | {"dt": 0.02}, torch.float32)[3:]
    weight = randn(*tensors[0].shape, seed=77)

    def value(changed):
        return (by_modules(*changed, eps, "identity", **STEPS | {"dt": 0.02})[0] * weight).sum().item()

    for i, gradient in enumerate(mine):
        for place in (0, tensors[i].numel() // 2, tensors[i].numel() - 1):
            change = torch.zeros_like(tensors[i]).view(-1)
            change[place] = 1e-5
            ends = [value([q + s * change.view_as(q) if j == i else q for j, q in enumerate(tensors)]) for s in (1, -1)]
            assert gradient.reshape(-1)[place].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-4)


@needs_native
@pytest.mark.parametrize("memory_format", FORMATS, ids=["planes", "channels_last"])
def test_same_bits_for_any_number_of_threads(memory_format):
    threads, seen = torch.get_num_threads(), []
    tensors = sample(37, 18, 8, 8)
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            seen.append(results(global_training, tensors, [1e-5] * 4, "relu", STEPS, torch.float32, memory_format))
    finally:
        torch.set_num_threads(threads)
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


@needs_native
def test_nothing_is_saved_but_state_source_and_parameters():
    h, x, *others = (q.float().requires_grad_() for q in sample(2, 3, 8, 8))
    maps = []
    with torch.autograd.graph.saved_tensors_hooks(lambda q: maps.append(q.shape) or q, lambda q: q):
        global_training(h, x, *others, [1e-5] * 4, **STEPS)
    assert maps.count(h.shape) == 2


def test_views_and_mixed_memory_formats():
    h, x, *others = (q.float() for q in sample(2, 4, 6, 8))
    expected, _, _ = global_training(h, x, *others, [1e-3] * 4, **STEPS)
    for view in (h.repeat(1, 1, 1, 2)[..., :8], h.transpose(2, 3).contiguous().transpose(2, 3)):
        out, _, _ = global_training(view, x.to(memory_format=torch.channels_last), *others, [1e-3] * 4, **STEPS)
        torch.testing.assert_close(out, expected)


def test_the_coefficients_bias_gets_a_zero_gradient():
    tensors = [q.float() for q in sample(2, 3, 8, 8)]
    gradient = results(global_training, tensors, [1e-5] * 4, "relu", STEPS, torch.float32)[6]
    assert torch.equal(gradient, torch.zeros(4, 3))


def test_nan_is_not_hidden():
    h, x, *others = (q.float() for q in sample(2, 3, 5, 8))
    h[1, 1, 2, 2] = float("nan")
    out, mean, _ = global_training(h, x, *others, [1e-5] * 4, **STEPS)
    assert out[:, 1].isnan().all()
    assert out[:, (0, 2)].isfinite().all()
    assert mean[:, 1].isnan().all()


@pytest.mark.parametrize("dtype, width, M", [(torch.float32, 8, 4), (torch.float32, 9, 2), (torch.float64, 8, 2)])
@pytest.mark.parametrize("other, has_source, previous", [(True, True, True), (False, True, False), (True, False, True)])
def test_opcheck(dtype, width, M, other, has_source, previous):
    h, x, *others = (q.to(dtype) for q in sample(2, 3, 6, width, M=M, other=other))
    roles = {"D": None if M == 4 else (1.0, 0.5), "has_source": has_source, "previous_is_input": previous}
    tail = ([1e-3] * M, *options(K=2, **roles))
    tensors = (h, x if other else None, *others)
    forward, backward = torch.ops.pdecnn.global_training.default, torch.ops.pdecnn.global_training_backward.default
    _, mean, var = forward(*tensors, *tail)
    leaves = [None if q is None else q.clone().requires_grad_() for q in tensors]
    torch.library.opcheck(forward, (*leaves, *tail))
    torch.library.opcheck(backward, (torch.ones_like(h), mean, var, *tensors, *tail))


def test_gradcheck_of_the_default():
    tensors = [q.requires_grad_() for q in sample(2, 2, 3, 4)]
    steps = {"K": 2, "dt": 0.02}
    assert torch.autograd.gradcheck(lambda *q: global_training(*q, [0.1] * 4, "identity", **steps)[0], tensors)


def test_double_backward_is_refused():
    h, *others = (q.float() for q in sample(2, 3, 4, 8))
    h.requires_grad_()
    (gradient,) = torch.autograd.grad(global_training(h, *others, [1e-5] * 4)[0].sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again by the fused kernel"):
        gradient.sum().backward()


def test_without_an_input_the_state_itself_came_before():
    h, _, *others = (q.float() for q in sample(2, 3, 4, 8))
    seen = []
    for previous_is_input in (False, True):
        arguments = (h, None, *others, [1e-3] * 4, *options(K=2, previous_is_input=previous_is_input))
        out, mean, var = torch.ops.pdecnn.global_training(*arguments)
        seen.append((out, *torch.ops.pdecnn.global_training_backward(h, mean, var, *arguments)))
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@needs_native
@pytest.mark.parametrize(
    "W, M, k, act", [(7, 4, 3, "relu"), (8, 2, 5, "tanh"), (28, 4, 5, "relu6"), (8, 4, 3, "identity")]
)
def test_usual_sizes_do_not_go_operator_by_operator(monkeypatch, W, M, k, act):
    for name in ("forward_default", "backward_default"):
        monkeypatch.setattr(training, name, None)
    tensors = [q.float() for q in sample(2, 3, 4, W, k, M=M)]
    chosen = STEPS | {"flow_sign": -1, "dt": 0.02, "D": None if M == 4 else (1.0, 0.5)}
    assert all(q.isfinite().all() for q in results(global_training, tensors, [1e-5] * M, act, chosen, torch.float32))


@needs_native
def test_sizes_that_the_kernel_does_not_solve_go_operator_by_operator(monkeypatch):
    calls, default = [], training.forward_default
    monkeypatch.setattr(training, "forward_default", lambda *args: calls.append(1) or default(*args))
    for k, chosen, solved in (
        (3, {}, True),
        (7, {}, False),
        (3, {"K": 10**4}, False),
        (3, {"boundary": "neumann"}, False),
    ):
        calls.clear()
        h, x, *others = (q.float() for q in sample(1, 1, 4, 9, k))
        global_training(h, x, *others, [1e-5] * 4, **{**STEPS, **chosen})
        assert solved == (not calls)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"act": "silu"}, r"global_training: coefficient_act must be one of 'identity', 'relu', .*, got 'silu'"),
        ({"eps": [1e-5]}, r"expected 4 eps, got 1"),
        ({"x": torch.ones(2, 3, 4, 4).double()}, r"float64 of shape \(2, 3, 4, 8\) on cpu, got .*\(2, 3, 4, 4\)"),
        ({"x": torch.ones(2, 3, 4, 8)}, r"expected x like h, torch.float64 .*, got torch.float32"),
        ({"dt": -1.0}, r"dt must be positive, got dt=-1.0"),
        ({"weight": torch.ones(4, 3, 2, 2)}, r"weight of shape \(maps, 3, k, k\), k odd, got \(4, 3, 2, 2\)"),
        ({"weight": torch.ones(3, 3, 3, 3)}, r"expected 2 stencils \(u, v\) or 4 .*, got 3"),
        ({"K": 0}, r"K \(number of time steps\) must be an int from 1 to 10,000, got K=0"),
        ({"boundary": "open"}, "boundary must be one of 'periodic', .* got 'open'"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    names = ("h", "x", "weight", "bias", "gamma", "beta")
    arguments = dict(zip(names, sample(2, 3, 4, 8), strict=True)) | {"eps": [1e-5] * 4} | change
    with pytest.raises(ValueError, match=message):
        global_training(**arguments)
