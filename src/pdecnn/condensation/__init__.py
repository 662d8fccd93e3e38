"""Condense a CNN: find the runs of repeated blocks, plan, replace them, fit, distil."""

from pdecnn.condensation.blocks import register_block
from pdecnn.condensation.checkpoint import save_condensed
from pdecnn.condensation.convs import replace_convs
from pdecnn.condensation.distill import distill
from pdecnn.condensation.fit import Fitted, fit_layers
from pdecnn.condensation.hub import HubError, from_pretrained, push_to_hub
from pdecnn.condensation.plan import Plan, plan
from pdecnn.condensation.replacements import register_replacement
from pdecnn.condensation.report import Report, condense
from pdecnn.condensation.saved import load, save
from pdecnn.condensation.site import Run, Skipped

__all__ = [
    "Fitted",
    "HubError",
    "Plan",
    "Report",
    "Run",
    "Skipped",
    "condense",
    "distill",
    "fit_layers",
    "from_pretrained",
    "load",
    "plan",
    "push_to_hub",
    "register_block",
    "register_replacement",
    "replace_convs",
    "save",
    "save_condensed",
]
