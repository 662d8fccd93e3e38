import math
import sys

import pytest
import torch
from torch import nn

from pdecnn.layers import ODEBlock
from pdecnn.layers.ode_block import TABLEAUS, runge_kutta


class Field(nn.Module):
    """`dh/dt = A h + t`, whose solution is known."""

    def __init__(self, D=3):
        super().__init__()
        g = torch.Generator().manual_seed(1)
        self.A = nn.Parameter(0.5 * torch.randn(D, D, generator=g, dtype=torch.float64))

    def forward(self, t, h):
        return h @ self.A.mT + t


def exact(A, h):
    """The augmented linear system (h, t, 1)' = M (h, t, 1), by its exponential."""
    D = A.shape[0]
    M = torch.zeros(D + 2, D + 2, dtype=A.dtype)
    M[:D, :D], M[:D, D], M[D, D + 1] = A, 1.0, 1.0
    state = torch.cat([h, torch.zeros(len(h), 1), torch.ones(len(h), 1)], 1).to(A.dtype)
    return (state @ torch.linalg.matrix_exp(M).mT)[:, :D]


@pytest.mark.parametrize("method, order", [("euler", 1), ("midpoint", 2), ("heun", 2), ("rk4", 4)])
def test_measured_order(method, order):
    field, h = Field(), torch.randn(2, 3, dtype=torch.float64)
    with torch.no_grad():
        errors = [(runge_kutta(field, h, n, method) - exact(field.A, h)).norm().item() for n in (16, 32)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("rows, weights", TABLEAUS.values(), ids=TABLEAUS)
def test_tableaus_are_consistent(rows, weights):
    assert sum(weights) == pytest.approx(1)
    assert [len(row) for row in rows] == list(range(len(weights)))


def gradients(block, h):
    h = h.clone().requires_grad_()
    out = block(h)
    return out.detach(), *torch.autograd.grad(out.square().sum(), [h, *block.parameters()])


def test_three_ways_to_the_gradient_of_the_continuous_problem():
    pytest.importorskip("torchdiffeq")
    h = torch.randn(2, 3, dtype=torch.float64)
    field = Field()
    A, h_leaf = field.A.detach().clone().requires_grad_(), h.clone().requires_grad_()
    out = exact(A, h_leaf)
    truth = (out.detach(), *torch.autograd.grad(out.square().sum(), [h_leaf, A]))
    tight = {"rtol": 1e-9, "atol": 1e-9, "method": "dopri5", "steps": None}
    blocks = [
        ODEBlock(field, gradient="direct", **tight),
        ODEBlock(field, gradient="adjoint", **tight),
        ODEBlock(field, gradient="anode", method="rk4", steps=100),
    ]
    for block in blocks:
        for a, b in zip(gradients(block, h), truth, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["euler", "midpoint"])
def test_anode_is_the_exact_gradient_of_the_steps_and_adjoint_is_not(method):
    pytest.importorskip("torchdiffeq")
    h, field = torch.randn(2, 3, dtype=torch.float64), Field()
    anode, direct, adjoint = (
        gradients(ODEBlock(field, gradient=gradient, method=method, steps=3), h)
        for gradient in ("anode", "direct", "adjoint")
    )
    for a, b in zip(anode, direct, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(adjoint[-1], direct[-1], rtol=1e-3)


def test_anode_stores_the_input_only_and_updates_batch_statistics_once():
    class BatchField(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(2)
            self.conv = nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, t, h):
            return self.conv(self.bn(h))

    torch.manual_seed(0)
    field, h = BatchField(), torch.randn(4, 2, 5, 5)
    reference = BatchField()
    reference.load_state_dict(field.state_dict())
    stored = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: stored.append(t.shape) or t, lambda t: t):
        out = ODEBlock(field, method="rk4", steps=5)(h.requires_grad_())
    assert len(stored) <= 1
    out.sum().backward()
    runge_kutta(reference, h.detach(), 5, "rk4").sum().backward()
    torch.testing.assert_close(field.bn.running_mean, reference.bn.running_mean)
    torch.testing.assert_close(field.conv.weight.grad, reference.conv.weight.grad)
    assert field.bn.momentum == 0.1


def test_evaluations_are_counted():
    block = ODEBlock(Field(), method="rk4", steps=3).eval()
    block(torch.zeros(1, 3, dtype=torch.float64))
    assert block.evaluations == 12
    assert "method='rk4', steps=3" in repr(block)


def test_mistakes_are_named(monkeypatch):
    with pytest.raises(ValueError, match="one of anode, direct, adjoint, got 'magic'"):
        ODEBlock(Field(), gradient="magic")
    with pytest.raises(ValueError, match="equal steps of one of euler, midpoint, heun, rk4, got method='dopri5'"):
        ODEBlock(Field(), method="dopri5")
    with pytest.raises(ValueError, match="at least 1, got steps=-1"):
        ODEBlock(Field(), gradient="direct", steps=-1)
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    block = ODEBlock(Field(), gradient="direct", method="dopri5", steps=None)
    with pytest.raises(ImportError, match=r'layers: needs torchdiffeq, .*Run: pip install "pdecnn\[ode\]"'):
        block(torch.zeros(1, 3, dtype=torch.float64))
