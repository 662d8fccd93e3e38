"""The studio: a page in the browser that condenses nets, looks into them, turns their weights and compares runs.

What is computed and drawn is in plain functions; the files `tab_*.py` alone know Gradio, which is imported when a page
is served.
"""

from pdecnn.viz.studio.serving import Options, serve

__all__ = ["Options", "serve"]
