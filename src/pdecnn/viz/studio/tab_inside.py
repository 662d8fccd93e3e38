"""The tab Look inside: one image through the Global layers of a net."""

from typing import Any

import gradio as gr
from torch import Tensor

from pdecnn.viz.studio import inside as insides
from pdecnn.viz.studio import inside_drawn as drawn
from pdecnn.viz.studio.drawing import note, tile, tiles
from pdecnn.viz.studio.inside import Inside
from pdecnn.viz.studio.nets import Net, gallery, open_net, pick
from pdecnn.viz.studio.pictures import MAX_BYTES, MAX_PIXELS, read_drawing, read_upload, to_input, to_picture
from pdecnn.viz.studio.serving import Options
from pdecnn.viz.studio.wiring import guarded, html

FIRST = "cifar_resnet_tiny_global.cifar10"
NAMES = (FIRST, "mnist_toy_global.mnist", "cifar_resnet32_global", "cifar_wrn_tiny_global")
SECONDS = 0.7  # between two states
QUIET: dict[str, Any] = {"show_progress": "hidden"}


def make(page: gr.Blocks, options: Options) -> None:
    """Lays the tab out and connects it."""
    net, inside = gr.State(None, time_to_live=86400), gr.State(None, time_to_live=86400)
    with gr.Row(equal_height=True):
        name = gr.Dropdown(
            list(NAMES),
            value=FIRST,
            allow_custom_value=True,
            label="Model with Global layers",
            scale=4,
            min_width=280,
            elem_id="inside-name",
            info="A registered name, or the folder of a checkpoint or of a condense job.",
        )
        open_button = gr.Button(
            "Open", variant="primary", scale=0, min_width=110, elem_id="inside-open", elem_classes="go"
        )
    with gr.Row():
        with gr.Column(scale=3), gr.Tabs():
            with gr.Tab("Pick"):
                images = gr.Gallery(
                    columns=6,
                    height=260,
                    allow_preview=False,
                    show_label=False,
                    object_fit="contain",
                    interactive=False,
                    elem_id="inside-gallery",
                    buttons=[],
                )
                number = gr.Slider(0, 99, 0, step=1, label="or by its number", elem_id="inside-number")
            with gr.Tab("Draw"):
                pad = gr.Sketchpad(
                    height=320,
                    canvas_size=(280, 280),
                    fixed_canvas=True,
                    layers=False,
                    show_label=False,
                    elem_id="inside-pad",
                    brush=gr.Brush(default_size=22, colors=["#000000", "#1f6f8b", "#b5493a"], color_mode="fixed"),
                )
                draw_button = gr.Button("Use the drawing", elem_id="inside-draw")
            with gr.Tab("Upload"):
                upload = gr.File(label="An image", elem_id="inside-upload", height=140)
                most = f"At most {MAX_BYTES // 2**20} MB and {MAX_PIXELS // 10**6} million pixels"
                html("inside-limits", note(f"{most}; the middle square is used."))
        with gr.Column(scale=2):
            answer = html("inside-answer")
    with gr.Row():
        layer = gr.Dropdown([], label="Layer", scale=3, min_width=280, elem_id="inside-layer")
        channel = gr.Slider(
            -1, 0, -1, step=1, label="Channel (-1: mean of all)", scale=2, min_width=240, elem_id="inside-channel"
        )
    fields = html("inside-fields")
    gr.Markdown("#### The states, step by step")
    with gr.Row(equal_height=True):
        k = gr.Slider(0, insides.MOST, 0, step=1, label="k, steps made", scale=4, elem_id="inside-k")
        play = gr.Button("Play", scale=0, min_width=110, elem_id="inside-play", elem_classes="go")
    states = html("inside-states")
    with gr.Row():
        with gr.Column(scale=3):
            gr.Markdown("#### Prediction and confidence against K")
            chart = html("inside-chart")
        with gr.Column(scale=4):
            gr.Markdown("#### Where a pixel comes from: click one, or give its x and y")
            with gr.Row():
                plane = gr.Image(
                    interactive=False,
                    show_label=False,
                    buttons=[],
                    height=250,
                    elem_id="inside-plane",
                    min_width=200,
                    alt_text="the state after k steps: click a pixel",
                )
                with gr.Column(min_width=140):
                    across = gr.Number(None, label="x", precision=0, elem_id="inside-x")
                    down = gr.Number(None, label="y", precision=0, elem_id="inside-y")
                    show_button = gr.Button("Show", elem_id="inside-reach-button")
            reach = html("inside-reach")
    clock = gr.Timer(SECONDS, active=False)

    @guarded
    def open_it(name: str) -> tuple[Any, ...]:
        found = open_net(name or "", local=options.local)
        if not insides.pde_layers(found.model):
            insides.look(found, None)  # type: ignore[arg-type]  # says what is missing
        return (found, gallery(found), *see(found, to_input(pick(found, 0), found.wanted)))

    def see(found: Net | None, x: Tensor) -> tuple[Any, ...]:
        if found is None:
            raise ValueError("Open a model first.")
        made = insides.look(found, x)
        names = [(view.name(), i) for i, view in enumerate(made.layers)]
        shown = tiles([tile(to_picture(x, found.wanted), "as the net is given it")], "one")
        return (
            made,
            f'<div class="answer">{shown}<div>{drawn.verdict(made)}</div></div>',
            gr.Dropdown(names, value=0),
            gr.Slider(-1, len(made.layers[0].u) - 1, value=-1),
            drawn.confidence_chart(made),
            gr.Slider(value=made.layers[0].K),
            *both(made, 0, -1, made.layers[0].K),
        )

    def both(made: Inside, layer: int, channel: int, k: int) -> tuple[Any, ...]:
        view = made.layers[layer]
        nowhere = (None, None, "")
        return drawn.fields(view, channel), drawn.state(view, channel, k), drawn.plane(view, channel, k), *nowhere

    views = [fields, states, plane, across, down, reach]
    seen = [inside, answer, layer, channel, chart, k, *views]
    opening: dict[str, Any] = {
        "fn": open_it,
        "inputs": name,
        "outputs": [net, images, *seen],
        "show_progress_on": answer,
    }
    page.load(**opening)
    gr.on([open_button.click, name.select], **opening)

    @guarded
    def pick_one(found: Net | None, number: int) -> tuple[Any, ...]:
        if found is None:
            raise ValueError("Open a model first.")
        return see(found, to_input(pick(found, int(number)), found.wanted))

    def clicked(event: gr.SelectData) -> int:
        return int(event.index if isinstance(event.index, int) else event.index[0])

    images.select(clicked, None, number, **QUIET)
    number.change(pick_one, [net, number], seen, trigger_mode="always_last", **QUIET)

    @guarded
    def draw_one(found: Net | None, sketch: Any) -> tuple[Any, ...]:
        if found is None:
            raise ValueError("Open a model first.")
        return see(found, to_input(read_drawing(sketch, bright=found.wanted.shape[0] == 1), found.wanted))

    draw_button.click(draw_one, [net, pad], seen, show_progress_on=answer)

    @guarded
    def take(found: Net | None, path: str | None) -> tuple[Any, ...]:
        if found is None or path is None:
            raise ValueError("Open a model first, then choose a file.")
        return see(found, to_input(read_upload(path), found.wanted))

    upload.upload(take, [net, upload], seen, show_progress_on=answer)

    at = [inside, layer, channel, k, across, down]

    @guarded
    def choose(made: Inside | None, layer: int | None, channel: int, k: int) -> tuple[Any, ...]:
        if made is None or layer is None or layer >= len(made.layers):
            return (gr.skip(),) * (1 + len(views))
        most = len(made.layers[layer].u) - 1
        channel = min(int(channel), most)
        return gr.Slider(maximum=most, value=channel), *both(made, layer, channel, int(k))

    layer.input(choose, at[:4], [channel, *views], trigger_mode="always_last", **QUIET)

    @guarded
    def of_channel(made: Inside | None, layer: int | None, channel: int, *rest: Any) -> tuple[Any, ...]:
        if made is None or layer is None or layer >= len(made.layers):
            return (gr.skip(),) * 3
        return drawn.fields(made.layers[layer], int(channel)), *step_to(made, layer, channel, *rest)

    @guarded
    def step_to(made: Inside | None, layer: int | None, channel: int, k: int, *pixel: float | None) -> tuple[Any, ...]:
        if made is None or layer is None or layer >= len(made.layers):
            return (gr.skip(),) * 2
        view = made.layers[layer]
        return drawn.state(view, int(channel), int(k)), drawn.plane(view, int(channel), int(k), chosen(*pixel))

    def chosen(x: float | None, y: float | None) -> tuple[int, int] | None:
        return None if x is None or y is None else (int(y), int(x))

    channel.input(of_channel, at, [fields, states, plane], trigger_mode="always_last", **QUIET)
    k.change(step_to, at, [states, plane], trigger_mode="always_last", **QUIET)
    playing = gr.State(False)

    def toggle(on: bool) -> tuple[Any, ...]:
        return not on, gr.Timer(active=not on), gr.Button("Play" if on else "Stop")

    play.click(toggle, playing, [playing, clock, play], **QUIET)
    clock.tick(lambda k: (int(k) + 1) % (insides.MOST + 1), k, k, **QUIET)

    @guarded
    def reached(made: Inside | None, layer: int | None, channel: int, k: int, *pixel: float | None) -> tuple[Any, ...]:
        if made is None or layer is None or (mark := chosen(*pixel)) is None:
            return gr.skip(), gr.skip()
        shown = drawn.plane(made.layers[layer], int(channel), int(k), mark)
        try:
            return shown, drawn.reach_pictures(made, layer, *mark, int(k))
        except ValueError as error:  # what is drawn is never of another pixel than the fields say
            return shown, note(str(error), "trouble")

    gr.on([show_button.click, across.submit, down.submit, k.release], reached, at, [plane, reach], **QUIET)

    def point_at(made: Inside | None, layer: int | None, event: gr.SelectData) -> tuple[Any, ...]:
        if made is None or layer is None:
            return gr.skip(), gr.skip()
        y, x = drawn.pixel_at(made.layers[layer], *event.index)
        return x, y

    pointed = plane.select(point_at, [inside, layer], [across, down], **QUIET)
    pointed.success(reached, at, [plane, reach], **QUIET)
