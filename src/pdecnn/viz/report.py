"""One HTML file that tells what condensing did: no server, no script, no network."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from pdecnn.condensation.job import JobResult
from pdecnn.condensation.plan import Plan
from pdecnn.shared.extras import require
from pdecnn.shared.files import write_atomic
from pdecnn.viz import plots

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22303c; max-width: 62rem; margin: 2.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.lead { color: #52606d; margin-top: 0; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { padding: .25rem .9rem .25rem 0; text-align: right; }
th.text, td.text { text-align: left; } th { border-bottom: 2px solid #1f6f8b; }
td { border-bottom: 1px solid #e4e7eb; }
.figures { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; flex: 1 1 26rem; }
figure svg { width: 100%; height: auto; } figcaption { color: #52606d; font-size: .9rem; }
code { background: #f1f4f6; padding: 0 .25rem; }
"""
STEPS = "From the teacher to the student: accuracy at each step."


def write_report(result: JobResult, path: str | Path) -> Path:
    """Writes the report of a job; without matplotlib it has its tables only, and says so."""
    write_atomic(Path(path), page(result))
    return Path(path)


def page(result: JobResult) -> str:
    """The report as HTML text."""
    b, a = result.before, result.after
    lead = (
        f"{b.params / a.params:.1f} times fewer parameters, {b.macs / a.macs:.1f} times fewer multiply-adds, "
        f"{result.speedups['batch_1']:.1f} times as fast for one image{_accuracy(result)}."
    )
    parts = [
        f"<h1>{escape(result.plan.model)}, condensed</h1>",
        f'<p class="lead">{escape(lead)} Seed {result.seed}, {result.seconds:.0f} seconds in all.</p>',
        "<h2>Before and after</h2>",
        table(("", "before", "after", "change"), result.rows()),
        "<p>Latencies are medians on this machine, both models prepared alike for inference; their ratio is the "
        "median over rounds in which both were timed side by side. "
        f"PyTorch ran on {_threads(result.threads)}{', ONNX Runtime on one thread' if result.onnx else ''}.</p>",
        _onnx(result),
        _pictures(result),
        "<h2>What was replaced</h2>",
        plan_table(result.plan),
        "<p>Files in this folder: <code>plan.json</code>, <code>teacher/</code>, <code>student/</code> (config and "
        "weights), <code>result.json</code>"
        + (f", <code>{escape(result.onnx.file)}</code>" if result.onnx else "")
        + ".</p>",
    ]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>{escape(result.plan.model)}, condensed</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _accuracy(result: JobResult) -> str:
    if not result.accuracies:
        return ""
    if result.metric:
        return f"; {result.metric} {result.accuracies['teacher']:.4g} -> {result.accuracies['distilled']:.4g}"
    if not result.labelled:
        return f"; it answers as the teacher does on {result.accuracies['distilled']:.2f} % of the images"
    return f"; accuracy {result.accuracies['distilled'] - result.accuracies['teacher']:+.2f} points"


def _onnx(result: JobResult) -> str:
    """What fused means, how well the files agree, and what is missing."""
    lines = [escape(line) for line in (*(result.onnx.lines() if result.onnx else ()), *result.notes)]
    if result.onnx:
        lines.insert(0, "Fused: each Global layer is one node of the ONNX graph, run by the library of pdecnn.")
    return f"<p>{'<br>'.join(lines)}</p>" if lines else ""


def _threads(n: int) -> str:
    return "one thread" if n == 1 else f"{n} threads"


def _pictures(result: JobResult) -> str:
    try:
        require("matplotlib", "viz")
    except ModuleNotFoundError as error:
        return f"<p>{escape(str(error))}</p>"
    pictures = (
        (plots.cost_bars(result), "What is left of each cost."),
        *([(plots.accuracy_steps(result), STEPS)] if result.accuracies else ()),
        (plots.learning_curve(result), "Distillation, epoch by epoch."),
        (plots.fit_bars(result), "How closely a Global layer follows the blocks it replaces, before any label."),
    )
    items = "\n".join(f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>" for svg, text in pictures)
    return f'<div class="figures">\n{items}\n</div>'


def plan_table(plan: Plan) -> str:
    """The runs of a plan and the places that were left alone."""
    rows = []
    for run in plan.runs:
        b, a = run.before, run.after
        what = f"{len(run.units)} x {run.block} → {run.keep} + Global layer, K={run.K}"
        rows.append((run.path, what, f"{b.params:,} → {a.params:,}", f"{b.macs:,} → {a.macs:,}"))
    skipped = [(s.path, s.reason) for s in plan.skipped]
    text = table(("run", "becomes", "parameters", "MACs"), rows, texts=2)
    return text + (f"<p>Left alone:</p>{table(('place', 'reason'), skipped, texts=2)}" if skipped else "")


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, texts: int = 1) -> str:
    """An HTML table; the first `texts` columns are text, the others numbers, which align on the right."""

    def line(tag: str, cells: tuple[str, ...]) -> str:
        kinds = [' class="text"' if i < texts else "" for i in range(len(cells))]
        inner = "".join(f"<{tag}{kind}>{escape(c)}</{tag}>" for kind, c in zip(kinds, cells, strict=True))
        return f"<tr>{inner}</tr>"

    return "<table>" + "\n".join([line("th", header), *(line("td", row) for row in rows)]) + "</table>"
