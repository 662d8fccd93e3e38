"""Generated networks with planted runs, for the property tests."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn


class Residual(nn.Module):
    """A block with two convolutions and a skip where shapes allow it."""

    def __init__(self, a: int, b: int, stride: int, depthwise: bool, relu: bool) -> None:
        super().__init__()
        groups = b if depthwise else 1
        self.first = nn.Sequential(nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        self.second = nn.Conv2d(b, b, 3, stride, 1, groups=groups)
        self.skip = stride == 1 and a == b
        self.act = nn.ReLU() if relu else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.first(x))
        return self.act(h + x if self.skip else h)


class Listed(nn.Module):
    """Blocks in a ModuleList or ModuleDict, called in a loop."""

    def __init__(self, blocks: list[nn.Module], named: bool) -> None:
        super().__init__()
        named_blocks = OrderedDict((f"b{i}", b) for i, b in enumerate(blocks))
        self.blocks = nn.ModuleDict(named_blocks) if named else nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks.values() if isinstance(self.blocks, nn.ModuleDict) else self.blocks:
            x = block(x)
        return x


@dataclass(frozen=True)
class Stage:
    width: int
    depth: int
    stride: int
    container: str
    depthwise: bool
    relu: bool


stages = st.builds(
    Stage,
    width=st.integers(3, 9),
    depth=st.integers(1, 5),
    stride=st.sampled_from([1, 2]),
    container=st.sampled_from(["sequential", "list", "dict", "flat"]),
    depthwise=st.booleans(),
    relu=st.booleans(),
)
specs = st.lists(stages, min_size=1, max_size=4)


class Net(nn.Module):
    """A stem, stages of repeated blocks, a head. `planted` is what a plan has to find: {first block: number}."""

    def __init__(self, spec: list[Stage]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        layers: list[nn.Module] = []
        self.planted: dict[str, int] = {}
        a = 8
        for s in spec:
            blocks: list[nn.Module] = []
            for j in range(s.depth):
                blocks.append(Residual(a, s.width, s.stride if j == 0 else 1, s.depthwise, s.relu))
                a = s.width
            path = f"stages.{len(layers)}"
            if s.container == "flat":
                first = f"{path}"
                layers += blocks
            elif s.container == "sequential":
                first = f"{path}.0"
                layers.append(nn.Sequential(*blocks))
            else:
                first = f"{path}.blocks." + ("b0" if s.container == "dict" else "0")
                layers.append(Listed(blocks, s.container == "dict"))
            layers.append(nn.ZeroPad2d(1))  # another shape: what follows is another run
            if s.depth > 1:
                self.planted[first] = s.depth
        self.stages = nn.Sequential(*layers)
        self.head = nn.Linear(a, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


class Hidden(nn.Module):
    """A residual block whose hidden channels pass a norm, a depth-wise convolution and an activation."""

    def __init__(self, channels: int, hidden: int, kernel: int = 1, bias: bool = False) -> None:
        super().__init__()
        self.expand, self.norm = nn.Conv2d(channels, hidden, 1, bias=bias), nn.BatchNorm2d(hidden)
        self.spread = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.project = nn.Conv2d(hidden, channels, kernel, padding=kernel // 2, bias=bias)

    def forward(self, x):
        return x + self.project(torch.relu(self.spread(self.norm(self.expand(x)))))


def with_hidden(hidden: int = 24, kernel: int = 1, bias: bool = False, count: int = 2) -> nn.Module:
    """A classifier of such blocks."""
    torch.manual_seed(1)
    blocks = [Hidden(8, hidden, kernel, bias) for _ in range(count)]
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_()
            m.running_var.uniform_(0.5, 2)
    return model.eval()
