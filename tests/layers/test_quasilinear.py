"""The quasi-linear blocks against their equations, written out with plain sums over stencils and channels."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d

from pdecnn.layers import (
    CPBlock,
    Equation3,
    Equation4,
    Equation5,
    Equation6,
    Equation7,
    SharedDepthwiseExpand,
    lift,
)
from pdecnn.layers.quasilinear import QuasilinearBlock
from pdecnn.training.variation import weight_variation

EQUATIONS = [Equation3, Equation4, Equation5, Equation6, Equation7]
N, SIDE = 2, 6


def build(kind, n=4, m=None, stride=1, f=None, shared=True, seed=0, **options):
    torch.manual_seed(seed)
    options |= {} if kind is CPBlock else {"shared": shared}
    block = kind(n, m, f=f, stride=stride, dtype=torch.float64, **options)
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.weight.data.normal_(1, 0.3)
            module.bias.data.normal_()
    return block.eval()


def state(n=4, seed=1):
    return torch.randn(N, n, SIDE, SIDE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stencil(block, j, a):
    """The 3x3 weights of derivative a of channel j."""
    layer = block.derive if isinstance(block, Equation7) else block.expand
    return layer.weight[a if block.shared else j * block.f + a, 0]


def D(block, q, j, a, stride):
    """Derivative a of one field, with channel j's stencil."""
    return conv2d(q.unsqueeze(1), stencil(block, j, a)[None, None], stride=stride, padding=1).squeeze(1)


def normed(norm, k, q):
    mean, var = norm.running_mean[k], norm.running_var[k]
    return (q - mean) / torch.sqrt(var + norm.eps) * norm.weight[k] + norm.bias[k]


def matrix(conv):
    return conv.weight[:, :, 0, 0]


def by_hand(block, u):
    """The right-hand side by explicit sums, from the definition of each equation."""
    n, m, f, s = block.n, block.m, block.f, block.stride
    few = u[:, :, ::s, ::s]
    kind = type(block)
    C = matrix(block.coefficients)
    total = None
    out = [0.0] * m
    for j in range(n):
        for a in range(f):
            k = j * f + a
            if kind in (Equation3, Equation4, Equation5):
                d = normed(block.norm_expand, k, D(block, u[:, j], j, a, s))
            elif kind is Equation6:
                p = u[:, j] * torch.einsum("c,ncyx->nyx", C[j], u)
                d = normed(block.norm_expand, k, D(block, p, j, a, s))
            else:
                p = u[:, j] * torch.einsum("c,ncyx->nyx", C[k], u)
                d = normed(block.norm_expand, k, D(block, p, j, a, s))
            if kind in (Equation3, Equation5):
                d = d * torch.einsum("c,ncyx->nyx", C[k], few)
            if kind is Equation5:
                out[k * m // (f * n)] = out[k * m // (f * n)] + d
            else:
                A = matrix(block.mix)
                for i in range(m):
                    out[i] = out[i] + A[i, k] * d
    total = torch.stack(out, 1)
    if kind is Equation4:
        total = total * torch.einsum("mc,ncyx->nmyx", C, few)
    return total


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", EQUATIONS)
def test_blocks_compute_their_equation(kind, shared, stride):
    block = build(kind, 4, 8 if stride == 2 else None, stride, shared=shared)
    torch.testing.assert_close(block.rhs(state()), by_hand(block, state()), rtol=1e-10, atol=1e-10)


def conv_rows(conv, a, block):
    """The rows of derivative a."""
    return conv.weight[a * block.m : (a + 1) * block.m, :, 0, 0]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_equation_4_as_the_text_has_it(shared, stride):
    """`sum_a (C^a u)_i (sum_j A^a_ij D_a u_j)`: a matrix C for each derivative [LSB23, Eq. (4)]."""
    block = build(Equation4, 4, 8 if stride == 2 else None, stride, shared=shared, reading="text")
    u, expected = state(), 0.0
    for a in range(block.f):
        d = [normed(block.norm_expand, j * block.f + a, D(block, u[:, j], j, a, stride)) for j in range(block.n)]
        A, C = conv_rows(block.mix, a, block), conv_rows(block.coefficients, a, block)
        Cu = torch.einsum("mc,ncyx->nmyx", C, u[:, :, ::stride, ::stride])
        expected = expected + Cu * torch.einsum("mj,njyx->nmyx", A, torch.stack(d, 1))
    torch.testing.assert_close(block.rhs(u), expected, rtol=1e-10, atol=1e-10)


def test_equation_5_ends_in_a_norm_as_the_text_has_it():
    u = state()
    block = build(Equation5, reading="text")
    torch.testing.assert_close(block(u), block.norm(by_hand(block, u)) + u)
    assert isinstance(block.norm, nn.BatchNorm2d)
    assert isinstance(build(Equation5).norm, nn.Identity)
    block.zero_init_last()
    assert not block.norm.weight.any()


@pytest.mark.parametrize("kind", EQUATIONS)
def test_readings_are_named(kind):
    assert "reading='text'" in repr(kind(4, reading="text"))
    with pytest.raises(ValueError, match="reading must be one of 'counts', 'text', got 'code'"):
        kind(4, reading="code")


@pytest.mark.parametrize("kind", [*EQUATIONS, CPBlock])
def test_a_block_is_an_euler_step(kind):
    block = build(kind)
    u = state()
    torch.testing.assert_close(block(u), block.norm(block.rhs(u)) + u)
    wide = build(kind, 4, 8, 2)
    torch.testing.assert_close(wide(u), wide.norm(wide.rhs(u)) + wide.skip(u))
    assert wide(u).shape == (N, 8, SIDE // 2, SIDE // 2)
    wide.act = nn.ReLU()
    torch.testing.assert_close(wide(u), torch.relu(wide.norm(wide.rhs(u)) + wide.skip(u)))


@pytest.mark.parametrize("kind", [*EQUATIONS, CPBlock])
def test_a_zero_initialised_block_is_its_skip(kind):
    torch.manual_seed(0)
    block = kind(4, dtype=torch.float64)
    block.zero_init_last()
    assert torch.equal(block.train()(state()), state())


def test_the_cp_block_by_hand():
    block = build(CPBlock, f=2)
    u = state()
    ab = block.norm_factors(torch.einsum("oc,ncyx->noyx", matrix(block.factors), u))
    p = ab[:, :8] * ab[:, 8:]
    d = torch.stack(
        [conv2d(p[:, c // 2 : c // 2 + 1], block.derive.weight[c : c + 1], padding=1)[:, 0] for c in range(16)], 1
    )
    expected = torch.einsum("oc,ncyx->noyx", matrix(block.mix), block.norm_derive(d))
    torch.testing.assert_close(block.rhs(u), expected)


def test_the_rank_of_the_cp_block_falls_with_its_width():
    assert [CPBlock(n).f for n in (64, 128, 129, 256)] == [4, 4, 2, 2]


@pytest.mark.parametrize("kind", [Equation3, Equation5])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_fused_norm_is_a_batch_norm(kind, training, momentum):
    """Outputs, gradients and running statistics of two steps, with and without the fused product."""
    fused = build(kind, 4, 8, 2).train(training)
    fused.norm_expand.momentum = momentum
    plain = copy.deepcopy(fused)
    plain._product = lambda u, c: plain.norm_expand(plain.expand(u)) * c
    for seed in (3, 4):
        results = []
        for block in (fused, plain):
            u = state(seed=seed).requires_grad_()
            out = block(u)
            results.append((out, *torch.autograd.grad(out.square().sum(), (u, *block.parameters()))))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    for a, b in zip(fused.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_other_norms_take_the_plain_way():
    torch.manual_seed(0)
    expand, norm = SharedDepthwiseExpand(3, 2), nn.GroupNorm(1, 6)
    u, c = torch.randn(1, 3, 4, 4), torch.randn(1, 6, 4, 4)
    torch.testing.assert_close(expand.normed_product(u, norm, c), norm(expand(u)) * c)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 6), f=st.integers(1, 5), shared=st.booleans(), down=st.booleans(), seed=st.integers(0, 2**31))
def test_the_lift_is_the_same_function(n, f, shared, down, seed):
    block = build(Equation3, n, 2 * n if down else None, 2 if down else 1, f, shared, seed)
    u = state(n, seed)
    torch.testing.assert_close(lift(block)(u), block(u), rtol=1e-12, atol=1e-12)


def test_weight_variation_is_the_squared_difference_of_neighbours():
    torch.manual_seed(0)
    blocks = nn.Sequential(Equation3(3), Equation3(3), Equation3(3, 6, stride=2), Equation3(6))
    pairs = zip(blocks[0].parameters(), blocks[1].parameters(), strict=True)
    expected = sum((a - b).square().sum() for a, b in pairs if a.ndim > 1)
    torch.testing.assert_close(weight_variation(blocks), expected)
    blocks[1].load_state_dict(blocks[0].state_dict())
    assert weight_variation(blocks) == 0
    with pytest.raises(ValueError, match=r"no two neighbouring blocks \(QuasilinearBlock, WaveBlock\)"):
        weight_variation(nn.Sequential(Equation3(3), Equation3(3, 6, stride=2)))


def test_refusals():
    with pytest.raises(ValueError, match="Equation3: stride must be 1 or 2, got 3"):
        Equation3(4, 8, stride=3)
    with pytest.raises(ValueError, match=r"a block of stride 2 changes the channels; got n=m=4. Use m=8"):
        Equation3(4, stride=2)
    with pytest.raises(ValueError, match="n, m and f must be at least 1, got n=4, m=4, f=0"):
        Equation3(4, f=0)
    with pytest.raises(ValueError, match="f n = 12 products cannot be summed to m = 5 channels evenly"):
        Equation5(4, 5, f=3)
    with pytest.raises(ValueError, match="its stencils are independent; use shared=False"):
        CPBlock(4, shared=True)
    with pytest.raises(TypeError, match=r"only blocks of Equation \(3\) can be lifted, got Equation4"):
        lift(Equation4(4))
    with pytest.raises(ValueError, match=r"expected u of shape \(N, 4, H, W\), got \(1, 3, 2, 2\)"):
        SharedDepthwiseExpand(4)(torch.zeros(1, 3, 2, 2))
    with pytest.raises(ValueError, match=r"f \(number of stencils\) must be at least 1"):
        SharedDepthwiseExpand(4, 0)
    with pytest.raises(ValueError, match="SharedDepthwiseExpand: stride must be 1 or 2"):
        SharedDepthwiseExpand(4, stride=4)
    with pytest.raises(ValueError, match="training needs more than one value per channel, got 1"):
        Equation3(2)(torch.zeros(1, 2, 1, 1))
    assert issubclass(Equation3, QuasilinearBlock)
