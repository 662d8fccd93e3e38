"""What every operator is registered with: the one library of torch, and the codes that native kernels know words by."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

TAGS = (torch.Tag.pt2_compliant_tag,)

# as the enums of common/abi.h
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
BOUNDARIES = {"periodic": 0, "neumann": 1, "dirichlet": 2}
ACTIVATIONS = {"identity": 0, "relu": 1, "relu6": 2, "tanh": 3, "hardtanh": 4}  # hardtanh clamps to [-1, 1]


def in_forward_mode() -> bool:
    """Whether forward-mode derivatives (`torch.func.jvp`, `jacfwd`, dual tensors) are being computed."""
    return forward_ad._current_level >= 0


def in_transform() -> bool:
    """Whether that, or a transform of `torch.func`, goes on: there the plain torch of `reference` is what works."""
    if torch.compiler.is_compiling():
        return False
    return in_forward_mode() or torch._C._functorch.peek_interpreter_stack() is not None


class Operators(torch.library.Library):
    """A library whose operators refuse forward mode, in which torch would drop their tangents without a word."""

    def impl(self, op_name: str, fn: Callable[..., Any], *arguments: Any, **options: Any) -> None:  # type: ignore[override]
        """Registers `fn` as the implementation of `op_name` for a dispatch key."""

        @wraps(fn)
        def guarded(*inputs: Any, **named: Any) -> Any:
            if in_forward_mode():
                raise RuntimeError(
                    f"pdecnn::{op_name} has no forward-mode derivative. Use the function of the same name in "
                    "pdecnn.reference, which is plain torch, or reverse mode (torch.func.vjp, jacrev)."
                )
            return fn(*inputs, **named)

        super().impl(op_name, guarded, *arguments, **options)  # type: ignore[no-untyped-call]


LIBRARY: Any = Operators("pdecnn", "FRAGMENT")  # type: ignore[no-untyped-call]


def is_interleaved(h: Tensor) -> bool:
    """Whether channels, not columns, are the ones that lie side by side in memory."""
    return h.shape[1] > 1 and h.stride(1) == 1 and h.stride(3) != 1


def like(h: Tensor) -> Tensor:
    """An empty tensor in the order of `h`, channels_last or contiguous; never with the strides of one that overlaps."""
    if h.is_contiguous() or h.is_contiguous(memory_format=torch.channels_last):
        return torch.empty_like(h)
    order = torch.channels_last if is_interleaved(h) else torch.contiguous_format
    return torch.empty_like(h, memory_format=order)
