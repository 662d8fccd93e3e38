"""Pooling over windows."""

from collections.abc import Sequence
from typing import Any

import torch

from pdecnn.deploy.c.registry import Code, Step, emits, shape

_ATEN = torch.ops.aten


def _two(values: Sequence[int] | int, missing: Sequence[int] | None = None) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    given = given or list(missing or ())
    return given * 2 if len(given) == 1 else given


def maps(x: Any) -> tuple[int, int, int]:
    """The number of maps of a node's value, and their height and width."""
    *others, H, W = shape(x)
    return int(torch.Size(others).numel()), H, W


def windows(step: Step, x: Any) -> tuple[int, ...]:
    """What the C asks of pooling: maps, sizes of input and output, of windows, steps and padding."""
    a = step.arguments()
    C, H, W = maps(x)
    ky, kx = _two(a["kernel_size"])
    return (C, H, W, *shape(step.node)[-2:], ky, kx, *_two(a["stride"], (ky, kx)), *_two(a["padding"]))


@emits(_ATEN.max_pool2d_with_indices.default, _ATEN.max_pool2d.default)
def max_pool(step: Step) -> Code:
    """The largest of each window; what lies beyond the border does not count."""
    a = step.arguments()
    sizes = windows(step, a["self"])
    return Code(f"max_pool(y, {step.read(a['self'])}, {', '.join(map(str, (*sizes, *_two(a['dilation']))))});")


@emits(_ATEN.avg_pool2d.default)
def avg_pool(step: Step) -> Code:
    """The mean of each window, with or without the padding in the count."""
    a = step.arguments()
    sizes, options = windows(step, a["self"]), (int(a["count_include_pad"]), a["divisor_override"] or 0)
    return Code(f"avg_pool(y, {step.read(a['self'])}, {', '.join(map(str, (*sizes, *options)))});")


@emits(_ATEN._adaptive_avg_pool2d.default, _ATEN.adaptive_avg_pool2d.default)
def adaptive_avg_pool(step: Step) -> Code:
    """The means of windows that share the map among them."""
    x = step.main.args[0]
    C, H, W = maps(x)
    sizes = (C, H, W, *shape(step.node)[-2:])
    return Code(f"share_pool(y, {step.read(x)}, {', '.join(map(str, sizes))});")  # type: ignore[arg-type]


@emits(_ATEN.adaptive_max_pool2d.default)
def adaptive_max_pool(step: Step) -> Code:
    """The largest of windows that share the map among them equally."""
    x: Any = step.main.args[0]
    C, H, W = maps(x)
    Ho, Wo = shape(step.node)[-2:]
    if H % Ho or W % Wo:
        raise NotImplementedError("adaptive_max_pool2d with windows of different sizes")
    window = (H // Ho, W // Wo)
    sizes = (C, H, W, Ho, Wo, *window, *window, 0, 0, 1, 1)
    return Code(f"max_pool(y, {step.read(x)}, {', '.join(map(str, sizes))});")
