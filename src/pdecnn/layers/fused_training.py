"""The depth-wise parts of a Global layer in training, several at once.

`pdecnn::global_training` computes the coefficients and the steps plane by plane, `pdecnn::depthwise_norm` all
coefficient maps from one read of the state. Where they do not apply (see `_is_covered` and `_can_run`) the modules run
one by one, with the same result.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from pdecnn.kernels.depthwise_norm import depthwise_norm
from pdecnn.kernels.global_training import global_training
from pdecnn.kernels.global_training.cpu import covers_planes
from pdecnn.kernels.registry import is_native
from pdecnn.layers.coefficients import LearnedPair, NumberPair, Pair

_ACTS = {nn.ReLU: "relu", nn.ReLU6: "relu6", nn.Identity: "identity"}
_SIZES = ((3, 3), (5, 5))


def can_solve(velocity: nn.Module, diffusion: nn.Module, h: Tensor, K: int) -> bool:
    """Whether `solve` covers these producers and planes of the size of those of `h`."""
    H, W = h.shape[2:]
    has_sizes = type(H) is int and type(W) is int  # and not symbols for them
    if not (has_sizes and _can_run(h) and is_native("global_training") and _is_covered(velocity, h)):
        return False
    pair, maps = cast(LearnedPair, velocity), 2
    if not _is_number_pair(diffusion):
        if not (_is_covered(diffusion, h) and _kind(pair) == _kind(cast(LearnedPair, diffusion))):
            return False
        maps = 4
    side = cast(nn.Conv2d, pair.op_x).kernel_size[0]
    return covers_planes(H, W, maps, side, K)


def solve(velocity: nn.Module, diffusion: nn.Module, h: Tensor, x: Tensor, **options: Any) -> Tensor:
    """`h^K` with a periodic boundary, from the first state and the input; `options` are those of `global_training`."""
    D = (float(diffusion.x), float(diffusion.y)) if isinstance(diffusion, NumberPair) else None
    pairs = [cast(LearnedPair, pair) for pair in ((velocity, diffusion) if D is None else (velocity,))]
    norms, act = _norms(pairs), _ACTS[type(pairs[0].act)]
    weight, bias = _stencils(pairs, h)
    gamma, beta, eps = _scales(norms, h)
    out, means, variances = global_training(h, x, weight, bias, gamma, beta, eps, act, D=D, **options)
    _update_all(norms, means, variances, h)
    return out


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
        _can_run(h) and h.is_contiguous() and _is_batch_norm(norm, h) and type(act) in _ACTS and is_silent(norm, act)
    ):
        return cast(Tensor, act(norm(h)))
    (out,) = _run([cast(nn.BatchNorm2d, norm)], h, None, None, _ACTS[type(act)])
    return out


def _pair(x: Tensor, y: Tensor) -> Pair:
    return x, y


def _norms(pairs: Sequence[LearnedPair]) -> list[nn.BatchNorm2d]:
    return [cast(nn.BatchNorm2d, norm) for pair in pairs for norm in (pair.norm_x, pair.norm_y)]


def _stencils(pairs: Sequence[LearnedPair], h: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of all convolutions, stacked."""
    ops = [cast(nn.Conv2d, op) for pair in pairs for op in (pair.op_x, pair.op_y)]
    weight = torch.stack([op.weight for op in ops]).squeeze(2)
    if all(op.bias is None for op in ops):
        return weight, None
    return weight, torch.stack([h.new_zeros(h.shape[1]) if op.bias is None else op.bias for op in ops])


def _scales(norms: Sequence[nn.BatchNorm2d], h: Tensor) -> tuple[Tensor, Tensor, list[float]]:
    """Scales, shifts and eps of all norms, stacked."""
    C = h.shape[1]
    gamma = torch.stack([h.new_ones(C) if norm.weight is None else norm.weight for norm in norms])
    beta = torch.stack([h.new_zeros(C) if norm.bias is None else norm.bias for norm in norms])
    return gamma, beta, [norm.eps for norm in norms]


def _maps(pairs: Sequence[LearnedPair], h: Tensor) -> list[Tensor]:
    weight, bias = _stencils(pairs, h)
    return _run(_norms(pairs), h, weight, bias, _ACTS[type(pairs[0].act)])


def _run(
    norms: Sequence[nn.BatchNorm2d], h: Tensor, weight: Tensor | None, bias: Tensor | None, act: str
) -> list[Tensor]:
    gamma, beta, eps = _scales(norms, h)
    maps, means, variances = depthwise_norm(h, weight, bias, gamma, beta, eps, act)
    _update_all(norms, means, variances, h)
    return maps


def _update_all(norms: Sequence[nn.BatchNorm2d], means: Tensor, variances: Tensor, h: Tensor) -> None:
    count = h.numel() // h.shape[1]
    with torch.no_grad():
        for norm, mean, var in zip(norms, means, variances * (count / (count - 1)), strict=True):
            _update(norm, mean, var)


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


def _is_number_pair(pair: nn.Module) -> bool:
    """Whether it is two fixed numbers: not tensors that may be learned."""
    numbers = (float, int)
    return type(pair) is NumberPair and type(pair.x) in numbers and type(pair.y) in numbers and is_silent(pair)


def _is_covered(pair: nn.Module, h: Tensor) -> bool:
    """Whether it is `act(norm(conv(h)))` for both axes, of kinds that the operator has, with batch statistics."""
    if type(pair) is not LearnedPair or pair.gated or type(pair.act) not in _ACTS:
        return False
    return (
        all(_is_stencil(op, h) for op in (pair.op_x, pair.op_y))
        and cast(nn.Conv2d, pair.op_x).kernel_size == cast(nn.Conv2d, pair.op_y).kernel_size
        and all(_is_batch_norm(norm, h) for norm in (pair.norm_x, pair.norm_y))
        and is_silent(*pair.modules())
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


def is_silent(*modules: nn.Module) -> bool:
    """Whether no hook listens to the modules, which are not called."""
    return not any(getattr(module, name) for module in modules for name in _HOOKS)
