r"""Choosing the basis in which the weights suffer least from rounding to integers.

A matrix rounded to b bits with one scale for all entries has an error of about `max|W| / (2^b - 1) / sqrt(3)` for each
entry, so a basis is good if the largest entries are small: outliers are turned into the bulk. The search minimises a
smooth maximum, `(|W|_p / |W|_2)^2` with p rising from 4 to 32, and the result is judged by the true rounding error.
"""

import copy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.symmetry.groups import Group
from pdecnn.symmetry.matrices import continuous, descend, stream_matrices
from pdecnn.symmetry.norms import fold_norms
from pdecnn.symmetry.streams import symmetry_of
from pdecnn.symmetry.transform import transform, verify


@dataclass(frozen=True)
class QuantisationGauge:
    """What `quantise_gauge` found.

    Attributes:
        model: The equivalent network with the found weights, in full precision.
        transforms: The group elements that lead to it.
        weight_error_before: Relative error of rounding the stream matrices as they were.
        weight_error_after: The same in the new basis.
        output_error_before: Relative output error of the rounded network, as it was.
        output_error_after: The same in the new basis.
    """

    model: HyperbolicNet
    transforms: dict[int, Tensor]
    weight_error_before: float
    weight_error_after: float
    output_error_before: float
    output_error_after: float


def quantise_gauge(
    model: nn.Module,
    x: Tensor,
    *,
    bits: int = 8,
    per_channel: bool = False,
    steps: int = 300,
    lr: float = 2e-2,
    seed: int = 0,
) -> QuantisationGauge:
    """Searches the symmetry group for a basis in which rounding the weights costs least.

    The basis as it is, the descent from it and the descent from a random rotation are compared, and the one in which
    the weights' rounding error is smallest is taken: that error never grows. What it means for the outputs is measured
    on `x` and reported, but it is not what is minimised.

    Args:
        model: A hyperbolic network; it is left as it is.
        x: Images on which the output error is measured.
        bits: Bits of a weight.
        per_channel: Whether each row of a matrix has a scale of its own.
        steps: Steps of gradient descent.
        lr: Learning rate.
        seed: Seed of the random rotation.
    """
    if bits < 2:
        raise ValueError(f"quantise_gauge: bits must be at least 2, got {bits}.")
    symmetry = continuous(symmetry_of(model), (Group.GL, Group.O, Group.MONOMIAL, Group.POSITIVE_MONOMIAL))
    if not symmetry:
        raise ValueError("quantise_gauge: no stage has a continuous symmetry.")
    folded = fold_norms(copy.deepcopy(model).double())
    matrices = stream_matrices(folded)
    generator = torch.Generator().manual_seed(seed)
    identity = {s: torch.eye(q.width, dtype=torch.float64) for s, q in symmetry.items()}
    random = {s: (q.group & Group.O).sample(q.width, generator) for s, q in symmetry.items()}
    candidates = [identity]
    for start in (identity, random):
        loss = partial(_smooth_maximum, per_channel=per_channel)
        candidates.append(descend(matrices, symmetry, start, loss, steps=steps, lr=lr))

    def weight_error(T: dict[int, Tensor]) -> float:
        return _weight_error([m.turned(T) for m in matrices], bits, per_channel)

    def output_error(T: dict[int, Tensor]) -> float:
        return verify(folded, quantised(transform(folded, T), bits, per_channel), x)

    T = min(candidates, key=weight_error)
    return QuantisationGauge(
        model=transform(model, T),
        transforms=T,
        weight_error_before=weight_error(identity),
        weight_error_after=weight_error(T),
        output_error_before=output_error(identity),
        output_error_after=output_error(T),
    )


def quantised(folded: HyperbolicNet, bits: int = 8, per_channel: bool = False) -> HyperbolicNet:
    """A copy whose stream matrices are rounded to `bits` bits (and kept as floating-point numbers)."""
    rounded = copy.deepcopy(folded)
    for m in stream_matrices(rounded):
        m.layer.weight.data = round_weights(m.weight, bits, per_channel).view_as(m.layer.weight)
    return rounded


def round_weights(W: Tensor, bits: int = 8, per_channel: bool = False) -> Tensor:
    """`W` rounded to symmetric integers of `bits` bits times one scale, or one for each row.

    Example:
        >>> round_weights(torch.tensor([[1.27, 0.004, -0.006]]))
        tensor([[ 1.2700,  0.0000, -0.0100]])
    """
    levels = 2 ** (bits - 1) - 1
    scale = (W.abs().amax(1, keepdim=True) if per_channel else W.abs().max()).clamp_min(1e-30) / levels
    rounded: Tensor = (W / scale).round().clamp(-levels, levels) * scale
    return rounded


def _weight_error(turned: list[Tensor], bits: int, per_channel: bool) -> float:
    relative = [(round_weights(W, bits, per_channel) - W).square().sum() / W.square().sum() for W in turned]
    return torch.stack(relative).mean().sqrt().item()


def _smooth_maximum(turned: list[Tensor], progress: float, per_channel: bool) -> Tensor:
    p = 4.0 * 8.0**progress
    terms = []
    for W in turned:
        rows = W if per_channel else W.reshape(1, -1)  # numbers that share a scale
        top = rows.abs().amax(1, keepdim=True).detach().clamp_min(1e-30)
        largest = top * (rows.abs() / top).pow(p).sum(1, keepdim=True).pow(1 / p)
        terms.append(largest.square().sum() * rows.shape[1] / W.square().sum())
    return torch.stack(terms).mean()
