"""Between float and 8 bits: the nodes that are put into a graph where one meets the other."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pdecnn.deploy.c.constants import number
from pdecnn.deploy.c.fixed import HIGH, LOW, Quant
from pdecnn.deploy.c.registry import Code, Step, size


def to_int8(x: Any) -> Any:
    """Stands for `quantise` in a graph."""
    return x


def to_float(x: Any) -> Any:
    """Stands for `dequantise` in a graph."""
    return x


@dataclass(frozen=True)
class ToInt8:
    """`quantise` in parts/int8.c."""

    to: Quant
    arithmetic: str = "to int8"

    def code(self, step: Step) -> Code:
        """One call."""
        x: Any = step.main.args[0]
        inverse = number(float(np.float32(1.0 / self.to.scale)))
        return Code(f"quantise(y, {step.read(x)}, {size(step.node)}, {inverse}, {self.to.zero});")

    def values(self, x: Any) -> Any:
        """The same in float32; what is not a number becomes the least."""
        with np.errstate(over="ignore", invalid="ignore"):
            v = np.asarray(x, np.float32) * np.float32(1.0 / self.to.scale)
        u = np.where(v > -512, np.minimum(v, np.float32(512)), np.float32(-512))
        near = np.trunc(u + np.where(u < 0, np.float32(-0.5), np.float32(0.5))).astype(np.int64)
        return np.clip(near + self.to.zero, LOW, HIGH)


@dataclass(frozen=True)
class ToFloat:
    """`dequantise` in parts/int8.c."""

    own: Quant
    arithmetic: str = "to float"

    def code(self, step: Step) -> Code:
        """One call."""
        x: Any = step.main.args[0]
        scale = number(float(np.float32(self.own.scale)))
        return Code(f"dequantise(y, {step.read(x)}, {size(step.node)}, {scale}, {self.own.zero});")

    def values(self, x: Any) -> Any:
        """The same in float32."""
        return (x - self.own.zero).astype(np.float32) * np.float32(self.own.scale)
