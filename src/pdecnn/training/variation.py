"""A regulariser for networks that discretise an evolution equation: neighbouring layers should have similar weights."""

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn


def weight_variation(model: nn.Module, kinds: tuple[type[nn.Module], ...] | None = None) -> Tensor:
    r"""`sum_l |w_{l+1} - w_l|^2` over neighbouring blocks whose weights have the same shapes.

    If the layers are time steps of one equation with slowly varying coefficients, this is the squared time derivative
    of the coefficients. Add it to the loss with a small factor.

    Args:
        model: Network in which every `nn.Sequential` or `nn.ModuleList` is searched for neighbouring blocks.
        kinds: Types of blocks to compare; by default the quasi-linear blocks and those of waves.

    Example:
        >>> from pdecnn.layers import Equation3
        >>> weight_variation(nn.Sequential(Equation3(4), Equation3(4))) > 0
        tensor(True)
    """
    if kinds is None:
        from pdecnn.layers.quasilinear import QuasilinearBlock
        from pdecnn.models.wave import WaveBlock

        kinds = (QuasilinearBlock, WaveBlock)
    total: Tensor | None = None
    for container in model.modules():
        if isinstance(container, (nn.Sequential, nn.ModuleList)):
            blocks = [block for block in container if isinstance(block, kinds)]
            for before, after in pairwise(blocks):
                for difference in _differences(before, after):
                    total = difference if total is None else total + difference
    if total is None:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"weight_variation: no two neighbouring blocks ({names}) of the same shape in the model.")
    return total


def _differences(before: nn.Module, after: nn.Module) -> Iterable[Tensor]:
    earlier, later = dict(before.named_parameters()), dict(after.named_parameters())
    if earlier.keys() == later.keys() and all(earlier[key].shape == later[key].shape for key in earlier):
        for key in earlier:
            if earlier[key].ndim > 1:  # matrices and stencils; gains and shifts of normalisations are left alone
                yield torch.sum((later[key] - earlier[key]) ** 2)
