"""Products of matrices: fully connected layers, and those of two computed values."""

import torch
from torch import fx

from pdecnn.deploy.c.registry import Code, Step, emits, shape, size

_ATEN = torch.ops.aten


@emits(_ATEN.linear.default)
def linear(step: Step) -> Code:
    """`x W^T + b`, with W transposed in the file so that outputs lie side by side."""
    a = step.arguments()
    weight, bias = step.constant(a["weight"]), a["bias"]
    if weight is None:
        raise NotImplementedError("linear with computed weights")
    out, inputs = weight.shape
    rows = size(step.main) // out
    b = "0" if bias is None else step.read(bias)
    w = step.constants.floats(weight.T.contiguous().numpy())
    text = f"product(y, {step.read(a['input'])}, {w}, {b}, {rows}, {inputs}, {out});"
    return Code(text, macs=rows * inputs * out)


@emits(_ATEN.addmm.default)
def addmm(step: Step) -> Code:
    """`b + x y` with one b for all rows."""
    a = step.arguments()
    b = a["self"]
    (m, k), n = shape(a["mat1"]), shape(a["mat2"])[1]
    if a["beta"] != 1 or a["alpha"] != 1 or size(b) != n:
        raise NotImplementedError("addmm with factors or a matrix as bias")
    text = f"product(y, {step.read(a['mat1'])}, {step.read(a['mat2'])}, {step.read(b)}, {m}, {k}, {n});"
    return Code(text, macs=m * k * n)


@emits(_ATEN.mm.default, _ATEN.bmm.default, _ATEN.matmul.default)
def matmul(step: Step) -> Code:
    """Matrix by matrix, for each pair of a batch; either one may be the same for all of them."""
    left, right = (node for node in step.main.args[:2] if isinstance(node, fx.Node))
    (*batch_a, m, k), (*batch_b, _, n) = shape(left), shape(right)
    count = size(step.main) // (m * n)
    many_a, many_b = (size(left) == count * m * k, size(right) == count * k * n)
    if not (many_a or not any(d > 1 for d in batch_a)) or not (many_b or not any(d > 1 for d in batch_b)):
        raise NotImplementedError("matmul that broadcasts part of a batch")
    x, z = step.read(left), step.read(right)
    at_a, at_b = (f"{s} * i" if many and count > 1 else "0" for s, many in ((m * k, many_a), (k * n, many_b)))
    if count > 1 and not many_b and many_a:  # one product with more rows
        count, m, at_a = 1, m * count, "0"
    text = f"product(y + {m * n} * i, {x} + {at_a}, {z} + {at_b}, 0, {m}, {k}, {n});"
    loop = f"for (int i = 0; i < {count}; i++)\n    {text}" if count > 1 else text.replace("* i", "* 0")
    return Code(loop, macs=size(step.main) * k)
