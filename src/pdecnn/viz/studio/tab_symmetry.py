"""The tab Symmetry: turn the weights of a hyperbolic net, and see its logits stand still."""

from typing import Any

import gradio as gr

from pdecnn.viz.studio import turning
from pdecnn.viz.studio.nets import Net, open_net, pick
from pdecnn.viz.studio.pictures import to_input
from pdecnn.viz.studio.serving import Options
from pdecnn.viz.studio.turning import Turnable
from pdecnn.viz.studio.wiring import guarded, html

FIRST = "fashion_hyperbolic_cp.fashion_mini"
NAMES = (FIRST, "cifar_hyperbolic_cp", "cifar_hyperbolic_eq3")
QUIET: dict[str, Any] = {"show_progress": "hidden"}


def make(page: gr.Blocks, options: Options) -> None:
    """Lays the tab out and connects it."""
    net, turnable = gr.State(None, time_to_live=86400), gr.State(None, time_to_live=86400)
    with gr.Row(equal_height=True):
        name = gr.Dropdown(
            list(NAMES),
            value=FIRST,
            allow_custom_value=True,
            label="Hyperbolic net",
            scale=4,
            min_width=280,
            elem_id="symmetry-name",
            info="A registered hyperbolic net, or the folder of a checkpoint of one.",
        )
        open_button = gr.Button(
            "Open", variant="primary", scale=0, min_width=110, elem_id="symmetry-open", elem_classes="go"
        )
    with gr.Row():
        t = gr.Slider(0, 1, 0.3, step=0.01, label="How far to turn", scale=4, elem_id="symmetry-t")
        number = gr.Slider(0, 99, 0, step=1, label="Image", scale=2, elem_id="symmetry-image")
    stages = gr.CheckboxGroup([], label="Stages that turn", elem_id="symmetry-stages")
    break_it = gr.Checkbox(False, label="Leave the group, to see what breaks", elem_id="symmetry-break")
    says = html("symmetry-says")
    with gr.Row():
        with gr.Column(scale=2):
            gr.Markdown("#### Logits")
            logits = html("symmetry-logits")
        with gr.Column(scale=3):
            gr.Markdown("#### Weights")
            weights = html("symmetry-weights")
    gr.Markdown("#### Which group each stage has, and why")
    groups = html("symmetry-groups")

    @guarded
    def open_it(name: str, number: int, t: float, break_it: bool) -> tuple[Any, ...]:
        found = open_net(name or "", local=options.local)
        ready = turning.open_turnable(found, to_input(pick(found, int(number)), found.wanted))
        every = [(f"{s}: {known.label}", s) for s, known in ready.stages.items()]
        chosen = [s for _, s in every]
        box = gr.CheckboxGroup(every, value=chosen)
        return found, ready, box, turning.group_table(ready), *turned(ready, t, chosen, break_it)

    def turned(ready: Turnable, t: float, stages: list[int], break_it: bool) -> tuple[str, str, str]:
        found = turning.turn(ready, float(t), list(stages), break_it=break_it)
        return turning.says(found, break_it), turning.logit_bars(found, ready.net), turning.weight_pictures(found)

    shown = [says, logits, weights]
    opening: dict[str, Any] = {
        "fn": open_it,
        "inputs": [name, number, t, break_it],
        "outputs": [net, turnable, stages, groups, *shown],
        "show_progress_on": says,
    }
    page.load(**opening)
    gr.on([open_button.click, name.select], **opening)

    @guarded
    def turn(ready: Turnable | None, t: float, stages: list[int], break_it: bool) -> tuple[Any, ...]:
        return (gr.skip(),) * 3 if ready is None else turned(ready, t, stages, break_it)

    gr.on(
        [t.change, stages.input, break_it.input],
        turn,
        [turnable, t, stages, break_it],
        shown,
        trigger_mode="always_last",
        **QUIET,
    )

    @guarded
    def another(found: Net | None, number: int, t: float, stages: list[int], break_it: bool) -> tuple[Any, ...]:
        if found is None:
            return (gr.skip(),) * 4
        ready = turning.open_turnable(found, to_input(pick(found, int(number)), found.wanted))
        return ready, *turned(ready, t, stages, break_it)

    number.change(another, [net, number, t, stages, break_it], [turnable, *shown], trigger_mode="always_last", **QUIET)
