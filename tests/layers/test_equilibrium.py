import pytest
import torch
from torch import nn

from pdecnn.layers import Equilibrium
from pdecnn.models.mdeq import MultiscaleCell


class Contraction(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.linear = nn.Linear(D, D, dtype=torch.float64)

    def forward(self, z, x):
        return torch.tanh(0.6 * self.linear(z) + x)


class Damped(nn.Module):
    """A tenth of the multiscale cell: a contraction with its structure."""

    def __init__(self):
        super().__init__()
        self.cell = MultiscaleCell((4, 4), expansion=2, groups=2, dtype=torch.float64)

    def forward(self, z, x):
        return 0.1 * self.cell(z, x)


def unrolled(g, z, x, times):
    for _ in range(times):
        z = g(z, x)
    return z


def cases():
    torch.manual_seed(0)
    damped = Damped()
    for p in damped.parameters():
        torch.nn.init.normal_(p, std=0.5)
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    return {
        "perceptron": (Contraction(5), torch.zeros(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)),
        "multiscale": (damped, damped.cell.start(x), x),
    }


@pytest.mark.parametrize("case", ["perceptron", "multiscale"])
def test_gradient_of_the_implicit_function_is_that_of_the_unrolled_iteration(case):
    g, z0, x = cases()[case]
    x.requires_grad_()
    layer = Equilibrium(g, tol=1e-13, max_evaluations=100, max_backward_evaluations=100, ridge=1e-14)
    z = layer(z0, x)
    weight = torch.randn_like(z)
    inputs = [x, *g.parameters()]
    implicit = torch.autograd.grad((z * weight).sum(), inputs)
    z_unrolled = unrolled(g, z0, x, 300)
    explicit = torch.autograd.grad((z_unrolled * weight).sum(), inputs)
    torch.testing.assert_close(z, z_unrolled, rtol=1e-9, atol=1e-9)
    for a, b in zip(implicit, explicit, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)
    assert layer.residual < 1e-12
    assert layer.backward_residual < 1e-11
    one_step = torch.autograd.grad((g(z.detach(), x) * weight).sum(), inputs)
    assert not torch.allclose(one_step[0], explicit[0], rtol=1e-3)  # the backward solve matters


def test_nothing_is_solved_backwards_without_gradients():
    g, z0, x = cases()["perceptron"]
    layer = Equilibrium(g)
    with torch.no_grad():
        assert not layer(z0, x).requires_grad
    layer(z0, x)
    assert layer.backward_evaluations == 0
    assert layer.evaluations > 1
