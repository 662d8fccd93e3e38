"""Which symmetry a network has: for each stage the largest group that everything on its residual stream allows.

All blocks of a stage share one stream through their identity skips, so that one matrix `T` acts on all of it. `T` must
commute with every nonlinearity on the stream, and the blocks must be able to absorb `T^-1` where they read and `T`
where they write.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from timm.layers import SelectAdaptivePool2d
from torch import nn

from pdecnn.layers.ball import HardBall, SoftBall
from pdecnn.layers.cp_block import CPBlock, LiftedBlock
from pdecnn.layers.quasilinear import Equation3, Equation4, Equation5, Equation6, Equation7, QuasilinearBlock
from pdecnn.layers.tensor_block import TensorBlock
from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.symmetry.groups import Group

ELEMENTWISE = "an element-wise function commutes with permutations alone"
NONLINEARITIES: dict[type[nn.Module], tuple[Group, str]] = {
    nn.Identity: (Group.GL, "the identity commutes with everything"),
    nn.AvgPool2d: (Group.GL, "averaging is linear and the same for all channels"),
    nn.AdaptiveAvgPool2d: (Group.GL, "averaging is linear and the same for all channels"),
    HardBall: (Group.O, "it depends on the length of the feature vector, which orthogonal mixings keep"),
    SoftBall: (Group.O, "it depends on the length of the feature vector, which orthogonal mixings keep"),
    nn.ReLU: (Group.POSITIVE_MONOMIAL, "it is element-wise and commutes with positive scalings"),
    nn.LeakyReLU: (Group.POSITIVE_MONOMIAL, "it is element-wise and commutes with positive scalings"),
    nn.MaxPool2d: (Group.POSITIVE_MONOMIAL, "the maximum is element-wise and commutes with positive scalings"),
    nn.Hardtanh: (Group.SIGNED_PERMUTATION, "it is element-wise and odd"),
    nn.Tanh: (Group.SIGNED_PERMUTATION, "it is element-wise and odd"),
    nn.Softsign: (Group.SIGNED_PERMUTATION, "it is element-wise and odd"),
    **dict.fromkeys((nn.GELU, nn.SiLU, nn.ELU, nn.Sigmoid, nn.Hardswish, nn.ReLU6), (Group.PERMUTATION, ELEMENTWISE)),
}

BARE = "a factor of its product is read from the stream with no matrix in between"
PRODUCT_LAST = "its product is written to the stream with no matrix in between"
FREE = "a matrix stands between it and the stream"
INTERFACES: dict[type[QuasilinearBlock], tuple[tuple[Group, str], tuple[Group, str]]] = {  # (reads, writes)
    Equation3: ((Group.MONOMIAL, BARE), (Group.GL, FREE)),
    Equation4: ((Group.MONOMIAL, "a normalisation acts on each derivative"), (Group.MONOMIAL, PRODUCT_LAST)),
    Equation5: ((Group.MONOMIAL, BARE), (Group.MONOMIAL, PRODUCT_LAST)),
    Equation6: ((Group.MONOMIAL, BARE), (Group.GL, FREE)),
    Equation7: ((Group.MONOMIAL, BARE), (Group.GL, FREE)),
    CPBlock: ((Group.GL, FREE), (Group.GL, FREE)),
    LiftedBlock: ((Group.GL, FREE), (Group.GL, FREE)),
    TensorBlock: ((Group.GL, FREE), (Group.GL, FREE)),
}
PARTED = "its tensor is block-diagonal, and T would have to have the same blocks"


def interfaces(block: QuasilinearBlock) -> tuple[tuple[Group, str], tuple[Group, str]]:
    """What a block absorbs where it reads the stream, and where it writes to it, each with the reason."""
    if isinstance(block, TensorBlock) and block.groups > 1:
        return (Group.TRIVIAL, PARTED), (Group.TRIVIAL, PARTED)
    if isinstance(block, TensorBlock) and not block.shared:
        return (Group.MONOMIAL, "each channel has its own stencils"), (Group.GL, FREE)
    return INTERFACES[type(block)]


@dataclass(frozen=True)
class Restriction:
    """A module that narrows the symmetry of a stream, the group it leaves, and why."""

    module: str
    kind: str
    group: Group
    why: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.module}': {self.why}"


@dataclass(frozen=True)
class StageSymmetry:
    """The symmetry of one stage: the group, and all that restricts it, the strongest first."""

    stage: int
    width: int
    group: Group
    restrictions: tuple[Restriction, ...]

    @property
    def label(self) -> str:
        """The group's name, such as `O(128)`."""
        return self.group.label(self.width)

    @property
    def reason(self) -> str:
        """Which modules leave this group and no larger one, in words."""
        if not self.restrictions:
            return "nothing restricts it"
        kinds = {(r.kind, r.group): r for r in reversed(self.restrictions)}
        return "; ".join(str(r) for r in reversed(list(kinds.values())))


def register_nonlinearity(kind: type[nn.Module], group: Group, why: str) -> None:
    """Tells `symmetry_of` which channel mixings the module `kind` commutes with."""
    NONLINEARITIES[kind] = (group, why)


def symmetry_of(model: nn.Module) -> dict[int, StageSymmetry]:
    """For each stage (1, 2, ...) the largest group of channel mixings that leaves the network's function unchanged.

    It is the group for generic weights at inference, with the normalisations on the stream folded.

    Example:
        >>> import timm, pdecnn
        >>> [s.label for s in symmetry_of(timm.create_model("cifar_hyperbolic_cp")).values()]
        ['positive monomial(16)', 'O(32)', 'O(64)']
    """
    model = check_model("symmetry_of", model)
    found: dict[int, list[Restriction]] = {s: [] for s in range(1, len(model.stages) + 1)}
    for stage, restriction in _restrictions(model):
        if restriction.group is not Group.GL:
            found[stage].append(restriction)
    widths = stage_widths(model)
    return {
        stage: StageSymmetry(
            stage, widths[stage], reduce(Group.__and__, (r.group for r in rs), Group.GL), tuple(_ranked(rs))
        )
        for stage, rs in found.items()
    }


def check_model(where: str, model: nn.Module) -> HyperbolicNet:
    """The model itself if its streams are understood, else a TypeError."""
    if not isinstance(model, HyperbolicNet):
        raise TypeError(
            f"{where}: only the streams of pdecnn.models.HyperbolicNet are understood, got {type(model).__name__}."
        )
    for block in model.blocks():
        if type(block) not in INTERFACES:
            names = ", ".join(kind.__name__ for kind in INTERFACES)
            raise TypeError(f"{where}: unknown block {type(block).__name__}; known are {names}.")
    return model


class Step(NamedTuple):
    """A block and the stages (from 1) whose streams it reads and writes."""

    source: int
    stage: int
    name: str
    block: QuasilinearBlock


def walk(model: HyperbolicNet) -> Iterator[Step]:
    """All blocks in order; a downsampling block reads the stream of the stage before."""
    for s, stage in enumerate(model.stages, start=1):
        assert isinstance(stage, nn.Sequential)
        for i, block in enumerate(stage):
            assert isinstance(block, QuasilinearBlock)
            yield Step(s - 1 if s > 1 and i == 0 else s, s, f"stages.{s - 1}.{i}", block)


def stage_widths(model: HyperbolicNet) -> dict[int, int]:
    """Channels of each stage, by its number from 1."""
    return {step.stage: step.block.m for step in walk(model)}


def _restrictions(model: HyperbolicNet) -> Iterator[tuple[int, Restriction]]:
    for name, module in model.stem.named_children():
        if name not in ("conv", "bn"):
            yield 1, _restriction(f"stem.{name}", module)
    for step in walk(model):
        kind = type(step.block).__name__
        (reads, why_reads), (writes, why_writes) = interfaces(step.block)
        yield step.source, Restriction(step.name, kind, reads, why_reads)
        yield step.stage, Restriction(step.name, kind, writes, why_writes)
        yield step.stage, _restriction(f"{step.name}.act", step.block.act)
    pool = model.global_pool
    averaged = not isinstance(pool, SelectAdaptivePool2d) or pool.pool_type in ("", "avg", "fast", "fastavg")
    group, why = NONLINEARITIES[nn.AvgPool2d if averaged else nn.MaxPool2d]
    yield len(model.stages), Restriction("global_pool", type(pool).__name__, group, why)


def _restriction(name: str, module: nn.Module) -> Restriction:
    kind = type(module).__name__
    if type(module) in NONLINEARITIES:
        group, why = NONLINEARITIES[type(module)]
        return Restriction(name, kind, group, why)
    if isinstance(module, nn.Sequential):
        parts = [_restriction(f"{name}.{i}", part) for i, part in enumerate(module)]
        group = reduce(Group.__and__, (part.group for part in parts), Group.GL)
        return Restriction(name, kind, group, "; ".join(str(part) for part in parts))
    why = "nothing is known of it; use pdecnn.symmetry.register_nonlinearity if it commutes with more"
    return Restriction(name, kind, Group.TRIVIAL, why)


def _ranked(restrictions: list[Restriction]) -> list[Restriction]:
    return sorted(restrictions, key=lambda r: -sum(r.group.value))
