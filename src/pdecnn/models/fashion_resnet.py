"""A small ResNet for grey images of 28x28 pixels: the teacher of the embedded example."""

from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from pdecnn.models._base import mnist_cfg
from pdecnn.models._weights import shipped
from pdecnn.models.cifar_resnet import ResNetConfig, create_resnet

FASHION_RESNET32 = ResNetConfig((8, 16, 32), 5)
FASHION = {**mnist_cfg(7), "mean": (0.2860,), "std": (0.3530,)}

default_cfgs = generate_default_cfgs(
    {
        "fashion_resnet32.untrained": FASHION,
        **shipped("fashion_resnet32.fashion_mini", FASHION),
    }
)


@register_model
def fashion_resnet32(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ResNet-32 of half the width, for one channel: 117,474 parameters."""
    return create_resnet("fashion_resnet32", FASHION_RESNET32, pretrained, **{"in_chans": 1, **kwargs})
