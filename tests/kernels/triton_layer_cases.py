"""The Triton Global layer against plain torch under Triton's interpreter; `test_triton_layer.py` runs it."""

import os
from itertools import product

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("triton_layer_cases.py needs TRITON_INTERPRET=1 in the environment.")

from pdecnn.kernels.global_layer import op, triton

BOUNDARIES = ("periodic", "neumann", "dirichlet")
ACTS = ("identity", "relu", "relu6", "tanh", "hardtanh")
CASES = list(enumerate((*product(BOUNDARIES, (1, 3), (2, 4)), ("periodic", 5, 4))))


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
