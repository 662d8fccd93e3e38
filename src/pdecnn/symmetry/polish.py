"""From small weights to exact zeros: Gauss-Newton on the group, with increments in its Lie algebra.

`T <- e^X T` changes a turned matrix to first order by `X W` where it writes and by `-W X` where it reads, so that
asking selected entries to vanish is a linear least-squares problem for X.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from pdecnn.symmetry.groups import Group
from pdecnn.symmetry.matrices import StreamMatrix
from pdecnn.symmetry.streams import StageSymmetry

CONVERGED = 1e-14  # of the largest entry of a matrix: rounding, so that setting it to zero loses nothing
ITERATIONS = 25
MAX_ENTRIES = 50_000_000  # of the Jacobian, 400 MB


def polish(
    matrices: list[StreamMatrix], symmetry: Mapping[int, StageSymmetry], T: dict[int, Tensor], threshold: float
) -> tuple[dict[int, Tensor], list[Tensor] | None]:
    """A group element near `T` at which small entries are zero up to rounding, and the masks of these entries.

    All entries below `threshold` are tried first: special weights may have more zeros than generic ones. If these
    cannot vanish together, some are small by chance: lower thresholds are tried, and then a largest independent set,
    the smallest first. `T` and None are returned if nothing converges or the problem is too large.
    """
    small = _small_masks(matrices, T, threshold)
    dimension = sum(q.group.dimension(q.width) for q in symmetry.values())
    if not 0 < _count(small) * dimension <= MAX_ENTRIES:
        return T, None
    tries = [small, *(_small_masks(matrices, T, threshold / 10**k) for k in (1, 2, 3))]
    best: tuple[dict[int, Tensor], list[Tensor]] | None = None
    for masks in tries:
        found = _gauss_newton(matrices, symmetry, T, masks)
        if found is not None:
            best = found, masks
            break
    if best is None or _count(best[1]) < dimension:  # an independent set has at most that many
        masks = _independent(matrices, symmetry, T, small)
        found = _gauss_newton(matrices, symmetry, T, masks)
        if found is not None and (best is None or _count(masks) > _count(best[1])):
            best = found, masks
    return (T, None) if best is None else best


def _count(masks: list[Tensor]) -> int:
    return sum(int(mask.sum()) for mask in masks)


def _gauss_newton(
    matrices: list[StreamMatrix], symmetry: Mapping[int, StageSymmetry], T: dict[int, Tensor], masks: list[Tensor]
) -> dict[int, Tensor] | None:
    for _ in range(ITERATIONS):
        turned = [m.turned(T) for m in matrices]
        residual = torch.cat([W[mask] for W, mask in zip(turned, masks, strict=True)])
        scale = torch.cat([W.abs().max().expand(int(k.sum())) for W, k in zip(turned, masks, strict=True)])
        if (residual.abs() <= CONVERGED * scale).all():
            return T
        J = _jacobian(matrices, symmetry, turned, masks)
        step = torch.linalg.lstsq(J, -residual.unsqueeze(1), rcond=1e-10, driver="gelsd").solution.squeeze(1)
        if not step.isfinite().all() or step.norm() > 1:
            return None
        T = {s: torch.linalg.matrix_exp(X) @ T[s] for s, X in _unpack(step, symmetry).items()}
    return None


def _jacobian(
    matrices: list[StreamMatrix], symmetry: Mapping[int, StageSymmetry], turned: list[Tensor], masks: list[Tensor]
) -> Tensor:
    """Derivatives of the selected entries by the coordinates of X, one row for each entry."""
    blocks = []
    for m, W, mask in zip(matrices, turned, masks, strict=True):
        i, j = mask.nonzero(as_tuple=True)
        rows = torch.arange(len(i))
        parts = []
        for stage, q in symmetry.items():
            J = W.new_zeros(len(i), q.width, q.width)
            if m.writes == stage:
                J[rows, i, :] += W[:, j].mT
            if m.reads == stage:
                J[rows, :, j] -= W[i, :]
            parts.append(_pack(J, q))
        blocks.append(torch.cat(parts, 1))
    return torch.cat(blocks)


def _pack(J: Tensor, q: StageSymmetry) -> Tensor:
    """Derivatives by the coordinates of the Lie algebra: all entries for GL, those above the diagonal for O."""
    if q.group is Group.GL:
        return J.flatten(1)
    a, b = torch.triu_indices(q.width, q.width, 1)
    return J[:, a, b] - J[:, b, a]


def _unpack(step: Tensor, symmetry: Mapping[int, StageSymmetry]) -> dict[int, Tensor]:
    X = {}
    for stage, q in symmetry.items():
        part, step = step[: (d := q.group.dimension(q.width))], step[d:]
        if q.group is Group.GL:
            X[stage] = part.view(q.width, q.width)
        else:
            a, b = torch.triu_indices(q.width, q.width, 1)
            X[stage] = part.new_zeros(q.width, q.width)
            X[stage][a, b], X[stage][b, a] = part, -part
    return X


def _independent(
    matrices: list[StreamMatrix], symmetry: Mapping[int, StageSymmetry], T: dict[int, Tensor], masks: list[Tensor]
) -> list[Tensor]:
    """The masks of a largest set of entries whose derivatives are linearly independent, the smallest entries first."""
    turned = [m.turned(T) for m in matrices]
    J = _jacobian(matrices, symmetry, turned, masks)
    size = torch.cat([W[k].abs() / W.abs().max() for W, k in zip(turned, masks, strict=True)])
    basis = J.new_zeros(min(J.shape), J.shape[1])
    chosen = torch.zeros(len(J), dtype=torch.bool)
    rank = 0
    for row in size.argsort().tolist():
        v = J[row] / J[row].norm().clamp_min(1e-300)
        for _ in range(2):  # once more, for rounding
            v = v - basis[:rank].mT @ (basis[:rank] @ v)
        if rank < len(basis) and v.norm() > 1e-3:  # well clear of dependence, so that Newton's steps stay short
            basis[rank], chosen[row] = v / v.norm(), True
            rank += 1
    kept, offset = [], 0
    for mask in masks:
        count = int(mask.sum())
        selected = torch.zeros_like(mask)
        selected[mask] = chosen[offset : offset + count]
        kept.append(selected)
        offset += count
    return kept


def _small_masks(matrices: list[StreamMatrix], T: Mapping[int, Tensor], threshold: float) -> list[Tensor]:
    turned = [m.turned(T).abs() for m in matrices]
    return [threshold * W.max() > W for W in turned]
