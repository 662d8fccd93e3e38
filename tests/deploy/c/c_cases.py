"""Operators and networks to write in C, and how they are compared."""

import pytest
import timm
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from timm.models import model_entrypoint
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pdecnn  # noqa: F401  (registers the models)
from pdecnn.deploy.c.build import runner
from pdecnn.deploy.c.constants import Constants
from pdecnn.deploy.c.write import write
from pdecnn.deploy.check import compare
from pdecnn.layers import GlobalLayer

NAMES = [name for name in timm.list_models() if model_entrypoint(name).__module__.startswith("pdecnn.")]
PLAIN = ("-std=c99", "-O1", "-ffp-contract=off")
LARGE = 5000  # numbers in an array

FLAGS = ("-std=c99", "-O1", "-mavx2", "-ffp-contract=off", "-fsanitize=undefined", "-fno-sanitize-recover=all")
SETTINGS = settings(
    max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=[Phase.generate]
)


def as_trained(model):
    """The model in eval mode, with statistics that are not 0 and 1."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def agrees(model, x, flags=PLAIN):
    """Writes a file, compiles it, runs it and compares it with the model."""
    written = write(model, (x,), "net")
    with torch.no_grad():
        agreement = compare([model(x)], runner(written.source, flags=flags)([x]))
    assert agreement.max_error <= 1e-4
    assert agreement.top1 == 1.0
    return written


@pytest.fixture
def weights_beside(monkeypatch, tmp_path):
    """Large arrays lie in files beside the text, which the assembler puts in: compilers take minutes to read them."""
    in_text = Constants._add

    def add(self, kind, letter, flat, items):
        key = kind, flat.tobytes()
        if key in self._names or flat.size < LARGE:
            return in_text(self, kind, letter, flat, items)
        self._names[key] = name = f"{letter}{len(self._names)}"
        self.bytes += flat.nbytes
        file = tmp_path / name
        flat.tofile(file)
        self.definitions.append(
            f'extern const {kind} {name}[{flat.size}] __attribute__((visibility("hidden")));\n'
            f'__asm__(".section .rodata\\n.balign 64\\n.globl {name}\\n'
            f'{name}: .incbin \\"{file}\\"\\n.previous");'
        )
        return name

    monkeypatch.setattr(Constants, "_add", add)


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
