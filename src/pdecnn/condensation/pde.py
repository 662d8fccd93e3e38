"""Advection, diffusion and reaction in the place of removed blocks: our equation, and its variants."""

from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from pdecnn.condensation.site import Run
from pdecnn.layers.global_layer import GlobalLayer
from pdecnn.layers.implicit_diffusion import ImplicitDiffusion
from pdecnn.layers.transport import Transport
from pdecnn.shared.modules import replace
from pdecnn.shared.names import close_to
from pdecnn.shared.reading import FileError


@dataclass(frozen=True)
class PdeOptions:
    """What the equation is made of. The defaults were chosen by hand; `benchmarks/design.py` is there to search them.

    Attributes:
        reaction: Whether channels react with each other, by a mixing (1x1) after the steps.
        share: How many neighbouring channels have the same velocities and diffusivities.
        implicit: Whether an implicit diffusion, which reaches all pixels, comes before the steps.
        maps: Whether velocities and diffusivities are maps that are computed from the state, as in the published layer,
            but with velocities of either sign (tanh); else they are constants of each channel.
    """

    reaction: bool = True
    share: int = 1
    implicit: bool = False
    maps: bool = False

    @classmethod
    def parse(cls, values: dict[str, Any], run: Run) -> "PdeOptions":
        """The options of a run; a FileError names what cannot be."""
        names = {f.name: type(f.default) for f in fields(cls)}
        for name, value in values.items():
            if name not in names:
                hint = close_to(name, names)
                raise FileError(f"plan: pde has no option {name!r:.80}; there are {', '.join(names)}.{hint}")
            if type(value) is not names[name]:
                raise FileError(f"plan: the option {name} of pde is a {names[name].__name__}, got {value!r:.80}.")
        made = cls(**values)
        if made.share < 1 or run.shape[0] % made.share:
            raise FileError(f"plan: share={made.share} must divide the {run.shape[0]} channels at {run.path}.")
        if made.maps and (len(run.shape) != 3 or made.share != 1):
            raise FileError("plan: with maps the equation is for images (C, H, W), and share is 1.")
        return made


def steps(run: Run, options: PdeOptions) -> list[nn.Module]:
    """The layers that solve the equation of a run, without its reaction; the last has norm and activation if `maps`."""
    C, axes = run.shape[0], len(run.shape) - 1
    before: list[nn.Module] = [ImplicitDiffusion(C, axes=axes, share=options.share)] if options.implicit else []
    if options.maps:
        return [*before, _signed(GlobalLayer(C, K=run.K, boundary="neumann"))]
    return [*before, Transport(C, K=run.K, axes=axes, share=options.share)]


def _signed(layer: GlobalLayer) -> GlobalLayer:
    """The layer with velocities between -1 and 1."""
    replace(layer.velocity, lambda m: nn.Tanh() if isinstance(m, nn.ReLU) else m)
    return layer
