"""The three-field wave system: its equations, its energy, its walls, and the network and the penalty by recipe."""

import math

import pytest
import timm
import torch

from pdecnn.layers import WaveSystem
from pdecnn.training import Recipe, load_recipe, weight_variation
from pdecnn.training.objective import Classification


def test_a_standing_wave_has_the_predicted_frequency():
    """p = cos(k x) oscillates with 2 sin(w dt / 2) = c dt sin k, q staying zero at the crests and r everywhere."""
    side, mode, dt, K = 32, 3, 0.25, 40
    x = torch.arange(side, dtype=torch.float64)
    p = torch.cos(2 * math.pi * mode * x / side).expand(1, 1, side, side)
    out = WaveSystem(1, K=K, dt=dt, dtype=torch.float64)(torch.cat([p, 0 * p, 0 * p], 1))
    s = dt * math.sin(2 * math.pi * mode / side)
    omega = 2 * math.asin(s / 2)  # per step
    expected = math.cos(omega * (K - 0.5)) / math.cos(omega / 2)  # p' leads q by half a step
    torch.testing.assert_close(out[:, :1], p * expected, rtol=1e-9, atol=1e-9)
    assert out[:, 2].abs().max() < 1e-12


@pytest.mark.parametrize("boundary", ["periodic", "neumann"])
def test_the_energy_stays(boundary):
    torch.manual_seed(0)
    w = torch.randn(1, 6, 9, 8, dtype=torch.float64)
    layer = WaveSystem(2, K=500, dt=0.9, boundary=boundary, dtype=torch.float64)
    energy = layer(w).square().sum() / w.square().sum()
    assert 0.3 < energy < 3


def test_refusals():
    with pytest.raises(ValueError, match="boundary must be 'periodic' or 'neumann', got 'dirichlet'"):
        WaveSystem(2, boundary="dirichlet")
    with pytest.raises(ValueError, match="K must be at least 1 and dt positive, got K=0"):
        WaveSystem(2, K=0)
    with pytest.raises(ValueError, match=r"expected fields of shape \(N, 6, H, W\), got \(1, 4, 2, 2\)"):
        WaveSystem(2)(torch.zeros(1, 4, 2, 2))


def test_a_recipe_names_the_network_and_the_penalty():
    settings = load_recipe("quick/cifar10-wave")
    assert settings.loss.weight_variation == 1e-4
    model = timm.create_model(settings.model.name, **settings.model.kwargs)
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    heavy = settings.override(["loss.weight_variation=0.5"])
    plain = settings.override(["loss.weight_variation=0"])
    with torch.no_grad():
        losses = [Classification(r.loss, 10)(model, x, y)[0] for r in (heavy, plain)]
        torch.testing.assert_close(losses[0] - losses[1], 0.5 * weight_variation(model), rtol=1e-4, atol=1e-4)
    assert isinstance(heavy, Recipe)
