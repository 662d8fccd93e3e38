"""What `condense` makes of networks of timm and torchvision, as C: it agrees with the model, or is refused by name."""

import pytest
import timm
import torch
import torchvision
from c_cases import agrees, as_trained, weights_beside  # noqa: F401  (a fixture)

import pdecnn

REPLACEMENTS = ("nothing", "depthwise", "separable", "pde", "paper")
NETS = {
    "resnet18": lambda: torchvision.models.resnet18(num_classes=10),
    "mobilenet_v2": lambda: torchvision.models.mobilenet_v2(num_classes=10),
    "efficientnet_lite0": lambda: timm.create_model("efficientnet_lite0", num_classes=10),
    "densenet121": lambda: timm.create_model("densenet121", num_classes=10),
    "regnety_002": lambda: timm.create_model("regnety_002", num_classes=10),  # with squeeze and excitation
    "mobilenetv3_small_050": lambda: timm.create_model("mobilenetv3_small_050", num_classes=10),
}
QUICK = [("mobilenetv3_small_050", "paper")]


def check(name, replacement):
    torch.manual_seed(0)
    model = as_trained(NETS[name]())
    x = torch.randn(2, 3, 64, 64)
    return agrees(pdecnn.plan(model, x[:1], replacement=replacement).apply(model).eval(), x)


@pytest.mark.parametrize("name, replacement", QUICK)
def test_condensed_network_agrees(name, replacement):
    assert any(layer.name.startswith("global_layer") for layer in check(name, replacement).footprint.layers)


@pytest.mark.slow
@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize("name", NETS)
def test_every_condensed_network_agrees(name, replacement, weights_beside):  # noqa: F811
    check(name, replacement)
