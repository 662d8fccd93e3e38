"""Changing the basis of a network's residual streams: other weights, the same function."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.symmetry.actions import act_on_input, act_on_output, read, write
from pdecnn.symmetry.norms import fold_norms
from pdecnn.symmetry.streams import StageSymmetry, symmetry_of, walk


def transform(model: nn.Module, T: Mapping[int, Tensor], *, force: bool = False) -> HyperbolicNet:
    """A new network with the same outputs, in whose stage `s` the stream `u` has become `T[s] u`.

    The norms on the stream are folded, so the result is a network for inference. Everything is computed in float64 and
    rounded once to the type of the model.

    Args:
        model: A hyperbolic network; it is left as it is.
        T: A matrix `(n, n)` for every stage to change, by its number from 1, from the group that `symmetry_of` gives.
        force: Apply `T` even if it is outside the group, which changes the function.

    Example:
        >>> import timm
        >>> from pdecnn.symmetry import symmetry_of
        >>> model = timm.create_model("cifar_hyperbolic_cp").eval()
        >>> turned = transform(model, {2: symmetry_of(model)[2].group.sample(32)})
        >>> verify(model, turned, torch.randn(1, 3, 32, 32)) < 1e-5
        True
    """
    symmetry = symmetry_of(model)
    matrices = {stage: _checked(stage, matrix, symmetry, force) for stage, matrix in T.items()}
    dtype = next(model.parameters()).dtype
    changed = fold_norms(copy.deepcopy(model).double())
    apply_in_place(changed, matrices)
    return changed.to(dtype)


def apply_in_place(folded: HyperbolicNet, T: Mapping[int, Tensor]) -> None:
    """Lets the matrices act on the weights of a folded network, in the type of its weights."""
    dtype = next(folded.parameters()).dtype
    T = {stage: matrix.to(dtype) for stage, matrix in T.items()}
    if 1 in T:
        write(folded.stem.conv, T[1])  # type: ignore[arg-type]
    for source, stage, _, block in walk(folded):
        if source in T:
            act_on_input(block, T[source])
        if stage in T:
            act_on_output(block, T[stage])
        if isinstance(block.skip, nn.Sequential):
            if source in T:
                read(block.skip[0], T[source])
            if stage in T:
                write(block.skip[0], T[stage])
    last = len(folded.stages)
    if last in T and isinstance(folded.fc, nn.Linear):
        read(folded.fc, T[last])


@torch.no_grad()
def verify(model: nn.Module, transformed: nn.Module, x: Tensor, dtype: torch.dtype = torch.float64) -> float:
    """The largest difference of the outputs, relative to the largest output, both networks computed in `dtype`.

    A non-finite difference gives infinity.
    """
    x = x.to(dtype)
    a, b = (copy.deepcopy(network).eval().to(dtype)(x) for network in (model, transformed))
    error = ((a - b).abs().max() / a.abs().max().clamp_min(torch.finfo(dtype).tiny)).item()
    return error if error == error else float("inf")


def random_transforms(
    model: nn.Module, generator: torch.Generator | None = None, spread: float = 0.5
) -> dict[int, Tensor]:
    """A random element of the allowed group for every stage."""
    return {s: symmetry.group.sample(symmetry.width, generator, spread) for s, symmetry in symmetry_of(model).items()}


def _checked(stage: int, matrix: Tensor, symmetry: dict[int, StageSymmetry], force: bool) -> Tensor:
    if stage not in symmetry:
        raise ValueError(f"transform: there is no stage {stage!r}; the stages are 1 to {len(symmetry)}.")
    n = symmetry[stage].width
    if matrix.shape != (n, n):
        raise ValueError(f"transform: expected T of shape ({n}, {n}) for stage {stage}, got {tuple(matrix.shape)}.")
    tolerance = 1e-9 if matrix.dtype == torch.float64 else 1e-4
    problem = symmetry[stage].group.violation(matrix, tolerance)
    if problem is not None and not force:
        raise ValueError(
            f"transform: T of stage {stage} is outside {symmetry[stage].label}: {problem}. The group is restricted by "
            f"{symmetry[stage].reason}. Use Group.project, or force=True to see what breaks."
        )
    return matrix.detach().double()
