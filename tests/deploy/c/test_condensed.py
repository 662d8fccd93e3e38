"""What `condense` makes of networks of timm and torchvision, as C: it agrees with the model, or is refused by name."""

import pytest
import timm
import torch
import torchvision
from torch import nn

import pdecnn
from pdecnn.deploy.c.build import runner
from pdecnn.deploy.c.write import write
from pdecnn.deploy.check import compare

FLAGS = ("-std=c99", "-O1", "-ffp-contract=off")
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
    model = NETS[name]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    x = torch.randn(2, 3, 64, 64)
    small = pdecnn.plan(model, x[:1], replacement=replacement).apply(model).eval()
    written = write(small, (x,), "net")
    with torch.no_grad():
        agreement = compare([small(x)], runner(written.source, flags=FLAGS)([x]))
    assert agreement.max_error <= 1e-4
    return written


@pytest.mark.parametrize("name, replacement", QUICK)
def test_condensed_network_agrees(name, replacement):
    assert any(layer.name.startswith("global_layer") for layer in check(name, replacement).footprint.layers)


@pytest.mark.slow
@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize("name", NETS)
def test_every_condensed_network_agrees(name, replacement):
    check(name, replacement)
