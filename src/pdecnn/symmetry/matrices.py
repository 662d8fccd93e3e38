"""The weights of a folded network that a change of basis touches, as matrices, and descent over the group."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pdecnn.layers.cp_block import CPBlock, LiftedBlock
from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.symmetry.groups import Group
from pdecnn.symmetry.streams import StageSymmetry, walk


@dataclass(frozen=True)
class StreamMatrix:
    """A matrix between streams: it becomes `T[writes] W T[reads]^-1`; None stands for no stream."""

    layer: nn.Conv2d | nn.Linear
    reads: int | None
    writes: int | None

    @property
    def weight(self) -> Tensor:
        """The matrix, `(out, in)`; taps of a larger kernel count as inputs."""
        return self.layer.weight.detach().flatten(1)

    def turned(self, T: Mapping[int, Tensor]) -> Tensor:
        """The matrix in the new bases."""
        W = self.weight
        if self.reads is not None and self.reads in T:
            W = torch.linalg.solve(T[self.reads], W, left=False)
        return T[self.writes] @ W if self.writes is not None and self.writes in T else W


def stream_matrices(folded: HyperbolicNet) -> list[StreamMatrix]:
    """All matrices that read or write a stream, from the stem to the classifier.

    Blocks of the factored equations keep only permutations and scalings, which create no zeros, and are left out.
    """
    found = [_matrix(folded.stem.conv, None, 1)]
    for source, stage, _, block in walk(folded):
        if isinstance(block, CPBlock):
            found.append(_matrix(block.factors, source, None))
        elif isinstance(block, LiftedBlock):
            found += [_matrix(block.select, source, None), _matrix(block.coefficients, source, None)]
        else:
            continue
        found.append(_matrix(block.mix, None, stage))
        if isinstance(block.skip, nn.Sequential):
            found.append(_matrix(block.skip[0], source, stage))
    if isinstance(folded.fc, nn.Linear):
        found.append(_matrix(folded.fc, len(folded.stages), None))
    return found


def descend(
    matrices: list[StreamMatrix],
    symmetry: Mapping[int, StageSymmetry],
    start: Mapping[int, Tensor],
    loss: Callable[[list[Tensor], float], Tensor],
    *,
    steps: int,
    lr: float,
) -> dict[int, Tensor]:
    """Group elements that lower `loss(turned matrices, progress)`, by Adam on a parametrisation of each group.

    `progress` runs from 0 to 1, for a loss that is annealed; the learning rate falls to 1 % as a cosine.
    """
    free = {s: symmetry[s].group.parametrise(T) for s, T in start.items() if symmetry[s].group.dimension(len(T)) > 0}
    if not free or steps == 0:
        return dict(start)
    optimizer = torch.optim.Adam([p for module in free.values() for p in module.parameters()], lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=0.01 * lr)
    for step in range(steps):
        optimizer.zero_grad()
        T = {**start, **{s: module() for s, module in free.items()}}
        loss([m.turned(T) for m in matrices], step / max(steps - 1, 1)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    return {**start, **{s: module().detach() for s, module in free.items()}}


def continuous(symmetry: Mapping[int, StageSymmetry], kinds: tuple[Group, ...]) -> dict[int, StageSymmetry]:
    """The stages whose group is one of `kinds`."""
    return {stage: s for stage, s in symmetry.items() if s.group in kinds}


def _matrix(layer: object, reads: int | None, writes: int | None) -> StreamMatrix:
    assert isinstance(layer, (nn.Conv2d, nn.Linear))
    return StreamMatrix(layer, reads, writes)
