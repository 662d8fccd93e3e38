"""The depth-wise parts of a Global layer in training, several at once: convolution, batch norm and activation.

`pdecnn::depthwise_norm` computes all coefficient maps of a layer from one read of the state. Where it does not apply
(see `_is_covered` and `_can_run`) the modules run one by one, with the same result.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from pdecnn.kernels.depthwise_norm import depthwise_norm
from pdecnn.kernels.registry import is_native
from pdecnn.layers.coefficients import LearnedPair, Pair

_ACTS = {nn.ReLU: "relu", nn.ReLU6: "relu6", nn.Identity: "identity"}
_SIZES = ((3, 3), (5, 5))


def coefficient_pairs(velocity: nn.Module, diffusion: nn.Module, h: Tensor) -> tuple[Pair, Pair]:
    """`(u, v)` and `(D_x, D_y)`, by one operator where it covers both."""
    pairs = (velocity, diffusion)
    covered = [cast(LearnedPair, pair) for pair in pairs if _can_run(h) and _is_covered(pair, h)]
    if len(covered) == 2 and _kind(covered[0]) == _kind(covered[1]):
        u, v, D_x, D_y = _maps(covered, h)
        return (u, v), (D_x, D_y)
    first, second = (_pair(*_maps([pair], h)) if pair in covered else pair(h) for pair in pairs)
    return first, second


def norm_act(norm: nn.Module, act: nn.Module, h: Tensor) -> Tensor:
    """`act(norm(h))`, by one operator where it covers both and a plane's pixels lie side by side."""
    if not (
        _can_run(h) and h.is_contiguous() and _is_batch_norm(norm, h) and type(act) in _ACTS and _is_silent(norm, act)
    ):
        return cast(Tensor, act(norm(h)))
    (out,) = _run([cast(nn.BatchNorm2d, norm)], h, None, None, _ACTS[type(act)])
    return out


def _pair(x: Tensor, y: Tensor) -> Pair:
    return x, y


def _maps(pairs: Sequence[LearnedPair], h: Tensor) -> list[Tensor]:
    ops = [cast(nn.Conv2d, op) for pair in pairs for op in (pair.op_x, pair.op_y)]
    norms = [cast(nn.BatchNorm2d, norm) for pair in pairs for norm in (pair.norm_x, pair.norm_y)]
    weight = torch.stack([op.weight for op in ops]).squeeze(2)
    bias = None
    if any(op.bias is not None for op in ops):
        bias = torch.stack([h.new_zeros(h.shape[1]) if op.bias is None else op.bias for op in ops])
    act = pairs[0].act
    return _run(norms, h, weight, bias, _ACTS[type(act)])


def _run(
    norms: Sequence[nn.BatchNorm2d], h: Tensor, weight: Tensor | None, bias: Tensor | None, act: str
) -> list[Tensor]:
    C = h.shape[1]
    gamma = torch.stack([h.new_ones(C) if norm.weight is None else norm.weight for norm in norms])
    beta = torch.stack([h.new_zeros(C) if norm.bias is None else norm.bias for norm in norms])
    maps, means, variances = depthwise_norm(h, weight, bias, gamma, beta, [norm.eps for norm in norms], act)
    count = h.numel() // C
    with torch.no_grad():
        for norm, mean, var in zip(norms, means, variances * (count / (count - 1)), strict=True):
            _update(norm, mean, var)
    return maps


def _update(norm: nn.BatchNorm2d, mean: Tensor, var: Tensor) -> None:
    """The running statistics, as `nn.BatchNorm2d` keeps them: a moving average, or the average of all batches."""
    if not norm.track_running_stats:
        return
    momentum = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(norm.num_batches_tracked)
    for running, batch in ((norm.running_mean, mean), (norm.running_var, var)):
        if running is not None:
            running.lerp_(batch, momentum or 0.0)


def _can_run(h: Tensor) -> bool:
    """Whether the native operator takes `h`, nobody looks at the parts, and torch does not trace or transform them."""
    return (
        not torch.compiler.is_compiling()
        and h.device.type == "cpu"
        and h.dtype == torch.float32
        and h.numel() > h.shape[1] > 0  # the norm itself refuses one value per channel
        and is_native("depthwise_norm")
        and torch._C._get_tracing_state() is None
        and not torch.is_autocast_enabled("cpu")
        and torch._C._functorch.peek_interpreter_stack() is None
        and not any(hooks for hooks in _GLOBAL_HOOKS)
    )


def _is_covered(pair: nn.Module, h: Tensor) -> bool:
    """Whether it is `act(norm(conv(h)))` for both axes, of kinds that the operator has, with batch statistics."""
    if type(pair) is not LearnedPair or pair.gated or type(pair.act) not in _ACTS:
        return False
    return (
        all(_is_stencil(op, h) for op in (pair.op_x, pair.op_y))
        and cast(nn.Conv2d, pair.op_x).kernel_size == cast(nn.Conv2d, pair.op_y).kernel_size
        and all(_is_batch_norm(norm, h) for norm in (pair.norm_x, pair.norm_y))
        and _is_silent(*pair.modules())
    )


def _kind(pair: LearnedPair) -> tuple[object, ...]:
    return type(pair.act), cast(nn.Conv2d, pair.op_x).kernel_size


def _is_stencil(op: nn.Module, h: Tensor) -> bool:
    """Whether it is a depth-wise convolution (not a subclass, which may do more) that keeps the shape of `h`."""
    return (
        type(op) is nn.Conv2d
        and op.in_channels == op.out_channels == op.groups == h.shape[1]
        and op.kernel_size in _SIZES
        and op.padding == (op.kernel_size[0] // 2, op.kernel_size[1] // 2)
        and op.padding_mode == "zeros"
        and op.stride == op.dilation == (1, 1)
        and _is_plain(op, h)
    )


def _is_batch_norm(norm: nn.Module, h: Tensor) -> bool:
    """Whether it is a batch norm (not a subclass) that normalises by the statistics of this batch."""
    return type(norm) is nn.BatchNorm2d and norm.training and norm.num_features == h.shape[1] and _is_plain(norm, h)


def _is_plain(module: nn.Module, h: Tensor) -> bool:
    """Whether parameters and running statistics are of the kind of `h`."""
    own = [*module._parameters.values(), *module._buffers.values()]
    numbers = [q for q in own if q is not None and q.is_floating_point()]
    return all(q.dtype == h.dtype and q.device == h.device for q in numbers)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [getattr(torch_module, f"_global{name}") for name in _HOOKS]


def _is_silent(*modules: nn.Module) -> bool:
    """Whether no hook listens to the modules, which are not called."""
    return not any(getattr(module, name) for module in modules for name in _HOOKS)
