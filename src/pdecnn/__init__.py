"""Compact convolutional networks from partial differential equations."""

from importlib.metadata import version as _version

from pdecnn import functional as functional
from pdecnn import kernels as kernels
from pdecnn import layers as layers
from pdecnn import models as models
from pdecnn.analysis.cost import profile as profile
from pdecnn.replace import replace_convs as replace_convs

__version__ = _version("pdecnn")
