"""What condensing made worse, or no better, and why: one sentence each."""

from collections.abc import Mapping
from typing import Any

from pdecnn.condensation.deployed import OnnxComparison, in_words
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.propose import is_of_the_table
from pdecnn.condensation.replacements import PAPER
from pdecnn.shared.tables import short

MAPS = (
    "a Global layer writes maps of its four coefficients; as one operator (optimize_for_inference, fused ONNX) it does "
    "not"
)
REASONS = {
    "depth": "a Global layer is at least two layers of the longest chain, its coefficients and its solve, as many as a "
    "block of two convolutions",
    "activation_bytes": MAPS,
    "peak_bytes": MAPS,
}
WORDS = {
    "depth": "depth",
    "activation_bytes": "bytes of activations written",
    "peak_bytes": "bytes of activations alive at once",
}
SLOWER = (
    "the new layers take longer than the blocks they replace; --budget latency_ms=80% condenses only as far as it pays"
)
PORTABLE = "each step of a Global layer is many small nodes there; with fused operators it is one"


def what_got_worse(
    before: Any,
    after: Any,
    plan: Plan,
    speedups: Mapping[str, float] | None = None,
    onnx: OnnxComparison | None = None,
    metric: str = "accuracy, %",
    higher_is_better: bool = True,
) -> list[str]:
    """The lines, none if all got better; `before` and `after` have the figures of a model as attributes.

    A reason is given where Global layers are the reason.
    """
    new = any(run.condenses and run.replacement == PAPER and is_of_the_table(run) for run in plan.runs)
    lines = []
    for name, words in WORDS.items():
        b, a = getattr(before, name, None), getattr(after, name, None)
        if b is None or a is None or a < b:
            continue
        if a == b and name == "peak_bytes":
            lines.append(f"{words} {short(a)}, no less: the most are alive at a place that stayed as it was.")
        else:
            change = "no less" if a == b else in_words(b / a)
            lines.append(f"{words} {short(b)} -> {short(a)}, {change}" + _because(REASONS[name], new))
    b, a = (getattr(figures, "accuracy", None) for figures in (before, after))
    if b is not None and a is not None and (a < b if higher_is_better else a > b):
        lines.append(f"{metric} {b:.4g} -> {a:.4g}: there are fewer weights; more epochs may regain some of it.")
    for key, ratio in (speedups or {}).items():
        if ratio < 1:
            lines.append(f"time in PyTorch, {key.replace('_', ' ')}, {in_words(ratio)}" + _because(SLOWER, new))
    for key, ratio in (onnx.speedups if onnx else {}).items():
        if ratio < 1:
            kind = "fused operators" if key.startswith("fused") else "portable operators"
            batch = key.removeprefix("fused_").replace("_", " ")
            why = SLOWER if key.startswith("fused") else PORTABLE
            lines.append(f"time in ONNX Runtime, {kind}, {batch}, {in_words(ratio)}" + _because(why, new))
    return lines


def _because(why: str, known: bool) -> str:
    return f": {why}." if known else "."
