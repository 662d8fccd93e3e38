"""Folding the normalisations that stand on the residual stream, so that a change of basis can act on the weights."""

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.symmetry.streams import check_model


def fold(model: nn.Module) -> HyperbolicNet:
    """A copy in inference mode whose norms on the stream (stem, end of block, skip) are folded into convolutions.

    Norms inside a block stay. So does the norm after the product of Equation (4), which no convolution precedes.
    """
    original = check_model("fold", model)
    dtype = next(original.parameters()).dtype
    folded = copy.deepcopy(original).eval().double()
    _fold_pair(folded.stem, "conv", "bn")
    for block in folded.blocks():
        if hasattr(block, "mix") and type(block).__name__ != "Equation4":
            _fold_pair(block, "mix", "norm")
        if isinstance(block.skip, nn.Sequential):
            _fold_pair(block.skip, "0", "1")
    for parameter in folded.parameters():
        parameter.requires_grad_(False)
    return folded.to(dtype)


def _fold_pair(parent: nn.Module, conv: str, norm: str) -> None:
    convolution, normalisation = getattr(parent, conv), getattr(parent, norm)
    if isinstance(normalisation, nn.BatchNorm2d):
        fused = fuse_conv_bn_eval(convolution, normalisation)
        setattr(parent, conv, fused)
        setattr(parent, norm, nn.Identity())
    elif not isinstance(normalisation, nn.Identity):
        raise TypeError(
            f"fold: expected a BatchNorm2d at '{norm}' after '{conv}', got {type(normalisation).__name__}, which "
            "cannot be folded."
        )


def matrix(conv: nn.Conv2d) -> torch.Tensor:
    """The weight of a convolution as a matrix: `(out, in)` for 1x1, `(out, in k k)` else."""
    return conv.weight.detach().flatten(1)
