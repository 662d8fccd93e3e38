"""Inference and export to edge runtimes. Every exported file is loaded, run and compared with the model."""

from pdecnn.deploy.api import ExportReport, export, session
from pdecnn.deploy.check import Agreement, ExportError
from pdecnn.deploy.lower import lower
from pdecnn.deploy.ode import fix_steps
from pdecnn.deploy.optimize import optimize_for_inference
from pdecnn.deploy.served import Served
from pdecnn.deploy.sessions import session_options

__all__ = [
    "Agreement",
    "ExportError",
    "ExportReport",
    "Served",
    "export",
    "fix_steps",
    "lower",
    "optimize_for_inference",
    "session",
    "session_options",
]
