"""One HTML file that tells what condensing did: no server, no script, no network."""

from html import escape
from pathlib import Path

from rich.table import Table

from pdecnn.condensation.job import JobResult
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.report import Report
from pdecnn.shared.extras import require
from pdecnn.shared.files import write_atomic
from pdecnn.shared.tables import to_html
from pdecnn.viz import plots

STYLE = """
.pdecnn { font: 15px/1.5 system-ui, sans-serif; color: #22303c; background: #fff; max-width: 62rem; }
.pdecnn h1 { font-size: 1.6rem; margin-bottom: .2rem; } .pdecnn h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.pdecnn p.lead { color: #52606d; margin-top: 0; }
.pdecnn .wide { overflow-x: auto; } .pdecnn table { border-collapse: collapse; margin: .6rem 0; }
.pdecnn th, .pdecnn td { padding: .25rem .9rem .25rem 0; vertical-align: top; }
.pdecnn td + td { white-space: nowrap; }
.pdecnn th { border-bottom: 2px solid #1f6f8b; } .pdecnn td { border-bottom: 1px solid #e4e7eb; }
.pdecnn caption { text-align: left; color: #52606d; }
.pdecnn .figures { display: flex; flex-wrap: wrap; gap: 1.5rem; }
.pdecnn figure { margin: 0; flex: 1 1 min(26rem, 100%); min-width: 0; }
.pdecnn figure svg { width: 100%; height: auto; } .pdecnn figcaption { color: #52606d; font-size: .9rem; }
@media (max-width: 40rem) { .pdecnn table { font-size: 12px; } .pdecnn td, .pdecnn th { padding-right: .4rem; } }
.pdecnn code { background: #f1f4f6; padding: 0 .25rem; }
"""
STEPS = "From the teacher to the student: accuracy at each step."


def write_report(result: JobResult, path: str | Path) -> Path:
    """Writes the report of a job; without matplotlib it has its tables only, and says so."""
    write_atomic(Path(path), page(result))
    return Path(path)


def page(result: JobResult | Report) -> str:
    """The report as a page of HTML."""
    head = f'<meta charset="utf-8"><title>{escape(result.plan.model)}, condensed</title>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = f'<body style="margin: 1.5rem auto; max-width: 62rem; padding: 0 1rem">\n{fragment(result)}\n</body>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n{body}</html>\n'


def fragment(result: JobResult | Report) -> str:
    """The report as a part of a page, such as a notebook, whose own style it leaves alone."""
    parts = _of_job(result) if isinstance(result, JobResult) else _of_costs(result)
    inner = "\n".join([f"<h1>{escape(result.plan.model)}, condensed</h1>", *parts])
    return f'<div class="pdecnn"><style>{STYLE}</style>\n{inner}\n</div>'


def _of_job(result: JobResult) -> list[str]:
    b, a = result.before, result.after
    lead = (
        f"{b.params / a.params:.1f} times fewer parameters, {b.macs / a.macs:.1f} times fewer multiply-adds, "
        f"{result.speedups['batch_1']:.1f} times as fast for one image{_accuracy(result)}."
    )
    return [
        f'<p class="lead">{escape(lead)} Seed {result.seed}, {result.seconds:.0f} seconds in all.</p>',
        "<h2>Before and after</h2>",
        _table(result.table()),
        "<p>Latencies are medians on this machine, both models prepared alike for inference; their ratio is the "
        "median over rounds in which both were timed side by side. "
        f"PyTorch ran on {_threads(result.threads)}{', ONNX Runtime on one thread' if result.onnx else ''}.</p>",
        _onnx(result),
        _worse(result.worse),
        _pictures(result),
        "<h2>What was replaced</h2>",
        plan_table(result.plan),
        "<p>Files in this folder: <code>plan.json</code>, <code>teacher/</code>, <code>student/</code> (config and "
        "weights), <code>result.json</code>"
        + (f", <code>{escape(result.onnx.file)}</code>" if result.onnx else "")
        + ".</p>",
    ]


def _of_costs(report: Report) -> list[str]:
    fitted = "".join(f"<li>{escape(str(f))}</li>" for f in report.fitted)
    return [
        "<h2>Before and after</h2>",
        _table(report.table()),
        _worse(report.worse),
        f"<h2>How the new layers were fitted</h2><ul>{fitted}</ul>" if fitted else "",
        "<h2>What was replaced</h2>",
        plan_table(report.plan),
    ]


def _worse(lines: list[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>What did not get better</h2><ul>{items}</ul>" if items else ""


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
    return f'<div class="wide">{plan._repr_html_()}</div>'


def _table(table: Table) -> str:
    table.title = None
    return f'<div class="wide">{to_html(table)}</div>'
