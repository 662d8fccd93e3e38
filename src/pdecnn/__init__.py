"""Compact convolutional networks from partial differential equations."""

from importlib.metadata import version as _version

from pdecnn import functional as functional
from pdecnn import layers as layers
from pdecnn import models as models
from pdecnn import reference as reference
from pdecnn.analysis.cost import profile as profile
from pdecnn.condensation.blocks import register_block as register_block
from pdecnn.condensation.convs import replace_convs as replace_convs
from pdecnn.condensation.distill import distill as distill
from pdecnn.condensation.plan import Plan as Plan
from pdecnn.condensation.plan import plan as plan
from pdecnn.condensation.report import condense as condense
from pdecnn.condensation.saved import load as load
from pdecnn.condensation.saved import save as save
from pdecnn.deploy.api import export as export
from pdecnn.deploy.optimize import optimize_for_inference as optimize_for_inference

__version__ = _version("pdecnn")
