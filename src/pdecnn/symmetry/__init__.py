"""The continuous symmetry of hyperbolic networks: group actions on weights that leave the function unchanged."""

from pdecnn.symmetry.fold import fold as fold
from pdecnn.symmetry.groups import Group as Group
from pdecnn.symmetry.streams import Restriction as Restriction
from pdecnn.symmetry.streams import StageSymmetry as StageSymmetry
from pdecnn.symmetry.streams import register_nonlinearity as register_nonlinearity
from pdecnn.symmetry.streams import symmetry_of as symmetry_of
from pdecnn.symmetry.transform import random_transforms as random_transforms
from pdecnn.symmetry.transform import transform as transform
from pdecnn.symmetry.transform import verify as verify
