import itertools

import pytest
import torch
from symmetry_networks import images, network

from pdecnn.symmetry import Group, align, average, procrustes, random_transforms, transform, verify

ACTIVATIONS = ["none", "softball", "relu", "hardtanh"]  # GL, O, positive monomial, signed permutations


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_turned_copy_is_brought_back(activation):
    a = network("cp", activation)
    b = transform(a, random_transforms(a, torch.Generator().manual_seed(3)))
    found = align(a, b, images())
    assert min(found.distance_before.values()) > 0.3
    assert max(found.distance_after.values()) < 1e-10
    assert verify(b, found.model, images()) < 1e-12
    assert verify(a, average(a, b), images(5)) > 1e-2
    assert verify(a, average(a, found.model), images(5)) < 1e-9


def test_two_networks_come_nearer():
    a, b = network(seed=0), network(seed=1)
    found = align(a, b, images())
    for stage in (1, 2):
        assert found.distance_after[stage] < found.distance_before[stage]
    assert verify(b, found.model, images()) < 1e-12


def features(seed):
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("group", [Group.O, Group.GL, Group.POSITIVE_MONOMIAL, Group.SIGNED_PERMUTATION])
def test_procrustes_is_the_best_of_the_group(group):
    A, B = features(0), features(1)
    best = (A - B @ procrustes(A, B, group).mT).norm()
    generator = torch.Generator().manual_seed(2)
    assert all((A - B @ group.sample(4, generator).mT).norm() >= best for _ in range(300))


def test_procrustes_of_permutations_against_all_of_them():
    A, B = features(0), features(1)
    eye = torch.eye(4, dtype=torch.float64)
    best = min((A - B @ eye[list(p)].mT).norm() for p in itertools.permutations(range(4)))
    assert (A - B @ procrustes(A, B, Group.PERMUTATION).mT).norm() == pytest.approx(best)


def test_refusals():
    with pytest.raises(ValueError, match="differ in the widths of their stages"):
        align(network("cp"), network("eq5"), images())
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\], got 2"):
        average(network(), network(), 2)
    with pytest.raises(ValueError, match="differ in their weights' names or shapes"):
        average(network("cp"), network("eq3"))
