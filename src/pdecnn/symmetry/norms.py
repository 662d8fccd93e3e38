"""Folding the normalisations that stand on the residual stream, so that a change of basis can act on the weights."""

import copy

from torch import nn

from pdecnn.models.hyperbolic import HyperbolicNet, fold_stream
from pdecnn.symmetry.streams import check_model


def fold_norms(model: nn.Module) -> HyperbolicNet:
    """A copy in inference mode whose norms on the stream (stem, end of block, skip) are folded into convolutions.

    Norms inside a block stay. So does the norm after the product of Equations (4), (5), which no convolution precedes.
    """
    original = check_model("fold_norms", model)
    dtype = next(original.parameters()).dtype
    folded = copy.deepcopy(original).eval().double()
    fold_stream(folded)
    return folded.requires_grad_(False).to(dtype)
