"""Condense a CNN: find the runs of repeated blocks, plan, replace them by Global layers, fit, distil."""

from pdecnn.condensation.blocks import register_block as register_block
from pdecnn.condensation.checkpoint import save_condensed as save_condensed
from pdecnn.condensation.distill import distill as distill
from pdecnn.condensation.fit import Fitted as Fitted
from pdecnn.condensation.fit import fit_layers as fit_layers
from pdecnn.condensation.plan import Plan as Plan
from pdecnn.condensation.plan import plan as plan
from pdecnn.condensation.report import Report as Report
from pdecnn.condensation.report import condense as condense
from pdecnn.condensation.site import Run as Run
from pdecnn.condensation.site import Skipped as Skipped
