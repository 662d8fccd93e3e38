"""The text of the C file and of its header."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pdecnn.deploy.c.footprint import Footprint
from pdecnn.deploy.c.int8.exact import Exact
from pdecnn.deploy.c.int8.quantise import Quantised, quantise
from pdecnn.deploy.c.knob import program_for_steps
from pdecnn.deploy.c.library import needed
from pdecnn.deploy.c.schedule import Schedule, refuse_all, schedule
from pdecnn.shared.progress import ProgressCallback

FILE = """\
/* {title}

   {summary}
   No malloc, no mutable globals, no libm. Each arena serves one run at a time; with an arena each, any number may run.
   The same bits on every target if products and sums are rounded one by one: -ffp-contract=off, no -ffast-math.

{table}
*/
{math}#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

{prototypes}

{parts}

{constants}

static void run(float *restrict a, const float *restrict in, float *restrict out, int K)
{{
    (void)a, (void)in, (void)K;
{blocks}
}}

int {name}_run(void *arena, const float *in, float *out)
{{
    run(arena, in, out, 0);
    return 0;
}}
{with_k}"""

WITH_K = """
int {name}_run_k(void *arena, const float *in, float *out, int K)
{{
    if (K < {least} || K > {most})
        return -1;
    run(arena, in, out, K);
    return 0;
}}
"""

HEADER = """\
/* {title}: {summary} */
#ifndef {guard}
#define {guard}

#define {upper}_ARENA_BYTES {arena} /* aligned as float */
#define {upper}_INPUTS {inputs} /* floats: {input_shapes} */
#define {upper}_OUTPUTS {outputs} /* floats: {output_shapes} */
{classes}
#ifdef __cplusplus
extern "C" {{
#endif
/* Computes `out` from `in`, in memory of {upper}_ARENA_BYTES at `arena`, whose content does not matter; returns 0. */
{prototype}
{prototype_k}#ifdef __cplusplus
}}
#endif
#endif
"""


@dataclass(frozen=True)
class Written:
    """The two texts and what they cost; of a file in 8 bits also what was decided, and what it computes, in Python."""

    source: str
    header: str
    footprint: Footprint
    quantised: Quantised | None = None
    exact: Exact | None = None


def c_name(path: Path) -> str:
    """The prefix of all public names, from the name of the file.

    Example:
        >>> from pathlib import Path
        >>> c_name(Path("my-net.c")), c_name(Path("3.c"))
        ('my_net', 'net_3')
    """
    name = re.sub(r"\W", "_", path.stem, flags=re.ASCII)
    return name if re.match(r"[A-Za-z]", name) else f"net_{name}"


def write(
    model: nn.Module,
    inputs: Sequence[Tensor],
    name: str,
    metadata: Mapping[str, Any] | None = None,
    *,
    int8: Sequence[Sequence[Tensor]] | None = None,
    progress: ProgressCallback | None = None,
) -> Written:
    """`model` for one sample as C, with public names that begin with `name`; in 8 bits with batches to calibrate on."""
    module = program_for_steps(model, inputs, fixed=int8 is not None)
    quantised = None
    if int8 is not None:
        refuse_all(module)
        samples = [[x[i : i + 1] for x in batch] for batch in int8 for i in range(len(batch[0]))]
        quantised = quantise(module, samples, progress)
    found = schedule(module, quantised)
    bits = "" if quantised is None else " in 8 bits"
    title = f"{name}: {(metadata or {}).get('model', type(model).__name__)}{bits}, written by pdecnn"
    steps: range = module.meta["steps"]
    texts = _source(found, name, title, steps), _header(found, name, title, steps, metadata or {})
    exact = None if quantised is None else Exact(module, quantised, found.steps)
    return Written(*texts, found.footprint, quantised, exact)


def _source(found: Schedule, name: str, title: str, steps: range) -> str:
    body = "\n".join(found.blocks)
    definitions = found.constants.definitions
    takes_k = _takes_k(found)
    odd = any("INFINITY" in d or "NAN" in d for d in definitions)
    parts = needed([body, *(d for d in definitions if not d.startswith(("static const float", "static const int")))])
    prototypes = [_prototype(name), *([_prototype_k(name)] if takes_k else [])]
    table = "\n".join(f"   {line}".rstrip() for line in found.footprint.lines())
    return FILE.format(
        title=title, summary=_summary(found), table=table, prototypes="\n".join(prototypes), parts="\n\n".join(parts),
        math="#include <math.h> /* two macros, no function */\n" if odd else "", constants="\n".join(definitions),
        blocks=body, name=name,
        with_k=WITH_K.format(name=name, least=steps[0], most=steps[-1]) if takes_k else "",
    )  # fmt: skip


def _header(found: Schedule, name: str, title: str, steps: range, metadata: Mapping[str, Any]) -> str:
    upper = name.upper()
    classes = metadata.get("classes")
    names = ""
    if classes:
        strings = ", ".join(json.dumps(str(c), ensure_ascii=True) for c in classes)
        names = f"#define {upper}_CLASSES {{{strings}}}\n"
    return HEADER.format(
        title=title, summary=_summary(found), guard=f"{upper}_H", upper=upper, arena=max(4, 4 * found.arena),
        inputs=sum(map(prod, found.inputs)), outputs=sum(map(prod, found.outputs)), input_shapes=_shapes(found.inputs),
        output_shapes=_shapes(found.outputs), classes=names, prototype=_prototype(name),
        prototype_k=_comment(steps) + _prototype_k(name) + "\n" if _takes_k(found) else "",
    )  # fmt: skip


def _comment(steps: range) -> str:
    of = f"from {steps[0]:,} to {steps[-1]:,}"
    return f"/* The same with K steps, {of}, in every solver in place of its own; else returns -1. */\n"


def _takes_k(found: Schedule) -> bool:
    return any("K > 0 ? K" in block for block in found.blocks)


def _prototype(name: str) -> str:
    return f"int {name}_run(void *arena, const float *in, float *out);"


def _prototype_k(name: str) -> str:
    return f"int {name}_run_k(void *arena, const float *in, float *out, int K);"


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, q)) or "1" for q in shapes)


def _summary(found: Schedule) -> str:
    cost = found.footprint
    return (
        f"{_shapes(found.inputs)} -> {_shapes(found.outputs)}; SRAM {cost.sram:,} bytes, Flash {cost.flash:,} bytes, "
        f"{cost.macs:,} multiply-adds."
    )
