"""The continuous symmetry of hyperbolic networks: group actions on weights that leave the function unchanged."""

from pdecnn.symmetry.align import Alignment, align, average, procrustes
from pdecnn.symmetry.fold import fold
from pdecnn.symmetry.gauge import QuantisationGauge, quantise_gauge
from pdecnn.symmetry.groups import Group
from pdecnn.symmetry.lifting import lift_model
from pdecnn.symmetry.sparsify import Sparsification, sparsify
from pdecnn.symmetry.streams import Restriction, StageSymmetry, register_nonlinearity, symmetry_of
from pdecnn.symmetry.transform import random_transforms, transform, verify

__all__ = [
    "Alignment",
    "Group",
    "QuantisationGauge",
    "Restriction",
    "Sparsification",
    "StageSymmetry",
    "align",
    "average",
    "fold",
    "lift_model",
    "procrustes",
    "quantise_gauge",
    "random_transforms",
    "register_nonlinearity",
    "sparsify",
    "symmetry_of",
    "transform",
    "verify",
]
