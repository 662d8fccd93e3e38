"""Costs, latency and the tables of the papers: functions that return dataclasses."""

from pdecnn.analysis.cost import CostReport, profile
from pdecnn.analysis.latency import Timing, measure

__all__ = ["CostReport", "Timing", "measure", "profile"]
