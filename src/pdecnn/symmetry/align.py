"""Bringing the features of two networks together, so that their weights can be compared or averaged.

Two trainings of one architecture end in different bases of their streams. `align` picks, from the symmetry group, the
basis of the second network in which its features are nearest to those of the first (a Procrustes problem).
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.symmetry import _extras
from pdecnn.symmetry.groups import Group
from pdecnn.symmetry.norms import fold_norms
from pdecnn.symmetry.streams import check_model, symmetry_of
from pdecnn.symmetry.transform import transform


@dataclass(frozen=True)
class Alignment:
    """The second network in the bases of the first, and how far apart the features are.

    Attributes:
        model: The aligned network, folded; the same function as `model_b`.
        transforms: The group elements, by stage.
        distance_before: `|F_a - F_b| / |F_a|` of the features, by stage.
        distance_after: `|F_a - T F_b| / |F_a|`, by stage.
    """

    model: HyperbolicNet
    transforms: dict[int, Tensor]
    distance_before: dict[int, float]
    distance_after: dict[int, float]


def align(model_a: nn.Module, model_b: nn.Module, x: Tensor) -> Alignment:
    """Chooses `T` for every stage of `model_b` so that its features on the images `x` come nearest to `model_a`'s.

    Example:
        >>> import timm, pdecnn
        >>> a, b = (timm.create_model("cifar_hyperbolic_cp").eval() for _ in range(2))
        >>> found = align(a, b, torch.randn(2, 3, 32, 32))
        >>> all(found.distance_after[s] <= found.distance_before[s] for s in (1, 2, 3))
        True
    """
    symmetry, other = symmetry_of(model_a), symmetry_of(model_b)
    if {s: q.width for s, q in symmetry.items()} != {s: q.width for s, q in other.items()}:
        raise ValueError("align: the networks differ in the widths of their stages.")
    features_a, features_b = stage_features(model_a, x), stage_features(model_b, x)
    T = {s: procrustes(features_a[s], features_b[s], other[s].group) for s in symmetry}
    return Alignment(
        model=transform(model_b, T),
        transforms=T,
        distance_before={s: _distance(features_a[s], features_b[s]) for s in T},
        distance_after={s: _distance(features_a[s], features_b[s] @ T[s].mT) for s in T},
    )


@torch.no_grad()
def stage_features(model: nn.Module, x: Tensor) -> dict[int, Tensor]:
    """The stream at the end of every stage, as `(pixels, channels)` in float64."""
    network = copy.deepcopy(check_model("stage_features", model)).eval().double()
    maps = network.forward_intermediates(x.double(), intermediates_only=True)
    return {s: F.movedim(1, -1).flatten(0, -2) for s, F in enumerate(maps, start=1)}


def procrustes(A: Tensor, B: Tensor, group: Group) -> Tensor:
    """The `T` in `group` for which the rows of `B T^T` are nearest to those of `A`.

    It is the polar factor of `A^T B` for O, least squares for GL, and an assignment problem for the monomial groups.
    """
    if group is Group.GL:
        T = torch.linalg.lstsq(B, A, driver="gelsd").solution.mT
        return group.project(T)
    if group.orthogonal:
        return group.project(A.mT @ B)
    energy = B.square().sum(0).clamp_min(1e-30)
    inner = A.mT @ B
    if group.positive:
        inner = inner.clamp_min(0.0)
    src = _extras.assignment(inner.square() / energy)  # what the best scale of each pair removes
    rows = torch.arange(len(src))
    scale = inner[rows, src] / energy[src]
    T = torch.zeros_like(inner)
    T[rows, src] = torch.where(scale.abs() < 1e-6, 1e-6, scale)
    return T


def average(model_a: nn.Module, model_b: nn.Module, share: float = 0.5) -> HyperbolicNet:
    """The network whose folded weights are `(1 - share) a + share b`; align the two first."""
    if not 0 <= share <= 1:
        raise ValueError(f"average: share must be in [0, 1], got {share}.")
    a, b = fold_norms(model_a), fold_norms(model_b)
    mine, theirs = a.state_dict(), b.state_dict()
    if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in theirs.items()}:
        raise ValueError("average: the networks differ in their weights' names or shapes.")
    for key, value in mine.items():
        if value.is_floating_point():
            value.lerp_(theirs[key], share)
    return a


def _distance(A: Tensor, B: Tensor) -> float:
    return float((A - B).norm() / A.norm().clamp_min(1e-300))
