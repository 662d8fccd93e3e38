"""The tab Condense: a net, its strip, a plan to edit run by run, what it costs, and the job."""

from functools import partial
from typing import Any

import gradio as gr

from pdecnn.condensation.example import DATA
from pdecnn.condensation.replacements import STEPS
from pdecnn.layers.transport import MAX_K
from pdecnn.viz.studio import jobs, planning, strip
from pdecnn.viz.studio.drawing import note
from pdecnn.viz.studio.jobs import Job
from pdecnn.viz.studio.nets import open_net
from pdecnn.viz.studio.planning import Measured, Parts, Planned
from pdecnn.viz.studio.serving import Options
from pdecnn.viz.studio.wiring import guarded, html, shown

FIRST = "fashion_resnet32.fashion_mini"
NAMES = (
    FIRST,
    "cifar_resnet32",
    "cifar_wrn40_4",
    "cifar_densenet_bc100",
    "resnet18",
    "mobilenetv2_100",
    "efficientnet_b0",
    "torchvision:mobilenet_v3_small",
)
NEVER = 24 * 3600  # seconds after which the state of a visitor goes at the latest
PROGRESS = gr.Progress()
QUIET: dict[str, Any] = {"show_progress": "hidden"}


def make(page: gr.Blocks, options: Options) -> None:
    """Lays the tab out and connects it."""
    planned = gr.State(None, time_to_live=NEVER)
    parts, measured = gr.State(None, time_to_live=NEVER), gr.State(None, time_to_live=NEVER)
    job = gr.State(None, time_to_live=NEVER, delete_callback=lambda j: j.close() if j else None)
    opened, sent = gr.State(0), gr.State(None)
    with gr.Row(equal_height=True):
        name = gr.Dropdown(
            list(NAMES),
            value=FIRST,
            allow_custom_value=True,
            label="Model",
            scale=4,
            min_width=280,
            elem_id="condense-name",
            info="A registered name, timm:NAME, torchvision:NAME, module:function, or a checkpoint folder.",
        )
        size = gr.Textbox("", label="Input size", placeholder="C,H,W", info="The model's own if empty.", scale=1)
        open_button = gr.Button(
            "Open", variant="primary", scale=0, min_width=110, elem_id="condense-open", elem_classes="go"
        )
    about = html("condense-about")
    skyline = html("condense-strip")

    with gr.Row():
        with gr.Column(scale=3):
            gr.Markdown("#### What becomes of each run")
            rows = gr.Column()
        with gr.Column(scale=2):
            gr.Markdown("#### What it costs")
            table = html("condense-costs")

    gr.Markdown("#### Recover what it lost")
    with gr.Row(equal_height=True):
        images = gr.Textbox(
            options.data or DATA,
            label="Images",
            scale=3,
            min_width=280,
            elem_id="condense-images",
            info="fashion-mini ships in the package; or a folder of yours: train/CLASS, val/CLASS.",
        )
        epochs = gr.Slider(1, 50, 10, step=1, label="Epochs", scale=2, min_width=200, elem_id="condense-epochs")
        start_button = gr.Button(
            "Start", variant="primary", scale=0, min_width=110, elem_id="condense-start", elem_classes="go"
        )
        cancel_button = gr.Button(
            "Cancel", scale=0, min_width=110, interactive=False, elem_id="condense-cancel", elem_classes="go"
        )
    bar = html("condense-progress")
    with gr.Row():
        with gr.Column(min_width=320):
            curve = html("condense-curve")
        with gr.Column(min_width=320):
            outcome = html("condense-outcome")
    samples = html("condense-samples")
    files = gr.File(
        label="Checkpoint, ONNX, C, report",
        file_count="multiple",
        interactive=False,
        visible=False,
        elem_id="condense-files",
    )
    clock = gr.Timer(1.0, active=False)

    @guarded
    def open_it(name: str, size: str, opened: int, progress: gr.Progress = PROGRESS) -> tuple[Any, ...]:
        net = open_net(name or "", size, local=options.local)
        found = planning.start(net, shown(progress))
        return (
            found,
            opened + 1,
            note(planning.weights_of(found)),
            strip.draw(found.cells, found.plan.runs),
            planning.costs(found),
        )

    @guarded
    def time_parts(found: Planned | None) -> tuple[Parts | None, str]:
        if found is None:
            return None, ""
        made = planning.measure_parts(found)
        return made, planning.costs(found, made)

    @guarded
    def time_it(found: Planned | None, parts: Parts | None) -> tuple[Measured | None, str]:
        if found is None:
            return None, ""
        made = planning.measure(found)
        return made, planning.costs(found, parts, made)

    @guarded
    def edit(path: str, found: Planned, parts: Parts | None, keep: int, replacement: str, K: int) -> tuple[Any, ...]:
        changed = planning.edit(found, path, keep=keep, replacement=replacement, K=K)
        return changed, strip.draw(changed.cells, changed.plan.runs), planning.costs(changed, parts)

    clocked: dict[str, Any] = {"concurrency_id": "clock", "concurrency_limit": 1, **QUIET}  # one timing at a time
    measuring: dict[str, Any] = {"inputs": [planned, parts], "outputs": [measured, table], **clocked}
    opening: dict[str, Any] = {
        "fn": open_it,
        "inputs": [name, size, opened],
        "outputs": [planned, opened, about, skyline, table],
        "show_progress_on": skyline,
    }
    for event in (page.load(**opening), gr.on([open_button.click, name.select, size.submit], **opening)):
        event.success(time_parts, planned, [parts, table], **clocked).success(time_it, **measuring)

    with rows:

        @gr.render(inputs=[planned], triggers=[opened.change])
        def show_runs(found: Planned | None) -> None:
            for run in found.plan.runs if found else ():
                n = len(run.units)
                with gr.Row(equal_height=True, elem_classes="run-row"):
                    keep = gr.Slider(
                        1,
                        n,
                        run.keep,
                        step=1,
                        label=f"{run.path}: blocks kept of {n}",
                        min_width=150,
                        interactive=True,
                        scale=3,
                    )
                    put = gr.Dropdown(
                        planning.choices(),
                        value=run.replacement,
                        label="in their place",
                        min_width=120,
                        interactive=True,
                        scale=2,
                    )
                    K = gr.Slider(
                        1,
                        MAX_K,
                        run.K if run.replacement in STEPS else 1,
                        step=1,
                        label="K of a PDE",
                        min_width=120,
                        interactive=True,
                        scale=2,
                    )
                gr.on(
                    [keep.change, put.change, K.change],
                    guarded(partial(edit, run.path)),
                    [planned, parts, keep, put, K],
                    [planned, skyline, table],
                    trigger_mode="always_last",
                    concurrency_id="edit",
                    concurrency_limit=1,
                    **QUIET,
                ).success(time_it, **measuring)

    @guarded
    def start(found: Planned | None, old: Job | None, images: str, epochs: int) -> tuple[Any, ...]:
        if found is None:
            raise ValueError("Open a model first.")
        if old is not None and old.running:
            raise ValueError("Your job is running; cancel it first.")
        wanted = (images.strip(), int(epochs))
        same = old is not None and old.status.state == "cancelled" and old.planned.plan is found.plan
        if same and old is not None and (old.data, old.epochs) == wanted:
            return (old.start(), *working())
        if not options.local and wanted[0] not in (DATA, options.data):
            raise ValueError(f"This page can be reached by others: images are {DATA} or what --data names.")
        made = Job(found, *wanted[:1], epochs=wanted[1])
        if old is not None:
            old.close()
        return (made.start(), *working())

    def working() -> tuple[Any, ...]:
        busy = gr.Button("Start", interactive=False), gr.Button(interactive=True)
        return (*busy, gr.Timer(active=True), "", "", gr.File(visible=False), jobs.progress_bar(jobs.Status()))

    def watch(job: Job | None, sent: Any) -> tuple[Any, ...]:
        if job is None:
            idle = gr.Timer(active=False), gr.Button("Start", interactive=True), gr.Button(interactive=False)
            return (*[gr.skip()] * 6, *idle)
        status, running = job.status, job.running
        news = (id(status), len(status.history), len(status.rows), len(status.samples))
        drawn = (jobs.curve(status), jobs.outcome(status), status.samples) if news != sent else (gr.skip(),) * 3
        ended = gr.File([*status.files], visible=bool(status.files)) if not running else gr.skip()
        again = "Continue" if status.state == "cancelled" else "Start"
        return (
            news,
            jobs.progress_bar(status),
            *drawn,
            ended,
            gr.Timer(active=running),
            gr.Button(again, interactive=not running),
            gr.Button(interactive=running),
        )

    def cancel(job: Job | None) -> Any:
        if job is not None:
            job.cancel()
        return gr.Button(interactive=False)

    begun = [job, start_button, cancel_button, clock, outcome, samples, files, bar]
    start_button.click(guarded(start), [planned, job, images, epochs], begun, **QUIET)
    told = [sent, bar, curve, outcome, samples, files, clock, start_button, cancel_button]
    clock.tick(watch, [job, sent], told, **QUIET)
    cancel_button.click(cancel, job, cancel_button, **QUIET)
