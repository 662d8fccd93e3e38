"""ODE blocks with equal steps, for export."""

import pytest
import timm
import torch
from torch import nn

from pdecnn.deploy import fix_steps, lower
from pdecnn.layers.ode_block import ODEBlock


class Decay(nn.Module):
    def forward(self, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return -h


def adaptive() -> nn.Module:
    return nn.Sequential(ODEBlock(Decay(), gradient="direct", method="dopri5", steps=None))


@pytest.mark.parametrize("method, order", [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_equal_steps_solve_the_same_equation_to_their_order(method, order):
    x = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    errors = [(fix_steps(adaptive(), n, method)(x) - torch.exp(-x)).abs().max().item() for n in (8, 16)]
    assert errors[0] / errors[1] == pytest.approx(2**order, rel=0.15)


def test_the_model_given_is_not_changed_and_the_copy_can_be_lowered():
    net = adaptive()
    twin = fix_steps(net, 8)
    assert (net[0].gradient, net[0].steps) == ("direct", None)
    x = torch.rand(2, 1, 4, 4)
    torch.testing.assert_close(lower(twin, x)(x), torch.exp(torch.tensor(-1.0)) * x, rtol=1e-4, atol=1e-5)


def test_parameters_are_kept():
    net = timm.create_model("mnist_odenet")
    twin = fix_steps(net, 4).state_dict()
    assert all(torch.equal(q, twin[name]) for name, q in net.state_dict().items())


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="steps must be an int of at least 1, got 0"):
        fix_steps(adaptive(), 0)
    with pytest.raises(ValueError, match="method must be one of euler, midpoint, heun, rk4, got 'dopri5'"):
        fix_steps(adaptive(), 4, "dopri5")
    with pytest.raises(ValueError, match="Sequential has no ODE block with an adaptive solver"):
        fix_steps(nn.Sequential(), 4)
