"""Giving a network of Equation (3) the full symmetry group, by lifting its blocks into CP form."""

import copy

from torch import nn

from pdecnn.layers.cp_block import lift
from pdecnn.layers.quasilinear import Equation3
from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.symmetry.streams import check_model


def lift_model(model: nn.Module) -> HyperbolicNet:
    """A copy that computes the same function and whose blocks carry the full group, at `f n^2` more weights a block.

    Example:
        >>> import timm, pdecnn
        >>> from pdecnn.symmetry import symmetry_of
        >>> model = timm.create_model("cifar_hyperbolic_eq3").eval()
        >>> symmetry_of(model)[3].label, symmetry_of(lift_model(model))[3].label
        ('signed permutations(64)', 'O(64)')
    """
    lifted = copy.deepcopy(check_model("lift_model", model))
    for stage in lifted.stages:
        assert isinstance(stage, nn.Sequential)
        for i, block in enumerate(stage):
            if not isinstance(block, Equation3):
                raise TypeError(f"lift_model: only networks of Equation (3) can be lifted, got {type(block).__name__}.")
            stage[i] = lift(block)
    return lifted
