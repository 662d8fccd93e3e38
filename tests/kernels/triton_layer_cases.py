"""The Triton Global layer against plain torch under Triton's interpreter; `test_triton_layer.py` runs it."""

import os
from itertools import product

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("triton_layer_cases.py needs TRITON_INTERPRET=1 in the environment.")

from norm_cases import FORMATS
from training_cases import STEPS, away_from_kinks, compare, global_training, results, sample

from pdecnn.kernels.global_layer import op, training, triton, triton_training
from pdecnn.kernels.library import LIBRARY

BOUNDARIES = ("periodic", "neumann", "dirichlet")
ACTS = ("identity", "relu", "relu6", "tanh", "hardtanh")
CASES = list(enumerate((*product(BOUNDARIES, (1, 3), (2, 4)), ("periodic", 5, 4))))
# act, side, learned D, another input, source, previous is input, boundary, shape, taken tile by tile
TRAINING = (
    ("relu", 3, True, True, True, False, "periodic", (2, 1, 3, 4), False),
    ("relu", 3, True, False, True, True, "periodic", (1, 1, 2, 5), True),
    ("relu6", 3, False, True, True, True, "periodic", (2, 1, 5, 3), False),
    ("relu", 3, False, True, False, True, "neumann", (1, 2, 3, 2), False),
    ("tanh", 3, True, True, True, False, "dirichlet", (1, 1, 3, 3), False),
    ("hardtanh", 5, False, False, False, False, "periodic", (1, 1, 2, 7), False),
    ("identity", 1, True, True, False, False, "neumann", (1, 2, 3, 1), False),
)

LIBRARY.impl("global_training", triton_training.forward, "CPU")
LIBRARY.impl("global_training_backward", triton_training.backward, "CPU")


@pytest.fixture(autouse=True, scope="module")
def _uninitialised_memory_is_nan():
    """Fills `torch.empty` with NaN, so that unwritten outputs and scratch are seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("i, case", CASES, ids=str)
def test_it_is_the_layer_operator_by_operator(i, case, monkeypatch):
    boundary, side, maps = case
    shape = ((2, 2, 3, 4), (1, 2, 1, 7), (1, 1, 4, 1), (1, 1, 3, 9))[i % 4]
    if i % 4 == 3:
        monkeypatch.setattr(triton.solver, "TILE_ELEMENTS", 8)  # planes of several tiles
    C = shape[1]
    order = (torch.contiguous_format, torch.channels_last)[i // 2 % 2]
    h, x = (randn(*shape, seed=s).contiguous(memory_format=order) for s in (0, 1))
    parameters = (
        0.4 * randn(maps, C, side, side, seed=2),
        0.3 * randn(maps, C, seed=3),
        randn(C, seed=4),
        randn(C, seed=5),
    )
    steps = (0.5, 0.7, 1 + i % 2, 0.1, 1.0, 1.2, boundary, (1, -1)[i // 3 % 2], i % 3 > 0, i % 2 == 0, ACTS[1:4][i % 3])
    arguments = (h, x, *parameters, i % 2 == 1, ACTS[i % 5], *steps)
    out = triton.global_layer(*arguments)
    torch.testing.assert_close(out, op.default(*arguments), rtol=1e-4, atol=1e-4)
    assert out.stride() == torch.empty_like(h).stride()


def test_an_empty_batch_and_what_goes_operator_by_operator():
    parameters = (randn(2, 3, 3, 3), randn(2, 3), randn(3), randn(3))
    steps = (0.5, 0.7, 2, 0.1, 1.0, 1.0, "periodic", 1, True, False, "relu")
    empty = torch.empty(0, 3, 4, 4)
    assert triton.global_layer(empty, empty, *parameters, False, "relu", *steps).shape == (0, 3, 4, 4)
    double = [q.double() for q in (randn(1, 3, 4, 4), randn(1, 3, 4, 4), *parameters)]
    arguments = (*double, False, "relu", *steps)
    torch.testing.assert_close(triton.global_layer(*arguments), op.default(*arguments))


@pytest.fixture
def no_default(monkeypatch):
    """Nothing goes operator by operator."""
    for name in ("forward_default", "backward_default"):
        monkeypatch.setattr(training, name, None)


@pytest.mark.parametrize("i, case", list(enumerate(TRAINING)), ids=str)
def test_in_training_values_statistics_and_gradients_are_those_of_the_modules(i, case, monkeypatch, no_default):
    act, side, is_learned, other, has_source, previous_is_input, boundary, shape, in_tiles = case
    if in_tiles:
        monkeypatch.setattr(triton.solver, "TILE_ELEMENTS", 8)
    eps = [0.5, 0.1, 0.2, 0.4][: 4 if is_learned else 2]
    tensors = sample(*shape, side, M=len(eps), other=other, bias=i % 3 > 0, seed=i)
    for q in tensors[4:]:
        q *= {"relu6": 20.0, "hardtanh": 4.0}.get(act, 1.0)  # some coefficients beyond the upper bound
    assert away_from_kinks(tensors, eps, act)
    roles = {"has_source": has_source, "previous_is_input": previous_is_input, "boundary": boundary}
    roles |= {"D": None if is_learned else (1.0, 0.5), "flow_sign": (1, -1)[i % 2]}
    steps = STEPS | {"K": 2 - i % 2, "dt": 0.2 if act == "relu" else 0.02}
    out = compare(tensors, eps, act, steps | roles, FORMATS[i % 2])[0]
    assert out.is_contiguous(memory_format=FORMATS[i % 2])


def test_in_training_a_large_mean_does_not_spoil_the_variance(no_default):
    h, *others = sample(2, 1, 3, 4, M=2)
    # exact in float32: what is lost would be lost by the sums
    tensors = [h.mul(16).round().div(16) + 4096, *others]
    tensors[2] = torch.zeros_like(tensors[2])
    tensors[2][:, :, 1, 1] = 1.0
    leaves = [q.float() for q in tensors]
    _, mean, var = global_training(*leaves, [0.5] * 2, "identity", **STEPS, D=(1.0, 0.5))
    exact = torch.var_mean(tensors[0], (0, 2, 3), correction=0)
    torch.testing.assert_close(var[0].double(), exact[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(mean[0].double() - tensors[3][0], exact[1], rtol=1e-6, atol=0)


def test_in_training_another_side_or_type_goes_operator_by_operator(monkeypatch):
    called = []
    for name in ("forward_default", "backward_default"):
        default = getattr(training, name)
        monkeypatch.setattr(training, name, lambda *q, f=default: called.append(1) or f(*q))
    for side, dtype in ((7, torch.float32), (3, torch.float64)):
        called.clear()
        tensors = sample(1, 1, 2, 3, side, M=2)
        results(global_training, tensors, [0.1] * 2, "relu", STEPS | {"D": (1.0, 0.5)}, dtype)
        assert len(called) == 2
