"""What cpu.cpp is not compiled for, by calls that it is compiled for: other numbers of stencils, half precision.

So the bits are those of one kernel, whatever the number of threads; torch's own convolutions do not promise that.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pdecnn.kernels.shared_expand import op
from pdecnn.reference.shared_stencils import check_expand, check_product

COMPILED = (8, 6, 4, 3, 2, 1)  # numbers of stencils of cpu.cpp, largest first
_HALF = (torch.bfloat16, torch.float16)
_U = {  # where u stands among the arguments; the stencils follow it
    "shared_expand": 0,
    "shared_expand_moments": 0,
    "shared_expand_product": 0,
    "shared_expand_backward": 1,
    "shared_expand_affine_backward": 2,
    "shared_expand_product_backward": 1,
}


def by_parts(name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    """The operator `name` by its `native` twin, for arguments of any kind; wrong ones are told."""
    at = _U[name]

    def run(*args: Any) -> Any:
        check(name, args)
        u, f = args[at], len(args[at + 1])
        if u.dtype in _HALF:
            return _cast(run(*_cast(args, torch.float32)), u.dtype)
        if not u.numel():
            return op.REFERENCES[name](*args)
        if f in COMPILED:
            return native(*args)
        results, begin = [], 0
        for n in sizes(f):
            span = slice(begin, begin + n)
            results.append(native(*(_cut(arg, i - at, f, span) for i, arg in enumerate(args))))
            begin += n
        return _joined(results, u.shape[1], with_gradients=name.endswith("backward"))

    return run


def check(name: str, args: tuple[Any, ...]) -> None:
    """Raises what the arguments of the operator `name` deserve."""
    if name in ("shared_expand", "shared_expand_moments"):
        check_expand(name, *args)
    elif name == "shared_expand_affine_backward":
        op.check_affine(*args)
    elif name == "shared_expand_backward":
        op.check_gradient(*args)
    else:
        check_product(*args[_U[name] :])
        if name == "shared_expand_product_backward":
            op.check_gradient(args[0], args[1], args[2], args[-1])


def sizes(f: int) -> list[int]:
    """A number of stencils as a sum of compiled ones.

    Example:
        >>> sizes(5), sizes(8), sizes(15)
        ([4, 1], [8], [8, 6, 1])
    """
    made: list[int] = []
    while f > 0:
        made.append(next(n for n in COMPILED if n <= f))
        f -= made[-1]
    return made


def _cast(values: Any, dtype: torch.dtype) -> Any:
    if isinstance(values, tuple):
        return tuple(_cast(value, dtype) for value in values)
    return values.to(dtype) if isinstance(values, Tensor) else values


def _cut(arg: Any, after_u: int, f: int, span: slice) -> Any:
    """The part of an argument that belongs to the stencils in `span`; channel `j f + a` belongs to stencil a."""
    if not isinstance(arg, Tensor) or after_u == 0:
        return arg
    if after_u == 1:
        return arg[span]
    axis = min(1, arg.ndim - 1)
    return arg.unflatten(axis, (-1, f)).narrow(axis + 1, span.start, span.stop - span.start).flatten(axis, axis + 1)


def _joined(results: list[Any], C: int, with_gradients: bool) -> Any:
    if isinstance(results[0], Tensor):
        return _interleaved(results, C)
    columns = list(zip(*results, strict=True))
    if not with_gradients:
        return tuple(_interleaved(parts, C) for parts in columns)
    grad_u, grad_stencils, *others = columns
    total = grad_u[0]
    for part in grad_u[1:]:
        total = total + part
    return total, torch.cat(grad_stencils), *(_interleaved(parts, C) for parts in others)


def _interleaved(parts: Any, C: int) -> Tensor:
    axis = min(1, parts[0].ndim - 1)
    return torch.cat([part.unflatten(axis, (C, -1)) for part in parts], axis + 1).flatten(axis, axis + 1)
