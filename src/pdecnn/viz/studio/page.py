"""The page: four tabs."""

import gradio as gr

from pdecnn.viz.studio import tab_compare, tab_condense, tab_inside, tab_symmetry
from pdecnn.viz.studio.serving import Options
from pdecnn.viz.studio.wiring import html

HEAD = "<h1>pdecnn studio</h1><p class='quiet'>Compact convolutional networks from partial differential equations.</p>"
KEPT, OLD = 3600, 86400  # seconds between clean-ups of files, and their age then


def make_page(options: Options) -> gr.Blocks:
    """All tabs; every visitor has a state of their own."""
    with gr.Blocks(title="pdecnn studio", analytics_enabled=False, delete_cache=(KEPT, OLD)) as page:
        html("studio-head", HEAD)
        with gr.Tabs():
            with gr.Tab("Condense"):
                tab_condense.make(page, options)
            with gr.Tab("Look inside"):
                tab_inside.make(page, options)
            with gr.Tab("Symmetry"):
                tab_symmetry.make(page, options)
            with gr.Tab("Compare"):
                tab_compare.make(page, options)
    return page
