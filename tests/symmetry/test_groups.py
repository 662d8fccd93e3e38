import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.symmetry import Group

GROUPS = list(Group)
sizes = st.integers(1, 8)
seeds = st.integers(0, 2**31)


def element(group, n, seed):
    return group.sample(n, torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(group=st.sampled_from(GROUPS), n=sizes, seed=seeds)
def test_products_and_inverses_stay_in_the_group(group, n, seed):
    a, b = element(group, n, seed), element(group, n, seed + 1)
    assert group.contains(a)
    assert group.contains(a @ b)
    assert group.contains(torch.linalg.inv(a))


@settings(max_examples=60, deadline=None)
@given(group=st.sampled_from(GROUPS), other=st.sampled_from(GROUPS), n=sizes, seed=seeds)
def test_the_intersection_lies_in_both(group, other, n, seed):
    T = element(group & other, n, seed)
    assert group.contains(T)
    assert other.contains(T)
    assert (group & other) <= group
    assert (group & other) is (other & group)


@settings(max_examples=60, deadline=None)
@given(group=st.sampled_from(GROUPS), n=sizes, seed=seeds)
def test_projection_is_onto_and_fixes_the_group(group, n, seed):
    M = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert group.contains(group.project(M), 1e-9)
    T = element(group, n, seed)
    torch.testing.assert_close(group.project(T), T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("group", [Group.PERMUTATION, Group.SIGNED_PERMUTATION])
def test_projection_is_the_nearest_of_all_elements(group):
    M = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    signs = [(1.0,) * 4] if group is Group.PERMUTATION else list(itertools.product((1.0, -1.0), repeat=4))
    eye = torch.eye(4, dtype=torch.float64)
    everyone = [torch.tensor(s)[:, None] * eye[list(p)] for p in itertools.permutations(range(4)) for s in signs]
    nearest = min((M - T).norm().item() for T in everyone)
    assert (M - group.project(M)).norm().item() == pytest.approx(nearest, abs=1e-12)


def test_samples_of_the_orthogonal_group_are_uniform():
    generator = torch.Generator().manual_seed(0)
    mean = torch.stack([Group.O.sample(3, generator) for _ in range(4000)]).mean(0)
    assert mean.abs().max() < 0.04  # the mean of a uniform rotation is zero; 0.58 / sqrt(4000) each


@pytest.mark.parametrize("group", [Group.GL, Group.O, Group.MONOMIAL, Group.POSITIVE_MONOMIAL])
def test_descent_stays_in_the_group(group):
    start = element(group, 5, 3)
    free = group.parametrise(start)
    torch.testing.assert_close(free().detach(), start, rtol=0, atol=1e-12)
    target = element(group, 5, 4)
    optimizer = torch.optim.Adam(free.parameters(), lr=0.05)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (free() - target).square().sum()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert group.contains(free().detach(), 1e-9)
    assert losses[-1] < losses[0]


def test_generic_zeros_and_dimensions():
    assert [g.dimension(12) for g in (Group.GL, Group.O, Group.POSITIVE_MONOMIAL, Group.PERMUTATION)] == [
        144,
        66,
        12,
        0,
    ]
    assert Group.O.generic_zeros(12) == 66
    assert Group.GL.generic_zeros(8) == 56
    full = [Group.O.generic_zeros(n) for n in (128, 256, 512)]
    assert sum(full) == 171_584
    assert sum(Group.GL.generic_zeros(n) for n in (128, 256, 512)) == 343_168


@pytest.mark.parametrize(
    "group, T, reason",
    [
        (Group.O, [[1.0, 1.0], [0.0, 1.0]], r"T\^T T differs from the identity by 1.0e\+00"),
        (Group.PERMUTATION, [[-1.0, 0.0], [0.0, 1.0]], "negative entry, -1"),
        (Group.MONOMIAL, [[1.0, 1.0], [0.0, 1.0]], "more than one entry"),
        (Group.GL, [[1.0, 1.0], [1.0, 1.0]], "singular"),
        (Group.GL, [[float("nan"), 0.0], [0.0, 1.0]], "not finite"),
        (Group.TRIVIAL, [[2.0, 0.0], [0.0, 1.0]], r"differs from the identity by 1.0e\+00"),
        (Group.O, [[1.0, 0.0]], r"shape \(1, 2\) is not square"),
    ],
)
def test_says_why_a_matrix_is_outside(group, T, reason):
    import re

    assert re.search(reason, group.violation(torch.tensor(T, dtype=torch.float64)))


def test_parametrise_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match=r"permutations\(3\) is finite; use sample or project"):
        Group.PERMUTATION.parametrise(torch.eye(3))
    with pytest.raises(ValueError, match=r"start is not in O\(2\)"):
        Group.O.parametrise(2 * torch.eye(2))


def test_a_missing_extra_is_named(monkeypatch):
    import importlib

    from pdecnn.symmetry import _extras

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r'symmetry: needs scipy.optimize, .*Run: pip install "pdecnn\[symmetry\]"'):
        _extras.assignment(torch.eye(2))
