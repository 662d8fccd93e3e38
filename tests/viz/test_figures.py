"""The figures: every one is drawn from what ships, and what it shows is right."""

import pytest
import timm
import torch
from typer.testing import CliRunner

from pdecnn.cli import app
from pdecnn.layers import GlobalLayer
from pdecnn.viz.figures import FIGURES, cost, receptive_field, stability


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_from_what_ships(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["figure", name])
    assert result.exit_code == 0, result.output
    picture = (tmp_path / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_the_figures_are_listed_and_mistakes_named():
    listed = CliRunner().invoke(app, ["figure"])
    assert all(name in listed.output for name in FIGURES)
    wrong = CliRunner().invoke(app, ["figure", "toy"])
    assert wrong.exit_code == 2
    assert "receptive-field" in wrong.output


@pytest.mark.parametrize("K, reached", [(1, 5), (2, 13), (5, 61), (10, 221)])
def test_the_reach_of_k_steps_is_a_diamond(K, reached):
    """All places at most K moves away: 2 K (K + 1) + 1 of them. K = 5 is not global on 32x32."""
    field = receptive_field.theoretical(K)
    assert field.sum() == reached == 2 * K * (K + 1) + 1
    y, x = field.nonzero().T
    assert ((y - 16).abs() + (x - 16).abs()).max() == K


def test_the_measured_field_lies_within_the_reach():
    """Steps alone reach K; the convolutions of the coefficients add one pixel on each side, and diagonals of it."""
    torch.manual_seed(0)
    layer = GlobalLayer(4, K=3).eval()
    field = receptive_field.effective(layer, torch.randn(2, 4, 17, 17))
    y, x = (field > 0).nonzero().T
    distance = (y - 8).abs() + (x - 8).abs()
    assert 3 <= distance.max() <= 3 + 2
    assert field[8, 8] == field.max()


def test_unstable_points_are_those_that_the_layer_reports():
    torch.manual_seed(0)
    model = timm.create_model("cifar_resnet_tiny_global.cifar10", pretrained=True).eval()
    layer = next(m for m in model.modules() if isinstance(m, GlobalLayer))
    x = torch.randn(2, layer.channels, 8, 8)
    A_x, A_y, V = stability.courant_numbers(layer, x)
    report = layer.stability(x)
    assert (A_x + A_y).max().item() == pytest.approx(report.cfl, rel=1e-5)
    assert (V > 1).double().mean().item() == pytest.approx(report.von_neumann_fraction, rel=1e-5)


def test_costs_are_counted():
    c, n = 64, 32 * 32
    assert cost.macs("fully coupled", 64, 32, 3) == 9 * c * c * n
    assert cost.macs("LinearMix", 64, 32, 5) == n * (25 * c + c * c)
