import time

import pytest
import torch
from symmetry_networks import images, network, planted

from pdecnn.symmetry import Group, sparsify, symmetry_of, verify
from pdecnn.symmetry.matrices import stream_matrices
from pdecnn.symmetry.sparsify import closed_form


def zeros(net):
    return sum(int((m.weight == 0).sum()) for m in stream_matrices(net))


def test_finds_planted_zeros_again():
    """A 72 % sparse network, hidden by a random change of basis: at least 65 % are found, at no loss."""
    sparse, hidden = planted()
    assert zeros(sparse) > 0.71 * 2356
    assert zeros(hidden) < 0.05 * 2356  # rows that were all zero stay so
    start = time.perf_counter()
    found = sparsify(hidden, steps=600, x=images())
    assert time.perf_counter() - start < 60
    assert found.weights == 2356
    assert found.zeros_before < 0.1 * found.weights
    assert found.zeros_after >= 0.65 * found.weights
    assert found.transform_error < 1e-12
    assert found.exact_zeros >= 0.65 * found.weights
    assert zeros(found.model) == found.exact_zeros
    assert found.error < 1e-12
    assert verify(sparse, found.model, images()) < 1e-12
    assert "generic bound 122" in str(found)


@pytest.mark.parametrize("activation, bound", [("softball", 122), ("none", 188)])
def test_random_weights_stay_within_the_bound_and_chance(activation, bound):
    net = network("cp", activation)
    found = sparsify(net, steps=400, x=images())
    assert found.bound == bound
    assert found.zeros_before < 20
    assert 0.6 * bound < found.zeros_after <= bound + 25  # small by chance: about 1e-3 of 2356, times a small factor
    assert 0.5 * bound < found.exact_zeros <= bound
    assert found.transform_error < 1e-12
    assert found.error < 1e-12
    assert verify(net, found.model, images()) < 1e-12
    assert found.condition < 100


@pytest.mark.parametrize("activation, bound", [("softball", 56 + 66), ("none", 56 + 132)])
def test_the_closed_form_reaches_the_bound_exactly(activation, bound):
    net = network("cp", activation)
    found = sparsify(net, steps=0, start="closed_form", polished=False, x=images())
    assert found.exact_zeros == bound
    assert found.error < 1e-11


def test_the_closed_form_is_a_triangle_or_an_identity():
    net = network("cp", "softball")
    matrices, symmetry = stream_matrices(net), symmetry_of(net)
    T = closed_form(matrices, symmetry)
    assert symmetry[1].group is Group.GL
    blocks = [T[1] @ m.weight[:, i : i + 8] for m in matrices if m.writes == 1 for i in (0, 8)]
    eye = torch.eye(8, dtype=torch.float64)
    assert min((block - eye).abs().max().item() for block in blocks) < 1e-12
    writers = [m.weight for m in matrices if m.writes == 2]
    blocks = [T[2] @ W[:, i : i + 12] for W in writers for i in range(0, W.shape[1] - 11, 12)]
    assert min(block.tril(-1).abs().max().item() for block in blocks) < 1e-12


def test_refusals():
    with pytest.raises(ValueError, match=r"no stage has a symmetry that can create zeros.*stage 1: monomial\(8\)"):
        sparsify(network("eq3"))
    with pytest.raises(ValueError, match="start must be 'identity' or 'closed_form', got 'svd'"):
        sparsify(network(), start="svd")
