"""The plain data of a plan: where a run of blocks is, what it costs, and what becomes of it."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pdecnn.reference.advection_diffusion import MAX_STEPS
from pdecnn.shared.names import close_to, is_within
from pdecnn.shared.reading import FileError, check_tree

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", strict=True)
KINDS = ("chain", "dense", "growing")
INITS = ("identity", "block")


@dataclass(frozen=True)
class Cost:
    """Parameters, multiply-adds (exact count, one image) and, if measured, milliseconds."""

    __pydantic_config__ = STRICT

    params: int = 0
    macs: int = 0
    ms: float | None = None

    def __add__(self, other: "Cost") -> "Cost":
        ms = None if self.ms is None and other.ms is None else (self.ms or 0.0) + (other.ms or 0.0)
        return Cost(self.params + other.params, self.macs + other.macs, ms)

    def __sub__(self, other: "Cost") -> "Cost":
        ms = None if self.ms is None and other.ms is None else (self.ms or 0.0) - (other.ms or 0.0)
        return Cost(self.params - other.params, self.macs - other.macs, ms)


NOTHING = Cost()


@dataclass(frozen=True)
class Run:
    """A run of repeated blocks, and what replaces it.

    Attributes:
        kind: `"chain"`: each block maps a feature map to one of the same shape; `"dense"`: the parent concatenates what
            the blocks give; `"growing"`: each block appends channels to what it is given.
        parent: Path of the module that holds the blocks; `""` is the model itself.
        units: The blocks in the order of their calls, each as the names of one or more children of `parent`.
        keep: How many blocks, counted from the first, stay as they are.
        block: The name of the class of the blocks, for the reader.
        shape: `(C, H, W)` of the feature map, for a dense run that of the map after the transition; `(C, W)` of a
            signal, `(C, D, H, W)` of a volume.
        channels_last: Whether the channels of the feature maps are the last dimension, as in `(N, H, W, C)`.
        signed: Whether the feature map has negative values; the new layer then has no activation.
        replacement: What comes in the place of the removed blocks, by its name in `replacements.py`.
        K: Time steps, of a replacement that is a PDE.
        init: The first guess F of the paper's layer: `"identity"`, or `"block"`: the first of the removed blocks, which
            keeps its weights.
        options: Changes to the `GlobalOptions` of the paper's layer, or to the `PdeOptions` of ours.
        rms: Root mean square of the first guess on the inputs that were planned with; the norms of the coefficients of
            the paper's layer start from it, since velocities that grow with the map make the steps unstable.
        costs: The cost of each block.
        layer_cost: The cost of the new layer without its first guess.
        growth: Channels that each block of a dense run adds.
        width: Channels that a dense run begins with.
        readers: Paths of the modules that read the output of a dense run and become narrower.
        transition: Path of the module that the new layer of a dense run follows; None: no such layer.
        kernels: How many convolutions `parent` holds, by which a plan knows its model; 0: not written down.
    """

    __pydantic_config__ = STRICT

    kind: str
    parent: str
    units: tuple[tuple[str, ...], ...]
    keep: int
    block: str
    shape: tuple[int, ...]
    channels_last: bool = False
    signed: bool = True
    replacement: str = "paper"  # as in plans that do not say it
    K: int = 5
    init: str = "identity"
    options: dict[str, Any] = field(default_factory=dict)
    rms: float = 1.0
    costs: tuple[Cost, ...] = ()
    layer_cost: Cost = NOTHING
    growth: int = 0
    width: int = 0
    readers: tuple[str, ...] = ()
    transition: str | None = None
    kernels: int = 0

    @property
    def path(self) -> str:
        """The first and the last block, such as `layer1.0-4`."""
        first, last = self.units[0][0], self.units[-1][-1]
        span = first if first == last else f"{first}-{last}"
        return f"{self.parent}.{span}" if self.parent else span

    @property
    def is_dense(self) -> bool:
        """Whether the blocks add channels."""
        return self.kind != "chain"

    @property
    def removed(self) -> tuple[tuple[str, ...], ...]:
        """The blocks that go; with `init="block"` the first of them makes the first guess of the Global layer."""
        return self.units[self.keep :]

    @property
    def condenses(self) -> bool:
        """Whether anything is removed."""
        return len(self.removed) > (self.init == "block" and not self.is_dense)

    @property
    def before(self) -> Cost:
        """What all blocks cost."""
        return sum(self.costs, Cost())

    @property
    def after(self) -> Cost:
        """What the kept blocks and the new layer cost."""
        if not self.condenses:
            return self.before
        stays = self.keep + (self.init == "block" and not self.is_dense)
        layer = self.layer_cost if not self.is_dense or self.transition is not None else Cost()
        return sum(self.costs[:stays], layer)

    @property
    def site(self) -> str:
        """Path of the new layer after condensing; empty if there is none."""
        if self.is_dense:
            return f"{self.transition}.global_layer" if self.transition is not None else ""
        return self.child(self.units[-1][-1])

    def child(self, name: str) -> str:
        """The path of a child of the parent."""
        return f"{self.parent}.{name}" if self.parent else name

    def members(self, first: int = 0) -> list[str]:
        """The paths of all children from block `first` on."""
        return [self.child(name) for unit in self.units[first:] for name in unit]

    def holds(self, path: str) -> bool:
        """Whether a module is one of the children, or inside of one."""
        return any(is_within(path, child) for child in self.members())

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Run":
        """The inverse of `to_dict`; also takes what JSON made of it, and checks it."""
        return from_plain(cls, values, "Plan: a run").check()

    def check(self) -> "Run":
        """Itself, or a FileError that says what cannot be."""
        if not self.units or not all(self.units):
            raise FileError("Plan: a run is not complete: units must name at least one module each.")
        for problem in self._problems():
            raise FileError(f"Plan: run {self.path}: {problem}.")
        return self

    def _problems(self) -> list[str]:
        checks = {
            f"kind must be one of {KINDS}, got {self.kind!r:.80}": self.kind in KINDS,
            f"init must be one of {INITS}, got {self.init!r:.80}": self.init in INITS,
            f"init='block' is for replacement='paper', got {self.replacement!r:.80}": (
                self.replacement == "paper" or self.init != "block"
            ),
            f"options are for replacement='paper' and 'pde', got {self.replacement!r:.80}": (
                self.replacement in ("paper", "pde") or not self.options
            ),
            f"keep must be from 1 to {len(self.units)}, got {self.keep!r:.80}": _is_int(self.keep)
            and 1 <= self.keep <= len(self.units),
            f"K must be an int of at least 1, got {self.K!r:.80}": _is_int(self.K) and self.K >= 1,
            f"K must be at most {MAX_STEPS:,}, got {self.K!r:.80}": not _is_int(self.K) or self.K <= MAX_STEPS,
            f"shape must be sizes (C, H, W), (C, W) or (C, D, H, W), got {self.shape!r:.80}": len(self.shape)
            in (2, 3, 4)
            and all(_is_int(n) and n > 0 for n in self.shape),
            f"rms must be positive and finite, got {self.rms!r:.80}": self.rms >= 0 and math.isfinite(self.rms),
            f"costs must be given for each of {len(self.units)} blocks, got {len(self.costs)}": len(self.costs)
            in (0, len(self.units)),
        }
        return [problem for problem, holds in checks.items() if not holds]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def from_plain(cls: type[T], values: Any, what: str) -> T:
    """The dataclass `cls` from plain lists, dicts and numbers; a FileError names the key that is wrong."""
    if not isinstance(values, Mapping):
        raise FileError(f"{what} must be an object, got {values!r:.80}.")
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            raise FileError(f"{what} has no entry {key!r:.80}; there are {', '.join(names)}.{close_to(key, names)}")
    check_tree(values, what)
    try:
        made: T = _adapter(cls).validate_json(json.dumps(values))  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        problem = "is missing" if first["type"] == "missing" else f"{first['msg']}, got {first['input']!r:.80}"
        raise FileError(f"{what} is not complete: {key}: {problem}.") from error
    except (TypeError, ValueError, RecursionError) as error:  # not plain data
        raise FileError(f"{what} is not plain data: {error}.") from error
    return made


@cache
def _adapter(cls: Any) -> Any:
    return TypeAdapter(cls)


@dataclass(frozen=True)
class Skipped:
    """A place that was looked at and left alone, and why."""

    __pydantic_config__ = STRICT

    path: str
    reason: str
