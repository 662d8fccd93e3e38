"""Forward mode and the transforms of torch.func: where they meet our operators, the plain torch definition runs.

`torch.library.register_autograd` knows the backward mode of `torch.autograd` alone: it drops tangents without a word.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd.forward_ad import unpack_dual


def register_autograd(
    library: Any, name: str, backward: Callable, *, plain: Callable, setup_context: Callable | None = None
) -> None:
    """`torch.library.register_autograd` for `pdecnn::<name>`, with `plain` for all modes but the backward one."""
    op = getattr(torch.ops.pdecnn, name).default
    reverse = make_autograd_impl(op, Info(backward, setup_context))

    def autograd(keyset: Any, *args: Any) -> Any:
        return plain(*args) if _other_mode(args) else reverse(keyset, *args)

    library.impl(name, autograd, "Autograd", with_keyset=True)


def _other_mode(args: tuple[Any, ...]) -> bool:
    """Whether a transform of torch.func is at work, or an argument has a tangent."""
    if torch._C._are_functorch_transforms_active():
        return True
    return any(isinstance(arg, Tensor) and unpack_dual(arg).tangent is not None for arg in args)
