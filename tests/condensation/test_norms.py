"""Batch norms keep their statistics in a distillation where those of the images would cost more than was lost."""

import copy

import pytest
import torch
import yaml
from torch import nn

import pdecnn
from pdecnn.condensation.norms import keep_statistics
from pdecnn.training.progress import Reporter

X = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(32) % 4


def teacher(shift: float) -> nn.Module:
    """A network whose statistics are off those of `X` by `shift`."""
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=1.0), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*parts, nn.Linear(8, 4))
    with torch.no_grad():
        model[5].weight.mul_(10)
        model.train()(X)
        model[1].running_mean.add_(shift)
    return model.eval()


def changed(model: nn.Module, by: float) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[5].bias.add_(torch.tensor([by, 0.0, 0.0, 0.0]))
    return other


def test_what_costs_more_decides():
    elsewhere, here = teacher(0.5), teacher(0.0)
    before = {k: v.clone() for k, v in elsewhere.state_dict().items()}
    assert keep_statistics(changed(elsewhere, 0.01), elsewhere, X)
    assert not keep_statistics(changed(elsewhere, 5.0), elsewhere, X)
    assert not keep_statistics(changed(here, 0.01), here, X)
    assert not keep_statistics(nn.Flatten(), nn.Flatten(), X)
    assert all(torch.equal(v, before[k]) for k, v in elsewhere.state_dict().items())
    assert not any(m.training for m in elsewhere.modules())


def statistics(model: nn.Module) -> torch.Tensor:
    return torch.cat([model[1].running_mean, model[1].running_var])


def test_a_distillation_does_so_unless_it_is_told_otherwise():
    model = teacher(0.5)
    for student, recipe, kept in (
        (changed(model, 0.01), None, True),
        (changed(model, 5.0), None, False),
        (changed(model, 0.01), {"frozen_norms": False}, False),
        (changed(model, 5.0), {"frozen_norms": True}, True),
    ):
        start, bias = statistics(student), student[5].bias.detach().clone()
        pdecnn.distill(student, model, [(X, Y)], epochs=1, recipe=recipe, reporter=Reporter())
        assert torch.equal(statistics(student), start) == kept
        assert not torch.equal(student[5].bias, bias)


def test_norms_that_keep_their_statistics_are_spared_long_steps(tmp_path):
    model = teacher(0.5)
    for name, by, found in (("kept", 0.01, ("adamw", 0.0001)), ("new", 5.0, ("sgd", 0.005))):
        pdecnn.distill(changed(model, by), model, [(X, Y)], epochs=1, run_dir=tmp_path / name, reporter=Reporter())
        optimizer = yaml.safe_load((tmp_path / name / "recipe.yaml").read_text())["optimizer"]
        assert (optimizer["name"], optimizer["lr"]) == (found[0], pytest.approx(found[1]))
