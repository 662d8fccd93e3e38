"""What only moves values keeps their scale: its C is that of floats."""

from dataclasses import dataclass
from typing import Any

import torch

from pdecnn.deploy.c.movement import CHOICES, VIEWS, part_of
from pdecnn.deploy.c.registry import EMITTERS, Code, Integer, Step, in_integers, quant

_ATEN = torch.ops.aten
KEEPS = {*VIEWS, *CHOICES, _ATEN.flip.default, _ATEN.constant_pad_nd.default}


@dataclass(frozen=True)
class Moved:
    """A view, a pad, or a choice of elements."""

    step: Step
    arithmetic: str = "int8"

    def code(self, step: Step) -> Code:
        """As in float."""
        return EMITTERS[step.main.target](step)

    def values(self, x: Any) -> Any:
        """The operator of torch, with 0 at the zero of the scale."""
        own = quant(self.step.node)
        assert own is not None
        args, kwargs = torch.fx.map_arg((self.step.main.args[1:], self.step.main.kwargs), self.step.constant)
        moved: Any = self.step.main.target(torch.from_numpy(x - own.zero).double(), *args, **kwargs)  # type: ignore[operator]
        return moved.long().numpy() + own.zero


@in_integers(*KEEPS)
def moved(step: Step) -> Integer:
    """Pads must be with 0."""
    if step.main.target is _ATEN.constant_pad_nd.default and step.arguments()["value"] != 0:
        raise NotImplementedError("a pad with another number than 0 in 8 bits")
    return Moved(step)


@dataclass(frozen=True)
class Part:
    """One of the parts of a value that was split."""

    step: Step
    arithmetic: str = "int8"

    def code(self, step: Step) -> Code:
        """As in float."""
        return part_of(step)

    def values(self, x: Any) -> Any:
        """The same."""
        whole: Any
        whole, number = self.step.main.args  # type: ignore[misc]
        return whole.target(torch.from_numpy(x), *whole.args[1:])[number].numpy()
