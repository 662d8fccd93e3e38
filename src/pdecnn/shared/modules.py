"""Modules seen from outside: their mode for a while, listening to their calls, replacing them, norms as affine maps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from pdecnn.shared.trees import named_tensors


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Runs the block with the model in eval mode and restores the mode of every module."""
    flags = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for m, training in flags:
            m.training = training


@contextmanager
def with_momentum(norms: Sequence[_BatchNorm], momentum: float | None) -> Iterator[None]:
    """Lets batch norms in training take in new statistics at another rate during the block.

    With 0.0 they learn nothing, with 1.0 they keep the last batch, with None the mean over all batches.
    """
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = momentum
    try:
        yield
    finally:
        for norm, own in zip(norms, before, strict=True):
            norm.momentum = own


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors of a model's arguments or of its answer, in order; dataclasses and kinds of lists and dicts too."""
    return [q for leaf in tree_leaves(tree) for q in named_tensors(leaf).values()]


@contextmanager
def listen(
    modules: Iterable[nn.Module],
    *,
    before: Callable[[Any, Any, Any], None] | None = None,
    after: Callable[[Any, Any, Any, Any], None] | None = None,
    backward: Callable[[Any, Any, Any], None] | None = None,
    first: bool = False,
    always: bool = False,
) -> Iterator[None]:
    """Tells, within the block, of every call of the modules; afterwards nobody listens any more.

    Args:
        modules: Each is listened to once, however often it is named.
        before: Called as `before(module, args, kwargs)`.
        after: Called as `after(module, args, kwargs, output)`.
        backward: Called as `backward(module, grad_inputs, grad_outputs)` when gradients have passed.
        first: Before the hooks that others have put on the modules, not after them.
        always: `after` is called too, with None, when a module raises.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.ReLU())
        >>> with listen(model, after=lambda module, args, kwargs, out: print(type(module).__name__, tuple(out.shape))):
        ...     _ = model(torch.zeros(1, 2, 3))
        Flatten (1, 6)
        ReLU (1, 6)
    """
    with ExitStack() as hooks:
        for module in dict.fromkeys(modules):
            if before is not None:
                hooks.enter_context(module.register_forward_pre_hook(before, prepend=first, with_kwargs=True))
            if after is not None:
                handle = module.register_forward_hook(after, prepend=first, with_kwargs=True, always_call=always)
                hooks.enter_context(handle)
            if backward is not None:
                hooks.enter_context(module.register_full_backward_hook(backward, prepend=first))
        yield


def replace(model: nn.Module, choose: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Puts `choose(module)` in the place of every module of `model`, and returns what stands for `model` itself.

    Parts come before the whole, so that `choose` is given modules whose parts are replaced already. It is asked once
    for each module, and the answer comes in under every name that the model has for it. It gives back what shall stay.

    Example:
        >>> act = nn.ReLU()
        >>> model = replace(nn.Sequential(act, act), lambda m: nn.ReLU6() if isinstance(m, nn.ReLU) else m)
        >>> model[0], model[0] is model[1]
        (ReLU6(), True)
    """
    chosen: dict[nn.Module, nn.Module] = {}

    def visit(module: nn.Module) -> nn.Module:
        if module not in chosen:
            chosen[module] = module  # for one that holds itself
            for name, child in module._modules.items():
                if child is not None and (new := visit(child)) is not child:
                    module._modules[name] = new
            chosen[module] = choose(module)
        return chosen[module]

    return visit(model)


def norm_affine(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """`(scale, shift)` of a batch norm in evaluation: `norm(h) = scale h + shift`, computed in float64.

    Example:
        >>> [q.tolist() for q in norm_affine(nn.BatchNorm2d(1, eps=3.0))]
        [[0.5], [0.0]]
    """
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError(
            "norm_affine: the batch norm keeps no running statistics, so it has no fixed scale and shift. Make it with "
            "track_running_stats=True, or keep the norm as it is."
        )
    return affine(norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps)


def affine(
    weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float | Tensor
) -> tuple[Tensor, Tensor]:
    """`norm_affine` of the parameters and statistics of a norm, in the type of the statistics."""
    scale = torch.rsqrt(var.double() + eps)
    scale = scale if weight is None else scale * weight.double()
    shift = -mean.double() * scale
    shift = shift if bias is None else shift + bias.double()
    return scale.to(mean.dtype), shift.to(mean.dtype)
