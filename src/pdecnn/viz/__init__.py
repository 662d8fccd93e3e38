"""Figures and the HTML report; matplotlib is imported only when a figure is drawn."""

from pdecnn.viz.report import write_report

__all__ = ["write_report"]
