"""The public names of pdecnn, and the page of the reference that each of them has."""

from importlib import import_module
from types import ModuleType

ROOMS = (
    "pdecnn",
    "pdecnn.condensation",
    "pdecnn.layers",
    "pdecnn.functional",
    "pdecnn.reference",
    "pdecnn.models",
    "pdecnn.symmetry",
    "pdecnn.training",
    "pdecnn.analysis",
    "pdecnn.deploy",
    "pdecnn.viz",
    "pdecnn.testing",
)


def public_names(room: str) -> list[str]:
    """What `__all__` of a room has, without rooms and the version."""
    module = import_module(room)
    return [n for n in module.__all__ if n != "__version__" and not isinstance(getattr(module, n), ModuleType)]


def homes() -> dict[str, str]:
    """Where each public name is described: `pdecnn.condensation.condense` in `pdecnn`, as `pdecnn.condense`.

    What several rooms give is described once: in `pdecnn` itself, else in the first room of `ROOMS` that has it, but
    what `functional` takes over from `reference` as it is in `reference`.
    """
    first: dict[int, str] = {}
    for room in sorted(ROOMS, key=lambda r: r == "pdecnn.functional"):
        for name in public_names(room):
            first.setdefault(id(getattr(import_module(room), name)), f"{room}.{name}")
    return {
        f"{room}.{name}": first[id(getattr(import_module(room), name))] for room in ROOMS for name in public_names(room)
    }
