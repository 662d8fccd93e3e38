"""Operators to write in C, with sizes and options that hypothesis chooses."""

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pdecnn.layers import GlobalLayer

FLAGS = ("-std=c99", "-O1", "-mavx2", "-ffp-contract=off", "-fsanitize=undefined", "-fno-sanitize-recover=all")
SETTINGS = settings(
    max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=[Phase.generate]
)


class Many(nn.Module):
    """Functions and modules of one input each, all in one file."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = parts
        self.modules_ = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))

    def forward(self, *inputs):
        return tuple(part(x) for part, x in zip(self.parts, inputs, strict=True))


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    C, out = groups * draw(st.integers(1, 6)), groups * draw(st.integers(1, 9))
    if draw(st.booleans()) and groups == 1:
        groups, out = C, C * draw(st.integers(1, 4))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    options = {
        "stride": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "padding": draw(st.tuples(st.integers(0, 4), st.integers(0, 4))),
        "dilation": draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "bias": draw(st.booleans()),
    }
    sizes = zip(options["dilation"], kernel, options["padding"], strict=True)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in sizes]
    H, W = (n + draw(st.integers(0, 20)) for n in least)
    return nn.Conv2d(C, out, kernel, groups=groups, **options), (C, H, W)


MOVES = [
    lambda x: x.permute(0, 2, 3, 1),
    lambda x: x.transpose(2, 3).reshape(len(x), -1),
    lambda x: x[:, 1:3],
    lambda x: x[:, :, ::2, 1:],
    lambda x: torch.cat([x, x[:, :1] * 2, x], 1),
    lambda x: torch.cat([x, x], -1),
    lambda x: torch.stack([x, -x], 2),
    lambda x: F.pad(x, (1, 2, 3, 0), value=0.5),
    lambda x: F.pad(x, (-1, 0, 0, -1)),
    lambda x: x.flip(-1),
    lambda x: x.flip((1, 2)),
    lambda x: x.roll((1, -2), (2, 3)),
    lambda x: x.chunk(2, 1)[1] * 2,
    lambda x: torch.cat([a * b for a, b in zip(x.split([1, 3], 1), x.split([1, 3], 1), strict=True)], 1),
    lambda x: F.pixel_shuffle(x, 2),
    lambda x: F.pixel_unshuffle(x[:, :, :4], 2),
    lambda x: x[:, [2, 0, 2]],
    lambda x: x.repeat(1, 2, 1, 3),
    lambda x: x[:, :, :1].expand(-1, -1, 5, -1) + 1,
    lambda x: x.unbind(1)[2],
    lambda x: F.pad(x, (1, 1, 2, 0), mode="replicate"),
    lambda x: F.pad(x, (1, 2, 2, 0), mode="circular"),
    lambda x: F.pad(x, (1, 2, 2, 0), mode="reflect"),
    lambda x: F.channel_shuffle(x, 2),
    lambda x: F.interpolate(x, scale_factor=2),
    lambda x: x.movedim(1, -1).flatten(1, 2).mT,
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    lambda x: F.interpolate(x, size=(3, 9), mode="bicubic"),
]


POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(3, 2, 1),
    nn.MaxPool2d(3, 1, 1, dilation=1),
    nn.MaxPool2d((2, 3), (1, 2), (1, 0)),
    nn.MaxPool2d(2, dilation=2, stride=1),
    nn.MaxPool2d(3, 2, ceil_mode=True),
    nn.AvgPool2d(2),
    nn.AvgPool2d(3, 2, 1),
    nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    nn.AvgPool2d(3, 2, ceil_mode=True),
    nn.AvgPool2d(2, divisor_override=3),
    nn.AdaptiveAvgPool2d(1),
    nn.AdaptiveAvgPool2d((2, 3)),
    nn.AdaptiveAvgPool2d(4),
    nn.AdaptiveMaxPool2d(1),
    nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
]


@st.composite
def global_layers(draw):
    boundary = draw(st.sampled_from(["periodic", "neumann", "dirichlet"]))
    options = {
        "K": draw(st.integers(1, 6)),
        "dt": draw(st.floats(0.05, 0.5)),
        "dx": draw(st.floats(0.5, 2)),
        "dy": draw(st.floats(0.5, 2)),
        "kernel_size": draw(st.sampled_from([1, 3, 5])),
        "boundary": boundary,
        "diffusion": draw(st.sampled_from(["depthwise", 0.3, (0.1, 0.4), "channel", "pointwise"])),
        "velocity": draw(st.sampled_from(["depthwise", "depthwise", "channel", "dot", 0.4])),
        "source": draw(st.sampled_from(["identity", "none", "residual"])),
        "h_prev": draw(st.sampled_from(["init", "input"])),
        "act_layer": draw(st.sampled_from([nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Identity])),
        "residual": draw(st.booleans()),
        "flow_sign": draw(st.sampled_from([1, -1])),
        "coef_bias": draw(st.booleans()),
        "upwind": draw(st.booleans()),
        "velocity_bound": draw(st.sampled_from([False, 0.7])),
        "dilation": draw(st.sampled_from([1, 1, 2])) if boundary == "periodic" else 1,
    }
    C = draw(st.integers(1, 4))
    options["init"] = nn.Conv2d(C, C, 3, padding=1) if draw(st.booleans()) else None
    layer = GlobalLayer(C, **options).eval()
    with torch.no_grad():
        for module in layer.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.2, 0.5)
    if options["dilation"] == 1:
        return layer, (C, draw(st.integers(1, 9)), draw(st.integers(1, 12)))
    return layer, (C, 2 * draw(st.integers(1, 4)), 2 * draw(st.integers(1, 5)))
