"""Small networks of many tasks, each with repeated blocks; imported by a fresh process too."""

from collections.abc import Callable
from dataclasses import dataclass

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.segmentation import FCN, DeepLabV3
from torchvision.models.segmentation.deeplabv3 import DeepLabHead
from torchvision.models.segmentation.fcn import FCNHead
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Block(nn.Module):
    """A residual block in d dimensions."""

    def __init__(self, d: int, C_in: int, C: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = CONVS[d](C_in, C, 3, stride, 1, bias=False), NORMS[d](C)
        self.conv2, self.norm2 = CONVS[d](C, C, 3, 1, 1, bias=False), NORMS[d](C)
        same = C_in == C and stride == 1
        self.skip = nn.Identity() if same else CONVS[d](C_in, C, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.skip(x) + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


def stage(d: int, C_in: int, C: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(Block(d, C_in, C, stride), Block(d, C, C), Block(d, C, C))


class Signals(nn.Sequential):
    """A classifier of signals or volumes."""

    def __init__(self, d: int) -> None:
        pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[d - 1](1)
        super().__init__(CONVS[d](2, 8, 3, padding=1), stage(d, 8, 8), pool, nn.Flatten(), nn.Linear(8, 4))


class UNet(nn.Module):
    """Segmentation: one map of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle, self.up = stage(2, 3, 8), stage(2, 8, 16), stage(2, 24, 8)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(x)
        low = self.middle(functional.max_pool2d(h, 2))
        return self.head(self.up(torch.cat([h, functional.interpolate(low, scale_factor=2.0)], 1)))


class Body(nn.Module):
    """A backbone that gives two levels by name."""

    out_channels = 16

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.low, self.high = nn.Conv2d(3, 8, 3, 2, 1), stage(2, 8, 8), stage(2, 8, 16, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        aux = self.low(self.stem(x))
        return {"out": self.high(aux), "aux": aux}


class Pyramid(nn.Module):
    """The backbone with a feature pyramid, for a detector."""

    out_channels = 8

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fpn = Body(), FeaturePyramidNetwork([8, 16], 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        levels = self.body(x)
        return self.fpn({"0": levels["aux"], "1": levels["out"]})


@dataclass
class Panoptic:
    """What a network of two heads gives."""

    mask: Tensor
    boxes: list[Tensor]


class TwoInputs(nn.Module):
    """Takes two arguments, gives a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mask, self.box = Body(), nn.Conv2d(16, 2, 1), nn.Conv2d(8, 4, 1)

    def forward(self, image: Tensor, depth: Tensor) -> Panoptic:
        levels = self.body(image * depth)
        return Panoptic(self.mask(levels["out"]), [self.box(levels["aux"])])


def detector() -> nn.Module:
    """Faster R-CNN with few proposals and a small head."""
    anchors = AnchorGenerator(((16,), (32,)), ((0.5, 1.0),) * 2)
    pool = MultiScaleRoIAlign(["0", "1"], 3, 2)
    few = {"rpn_pre_nms_top_n_test": 20, "rpn_post_nms_top_n_test": 8, "rpn_pre_nms_top_n_train": 20}
    return FasterRCNN(
        Pyramid(), num_classes=None, min_size=48, max_size=64, rpn_anchor_generator=anchors, box_roi_pool=pool,
        box_head=TwoMLPHead(8 * 9, 16), box_predictor=Predictor(), rpn_post_nms_top_n_train=8, **few,
    )  # fmt: skip


class Predictor(nn.Module):
    """Scores and boxes of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.box = nn.Linear(16, 3), nn.Linear(16, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.score(x), self.box(x)


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "signal": lambda: Signals(1),
    "volume": lambda: Signals(3),
    "unet": UNet,
    "deeplab": lambda: DeepLabV3(Body(), DeepLabHead(16, 3, (2, 3)), FCNHead(8, 3)),
    "fcn": lambda: FCN(Body(), FCNHead(16, 3)),
    "features": lambda: timm.create_model(
        "resnet18", features_only=True, out_indices=(1, 2), channels=(8, 16, 16, 16), stem_width=8
    ),
    "two": TwoInputs,
    "detector": detector,
}


def make(name: str) -> nn.Module:
    """The network, with batch norms that have seen the data."""
    torch.manual_seed(0)
    model = MAKERS[name]()
    norms = [m for m in model.modules() if isinstance(m, tuple(NORMS.values()))]
    for norm in norms:
        norm.momentum = None
    model.train()
    if name == "detector":
        model.backbone(torch.stack([x[:, :48, :48] for x in inputs(name)]))
    elif name == "two":
        model(**inputs(name))
    else:
        model(inputs(name))
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()


def inputs(name: str, n: int = 6) -> "Tensor | list[Tensor] | dict[str, Tensor]":
    """A batch as the network takes it."""
    g = torch.Generator().manual_seed(1)
    shapes = {"signal": (2, 16), "volume": (2, 6, 8, 8), "features": (3, 32, 32)}
    if name == "detector":
        return [torch.rand(3, 48, 48 + 8 * (i % 2), generator=g) for i in range(n)]
    if name == "two":
        return {key: torch.rand(n, 3, 16, 16, generator=g) for key in ("depth", "image")}
    return torch.randn(n, *shapes.get(name, (3, 16, 24)), generator=g)
