"""The tab Compare: accuracy against milliseconds of every run that result files tell of."""

from typing import Any

import gradio as gr

from pdecnn.viz.studio import runs
from pdecnn.viz.studio.drawing import note
from pdecnn.viz.studio.runs import Entry
from pdecnn.viz.studio.serving import Options
from pdecnn.viz.studio.wiring import guarded, html, shown

PROGRESS = gr.Progress()
NONE = (
    "There are no result files here. Start pdecnn studio where there is a folder results, or name folders with "
    "--results; a finished job of pdecnn condense is such a folder too."
)


def make(page: gr.Blocks, options: Options) -> None:
    """Lays the tab out and connects it."""
    entries = gr.State([])
    about = html("compare-about")
    with gr.Row():
        data = gr.CheckboxGroup([], label="Datasets", scale=3, elem_id="compare-data")
        runtime = gr.Radio([], label="Runtime", scale=2, elem_id="compare-runtime")
    with gr.Row(equal_height=True):
        text = gr.Textbox("", label="Name or file contains", scale=4, elem_id="compare-text")
        measure_button = gr.Button(
            "Time the rest here", scale=0, min_width=220, elem_id="compare-measure", elem_classes="go"
        )
        stop_button = gr.Button("Cancel", scale=0, min_width=110, elem_id="compare-stop", elem_classes="go")
    picture = html("compare-chart")
    listing = html("compare-table")

    def draw(found: list[Entry], data: list[str], runtime: str | None, text: str) -> tuple[str, str]:
        if not found:
            return "", ""
        some = runs.chosen(found, data, text)
        return runs.picture(some, runtime or ""), runs.listing(some, runtime or "")

    @guarded
    def read() -> tuple[Any, ...]:
        found, troubles = runs.read_runs(options.results)
        said = note(f"{len(found)} runs from {', '.join(map(str, options.results))}.") if found else note(NONE, "says")
        return (
            found,
            said + "".join(note(line) for line in troubles),
            *choices(found, "optimized", runs.datasets(found), ""),
        )

    def choices(found: list[Entry], first: str, data: list[str], text: str) -> tuple[Any, ...]:
        times = runs.runtimes(found)
        runtime = first if first in times else next(iter(times), None)
        group = gr.CheckboxGroup(runs.datasets(found), value=data)
        return group, gr.Radio(times, value=runtime), *draw(found, data, runtime, text)

    page.load(read, None, [entries, about, data, runtime, picture, listing])
    gr.on(
        [data.input, runtime.input, text.change],
        guarded(draw),
        [entries, data, runtime, text],
        [picture, listing],
        trigger_mode="always_last",
        show_progress="hidden",
    )

    @guarded
    def measure(found: list[Entry], data: list[str], text: str, progress: gr.Progress = PROGRESS) -> tuple[Any, ...]:
        timed, troubles = runs.measure_here(found, shown(progress))
        said = note(f"Timed here: {sum(runs.HERE in e.times for e in timed)} networks.", "says")
        return timed, said + "".join(note(line) for line in troubles), *choices(timed, runs.HERE, data, text)

    event = measure_button.click(
        measure, [entries, data, text], [entries, about, data, runtime, picture, listing], show_progress_on=about
    )
    stop_button.click(None, None, None, cancels=[event])
