"""The full tensor of coefficients against its definition, its block-diagonal form, and the group that acts on it."""

import pytest
import torch
from symmetry_networks import images, network
from torch import nn

from pdecnn.layers import Equation3, TensorBlock
from pdecnn.symmetry import Group, sparsify, symmetry_of, transform, verify


def by_hand(block, u):
    """`sum_a sum_jk A^a_ijk u_k D_a u_j`, term by term."""
    d = block.expand(u)  # channel j f + a
    few = u[:, :, :: block.stride, :: block.stride]
    n, m, f, g = block.n // block.groups, block.m // block.groups, block.f, block.groups
    out = torch.zeros(len(u), block.m, *d.shape[2:], dtype=u.dtype)
    A = block.mix.weight.view(block.m, n, f, n)
    for i in range(block.m):
        part = i // m  # the diagonal block
        assert part < g
        for j in range(n):
            for a in range(f):
                for k in range(n):
                    out[:, i] += A[i, j, a, k] * d[:, (part * n + j) * f + a] * few[:, part * n + k]
    return out


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_it_is_the_equation(groups, shared, stride):
    torch.manual_seed(0)
    m = 8 if stride == 2 else None
    block = TensorBlock(4, m, groups=groups, shared=shared, stride=stride, f=3, dtype=torch.float64)
    u = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(block.rhs(u), by_hand(block, u), rtol=1e-12, atol=1e-12)
    assert block.mix.weight.numel() == 3 * block.m * 16 // groups**2


def test_equation_3_is_a_tensor_of_rank_one_slices():
    """`A_ijk = sum_a A^a_ij C^a_jk`: the factored block, put into a full tensor, is the same function."""
    torch.manual_seed(0)
    factored = Equation3(4, f=2, dtype=torch.float64).eval()
    factored.norm_expand = nn.Identity()
    factored._product = lambda u, c: factored.expand(u) * c
    full = TensorBlock(4, f=2, dtype=torch.float64)
    full.expand = factored.expand
    A = factored.mix.weight.view(4, 4, 2)  # i, j, a
    C = factored.coefficients.weight.view(4, 2, 4)  # j, a, k
    full.mix.weight.data = torch.einsum("ija,jak->ijak", A, C).reshape(4, 32, 1, 1)
    u = torch.randn(1, 4, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(full.rhs(u), factored.rhs(u))


@pytest.mark.parametrize("activation, second", [("none", Group.GL), ("softball", Group.O)])
def test_the_full_group_acts(activation, second):
    net = network("tensor", activation)
    assert [s.group for s in symmetry_of(net).values()] == [Group.GL, second]
    generator = torch.Generator().manual_seed(0)
    T = {s: q.group.sample(q.width, generator, 0.5) for s, q in symmetry_of(net).items()}
    assert verify(net, transform(net, T), images()) < 1e-12


def test_own_stencils_and_diagonal_blocks_narrow_the_group():
    unshared = network("tensor", "none", shared=False)
    assert {s.group for s in symmetry_of(unshared).values()} == {Group.MONOMIAL}
    T = {s: q.group.sample(q.width, None, 0.5) for s, q in symmetry_of(unshared).items()}
    assert verify(unshared, transform(unshared, T), images()) < 1e-12
    parted = network("tensor", "none", groups=2)
    assert {s.group for s in symmetry_of(parted).values()} == {Group.TRIVIAL}
    assert "block-diagonal" in symmetry_of(parted)[1].reason
    T = {s: q.group.sample(q.width, None, 0.5) for s, q in symmetry_of(parted).items()}
    assert verify(parted, transform(parted, T), images()) < 1e-12
    with pytest.raises(ValueError, match="a tensor of 2 diagonal blocks is not transformed"):
        TensorBlock(4, groups=2).change_input(2 * torch.eye(4))
    with pytest.raises(ValueError, match="a full tensor reads its stream twice"):
        sparsify(network("tensor", "none"))
    with pytest.raises(ValueError, match="groups must divide n and m, got groups=3, n=4, m=4"):
        TensorBlock(4, groups=3)
