"""The continuous symmetry of hyperbolic networks: group actions on weights that leave the function unchanged."""

from pdecnn.symmetry.align import Alignment as Alignment
from pdecnn.symmetry.align import align as align
from pdecnn.symmetry.align import average as average
from pdecnn.symmetry.align import procrustes as procrustes
from pdecnn.symmetry.fold import fold as fold
from pdecnn.symmetry.gauge import QuantisationGauge as QuantisationGauge
from pdecnn.symmetry.gauge import quantise_gauge as quantise_gauge
from pdecnn.symmetry.groups import Group as Group
from pdecnn.symmetry.lifting import lift_model as lift_model
from pdecnn.symmetry.sparsify import Sparsification as Sparsification
from pdecnn.symmetry.sparsify import sparsify as sparsify
from pdecnn.symmetry.streams import Restriction as Restriction
from pdecnn.symmetry.streams import StageSymmetry as StageSymmetry
from pdecnn.symmetry.streams import register_nonlinearity as register_nonlinearity
from pdecnn.symmetry.streams import symmetry_of as symmetry_of
from pdecnn.symmetry.transform import random_transforms as random_transforms
from pdecnn.symmetry.transform import transform as transform
from pdecnn.symmetry.transform import verify as verify
