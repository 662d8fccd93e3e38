"""Folding the normalisations that stand on the residual stream, so that a change of basis can act on the weights."""

import copy

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from pdecnn.layers.quasilinear import Equation4
from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.shared.modules import replace
from pdecnn.symmetry.streams import check_model


def fold_norms(model: nn.Module) -> HyperbolicNet:
    """A copy in inference mode whose norms on the stream (stem, end of block, skip) are folded into convolutions.

    Norms inside a block stay. So does the norm after the product of Equations (4), (5), which no convolution precedes.
    """
    original = check_model("fold_norms", model)
    dtype = next(original.parameters()).dtype
    folded = copy.deepcopy(original).eval().double()
    pairs = [(folded.stem, "conv", "bn")]
    for block in folded.blocks():
        if hasattr(block, "mix") and not isinstance(block, Equation4):
            pairs.append((block, "mix", "norm"))
        if isinstance(block.skip, nn.Sequential):
            pairs.append((block.skip, "0", "1"))
    new: dict[nn.Module, nn.Module] = {}
    for parent, conv_name, norm_name in pairs:
        conv, norm = parent.get_submodule(conv_name), parent.get_submodule(norm_name)
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            new |= {conv: fuse_conv_bn_eval(conv, norm), norm: nn.Identity()}
        elif not isinstance(norm, nn.Identity):
            raise TypeError(
                f"fold_norms: expected a BatchNorm2d at '{norm_name}' after '{conv_name}', got {type(norm).__name__}, "
                "which cannot be folded."
            )
    replace(folded, lambda module: new.get(module, module))
    return folded.requires_grad_(False).to(dtype)
