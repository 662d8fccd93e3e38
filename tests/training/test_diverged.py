import pytest
import timm
import torch
from torch import nn

import pdecnn  # noqa: F401  (registers the models)
from pdecnn.training.diverged import DivergedError, first_divergence


class Square(nn.Module):
    def forward(self, x):
        return x * x


def test_names_the_first_module_and_not_the_later_ones():
    model = nn.Sequential(nn.Linear(2, 2), Square(), Square(), Square())
    nn.init.constant_(model[0].weight, 1e15)
    with (
        pytest.raises(
            DivergedError, match=r"'2' \(Square\) is the first whose output is not finite.*largest input"
        ) as e,
        first_divergence(model),
    ):
        model(torch.ones(1, 2))
    assert e.value.module == "2"
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


def test_a_healthy_network_passes():
    model = timm.create_model("cifar_hyperbolic_eq3", zero_init_last=False)
    with first_divergence(model):
        model(torch.randn(2, 3, 16, 16, requires_grad=True)).sum().backward()


def test_a_hyperbolic_network_without_activations_that_blows_up():
    torch.manual_seed(0)
    model = timm.create_model("cifar_hyperbolic_cp", activation="none", zero_init_last=False).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.fill_(20.0)
    with (
        pytest.raises(DivergedError, match=r"'stages\.0\.2\.derive' \(Conv2d\) is not finite.*such as a product") as e,
        first_divergence(model),
    ):
        model(torch.randn(2, 3, 16, 16))
    assert e.value.module.startswith("stages.")


def test_gradients_are_watched():
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Root())
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
    with (
        pytest.raises(DivergedError, match=r"'2' \(Root\) is the first whose gradient is not finite: 0 NaN and 2 inf"),
        first_divergence(model),
    ):
        model(torch.ones(1, 2)).sum().backward()
    with first_divergence(model, gradients=False):
        model(torch.ones(1, 2)).sum().backward()


def test_inputs_and_parameters_are_named_too():
    model = nn.Sequential(nn.Linear(2, 2))
    with (
        pytest.raises(DivergedError, match=r"the input of '0' \(Linear\) is not finite: 1 NaN"),
        first_divergence(model),
    ):
        model(torch.tensor([[float("nan"), 1.0]]))
    model[0].weight.data[0, 0] = float("inf")
    first = r"the parameter '0\.weight' is not finite: 0 NaN and 1 inf"
    with pytest.raises(DivergedError, match=first), first_divergence(model):
        pass
