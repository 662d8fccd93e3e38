r"""Lossless sparsification: among all networks that compute the same function, find the one with most zeros.

.. math:: \min_T \sum_W \sum_{ij} \sqrt{\tilde W_{ij}^2 + \epsilon^2}, \qquad \tilde W = T_w W T_r^{-1}

`T` runs over the symmetry group, the sum over all matrices that touch a stream, and epsilon falls from 1e-1 to 1e-5.
Generic weights admit n(n-1)/2 zeros for a stage with O(n) and n^2 - n with GL(n); more can be had only if the weights
are special.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pdecnn.layers.tensor_block import TensorBlock
from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.symmetry.groups import Group
from pdecnn.symmetry.matrices import StreamMatrix, continuous, descend, stream_matrices
from pdecnn.symmetry.norms import fold_norms
from pdecnn.symmetry.polish import CONVERGED, polish
from pdecnn.symmetry.streams import StageSymmetry, symmetry_of
from pdecnn.symmetry.transform import transform, verify


@dataclass(frozen=True)
class Sparsification:
    """What `sparsify` found.

    Attributes:
        model: The equivalent network with the found weights; nothing has been rounded to zero beyond `exact_zeros`.
        transforms: The group elements that lead to it.
        weights: Number of weights that touch a stream.
        bound: Zeros that generic weights admit.
        zeros_before: Small weights at the start (below `threshold` times the largest of their matrix).
        zeros_after: Small weights at the end.
        exact_zeros: Weights that are zero at no loss.
        transform_error: Relative output error of the change of basis, in float64.
        error: Relative output error of `model`, in float64.
        thresholded_error: Relative output error if all small weights are set to zero.
        condition: Largest condition number of the group elements.
    """

    model: HyperbolicNet
    transforms: dict[int, Tensor]
    weights: int
    bound: int
    zeros_before: int
    zeros_after: int
    exact_zeros: int
    transform_error: float
    error: float
    thresholded_error: float
    condition: float

    def __str__(self) -> str:
        def share(count: int) -> str:
            return f"{count} ({count / self.weights:.1%})"

        return (
            f"{self.weights} weights touch a stream; small before {share(self.zeros_before)}, after "
            f"{share(self.zeros_after)}, exactly zero {share(self.exact_zeros)}; generic bound {self.bound}; "
            f"output error {self.error:.1e}, {self.thresholded_error:.1e} with all small weights set to zero"
        )


def sparsify(
    model: nn.Module,
    *,
    steps: int = 1500,
    lr: float = 2e-2,
    threshold: float = 1e-3,
    start: str = "identity",
    polished: bool = True,
    x: Tensor | None = None,
) -> Sparsification:
    """Searches the symmetry group of `model` for the sparsest equivalent weights.

    Args:
        model: A hyperbolic network; it is left as it is.
        steps: Steps of gradient descent; 0 takes the start as it is.
        lr: Learning rate.
        threshold: A weight is small below this share of the largest weight of its matrix.
        start: `"identity"` or `"closed_form"` (see `closed_form`).
        polished: Whether small weights are brought to exact zeros by Gauss-Newton, where that is consistent.
        x: Images to measure the output error with; noise by default.
    """
    symmetry = continuous(symmetry_of(model), (Group.GL, Group.O))
    if any(isinstance(block, TensorBlock) for block in model.modules()):
        raise ValueError(
            "sparsify: a full tensor reads its stream twice, for which no search is written; use a CP form."
        )
    if not symmetry:
        reasons = "; ".join(f"stage {s}: {q.label}" for s, q in symmetry_of(model).items())
        raise ValueError(f"sparsify: no stage has a symmetry that can create zeros (O or GL): {reasons}.")
    if start not in ("identity", "closed_form"):
        raise ValueError(f"sparsify: start must be 'identity' or 'closed_form', got {start!r}.")
    folded = fold_norms(copy.deepcopy(model).double())
    matrices = stream_matrices(folded)
    identity = {s: torch.eye(q.width, dtype=torch.float64) for s, q in symmetry.items()}
    T = identity if start == "identity" else closed_form(matrices, symmetry)
    T = descend(matrices, symmetry, T, _smooth_l1, steps=steps, lr=lr)
    x = _noise(folded) if x is None else x
    transform_error = verify(folded, _turned(folded, T), x)
    zeros_after = len(_small(matrices, T, threshold))
    masks = None
    if polished:
        T, masks = polish(matrices, symmetry, T, threshold)
    masks = _masks(matrices, T, CONVERGED) if masks is None else masks
    sparse = _turned(folded, T, masks)
    return Sparsification(
        model=sparse.to(next(model.parameters()).dtype),
        transforms=T,
        weights=sum(m.weight.numel() for m in matrices),
        bound=sum(q.group.generic_zeros(q.width) for q in symmetry.values()),
        zeros_before=len(_small(matrices, identity, threshold)),
        zeros_after=zeros_after,
        exact_zeros=sum(int((m.weight == 0).sum()) for m in stream_matrices(sparse)),
        transform_error=transform_error,
        error=verify(folded, sparse, x),
        thresholded_error=verify(folded, _turned(folded, T, _masks(matrices, T, threshold)), x),
        condition=max(torch.linalg.cond(matrix).item() for matrix in T.values()),
    )


def closed_form(matrices: list[StreamMatrix], symmetry: Mapping[int, StageSymmetry]) -> dict[int, Tensor]:
    """Group elements that reach the generic bound at once, by one block of a matrix that writes to each stage.

    O(n): `T = Q^T` of the block's QR makes it triangular, n(n-1)/2 zeros. GL(n): `T = block^-1` makes it the identity,
    n^2 - n zeros. Of all blocks the one of smallest condition number is taken.
    """
    T = {}
    for stage, q in symmetry.items():
        n = q.width
        blocks = [
            m.weight[:, i : i + n]
            for m in matrices
            if m.writes == stage
            for i in range(0, m.weight.shape[1] - n + 1, n)
        ]
        if not blocks:
            raise ValueError(f"closed_form: no matrix that writes to stage {stage} has {n} columns.")
        block = min(blocks, key=lambda B: torch.linalg.cond(B).item())
        T[stage] = torch.linalg.qr(block).Q.mT if q.group is Group.O else torch.linalg.inv(block)
    return T


def _smooth_l1(turned: list[Tensor], progress: float) -> Tensor:
    eps = 10.0 ** (-1 - 4 * progress)
    return torch.stack([(W.square() + eps**2).sqrt().sum() for W in turned]).sum()


def _masks(matrices: list[StreamMatrix], T: Mapping[int, Tensor], threshold: float) -> list[Tensor]:
    turned = [m.turned(T).abs() for m in matrices]
    return [threshold * W.max() > W for W in turned]


def _small(matrices: list[StreamMatrix], T: Mapping[int, Tensor], threshold: float) -> Tensor:
    return torch.cat([mask.flatten() for mask in _masks(matrices, T, threshold)]).nonzero()


def _turned(folded: HyperbolicNet, T: dict[int, Tensor], masks: list[Tensor] | None = None) -> HyperbolicNet:
    """The folded network in the new bases, with the masked weights set to zero."""
    turned = transform(folded, T)
    if masks is not None:
        for m, mask in zip(stream_matrices(turned), masks, strict=True):
            m.layer.weight.data.masked_fill_(mask.view_as(m.layer.weight), 0.0)
    return turned


def _noise(folded: HyperbolicNet) -> Tensor:
    side = 8 * folded.feature_info[-1]["reduction"] // 4
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, folded.in_chans, side, side, generator=generator, dtype=torch.float64)
