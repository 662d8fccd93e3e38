"""What every operator is registered with: the one library of torch, and the codes that native kernels know words by."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

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


def register(
    schema: str,
    default: Callable[..., Any],
    fake: Callable[..., Any],
    flops: Callable[..., int],
    *,
    gradient: Callable[..., Any] | None = None,
    save: Callable[..., None] | None = None,
) -> None:
    """Registers an operator once for all devices.

    Args:
        schema: Its name, arguments and results, as torch writes them.
        default: Computes it where no faster kernel does; returns new memory, in the strides that `fake` promises.
        fake: Its results without their values, for graphs.
        flops: Twice its multiply-adds, from the shapes of its tensors.
        gradient: Its derivative, `gradient(ctx, *grads)`; without one it has none.
        save: Keeps what that needs, `save(ctx, inputs, output)`.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=TAGS)
    LIBRARY.impl(name, default, "CompositeExplicitAutograd")
    torch.library.register_fake(f"pdecnn::{name}", fake, lib=LIBRARY)
    register_flop_formula(getattr(torch.ops.pdecnn, name))(flops)
    if gradient is not None:
        torch.library.register_autograd(f"pdecnn::{name}", gradient, setup_context=save, lib=LIBRARY)


def save_inputs(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    """Keeps the arguments for the gradient: the tensors, which come first, and as `ctx.options` the others."""
    tensors = [q for q in inputs if q is None or isinstance(q, Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.options = inputs[len(tensors) :]


def refuse_second_derivative(name: str, instead: str) -> Callable[..., None]:
    """What stands for the gradient of an operator that is itself the gradient of `name`."""

    def refuse(ctx: Any, *grads: Any) -> None:
        raise RuntimeError(
            f"{name}: its gradient cannot be differentiated again by the fused kernel. Use {instead}, which is plain "
            "torch, where second derivatives are needed."
        )

    return refuse


def differentiate(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], needs: Sequence[bool], grads: Any
) -> list[Tensor]:
    """Gradients of `function(*inputs)`, where needed, by autograd, whose kernels are off inside an operator."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch.enable_grad(), torch._C._ForceDispatchKeyGuard(included, excluded - keys):
        leaves = [q if q is None else q.detach().requires_grad_(need) for q, need in zip(inputs, needs, strict=True)]
        wanted = [q for q, need in zip(leaves, needs, strict=True) if q is not None and need]
        return list(torch.autograd.grad(function(*leaves), wanted, grads))


def is_interleaved(h: Tensor) -> bool:
    """Whether channels, not columns, are the ones that lie side by side in memory."""
    return h.shape[1] > 1 and h.stride(1) == 1 and h.stride(3) != 1


def like(h: Tensor) -> Tensor:
    """An empty tensor in the order of `h`, channels_last or contiguous; never with the strides of one that overlaps."""
    if h.is_contiguous() or h.is_contiguous(memory_format=torch.channels_last):
        return torch.empty_like(h)
    order = torch.channels_last if is_interleaved(h) else torch.contiguous_format
    return torch.empty_like(h, memory_format=order)


def layout(h: Tensor) -> torch.memory_format:
    """The order of all maps: channels side by side where those of `h` are, else planes one after another."""
    return torch.channels_last if is_interleaved(h) and not h.is_contiguous() else torch.contiguous_format


def in_order(q: Tensor, h: Tensor) -> Tensor:
    """A copy of `q` in the order of `h`, unless it is so."""
    return q.contiguous(memory_format=layout(h))
