"""Optimisers of recipes."""

import pytest
import torch
from timm.optim import muon
from torch import nn

from pdecnn.training.optim import make_optimizer
from pdecnn.training.recipe import Recipe


def recipe(name):
    return Recipe.parse(
        {
            "model": {"name": "test_resnet"},
            "data": {"name": "mnist"},
            "epochs": 2,
            "optimizer": {"name": name, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
        }
    )


def test_muon_takes_an_orthogonal_step_in_float32():
    """The update is the orthogonal factor of the gradient, to more digits than bfloat16 has, up to one factor."""
    torch.manual_seed(0)
    net, usual = nn.Linear(12, 8, bias=False), muon.zeropower_via_newtonschulz
    optimizer = make_optimizer(net, recipe("muon"))
    before, net.weight.grad = net.weight.detach().clone(), torch.randn(8, 12)
    optimizer.step()
    step = (before - net.weight.detach()).double()
    left, _, right = torch.linalg.svd(net.weight.grad.double(), full_matrices=False)
    along = left.T @ step @ right.T  # diagonal, for the iteration changes singular values alone
    assert (along - along.diag().diag()).norm() < 1e-5 * along.norm()
    assert muon.zeropower_via_newtonschulz is usual


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_others_are_left_as_they_are(name):
    assert not make_optimizer(nn.Linear(3, 2), recipe(name))._optimizer_step_pre_hooks
