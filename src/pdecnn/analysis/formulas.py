"""How many multiply-adds an operator does: torch's own flop formulas, and ours for what torch leaves at zero.

One MAC is one multiplication, with or without the addition that follows it; torch's flop counter counts 2 FLOPs for it,
and the formulas of the registry are in FLOPs. Only `macs_of` crosses from one unit to the other. The formulas below are
not put into torch's global registry, so that a user's own `FlopCounterMode` gives the numbers it always gave; the
operators of pdecnn register theirs there (`torch.utils.flop_counter.register_flop_formula`) where they are defined.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

CONVOLUTIONS = frozenset({aten.convolution, aten._convolution, aten.cudnn_convolution, aten.mkldnn_convolution})
LINEAR = frozenset({aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten._scaled_mm, aten.mv, aten.addmv, aten.dot})
FFTS = frozenset({aten._fft_r2c, aten._fft_c2c, aten._fft_c2r})
BATCH_NORMS = frozenset(
    {
        aten.native_batch_norm,
        aten._native_batch_norm_legit,
        aten._native_batch_norm_legit_no_training,
        aten._batch_norm_with_update,
        aten._batch_norm_no_update,
        aten.cudnn_batch_norm,
        aten.miopen_batch_norm,
        aten.batch_norm,
    }
)

KINDS = ("convolution", "linear", "pde", "fft", "elementwise")
# Our operators are counted as "pde" but for these: stencils applied as a convolution is, and spectral filters.
OUR_KINDS = {
    "pdecnn.depthwise": "convolution",
    "pdecnn.shared_expand": "convolution",
    "pdecnn.shared_expand_product": "convolution",
    "pdecnn.spectral_filter": "fft",
}

UNCOUNTED_REASONS = {
    "batch_norm": "an affine map in eval mode: folds into the convolution or the solver beside it",
    "additions": "additions and comparisons only",
    "movement": "moves data",
    "pooling": "one multiplication per output at most",
    "activation": "activation function",
    "other": "no formula",
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ADDITIONS = _names(
    "add sub rsub neg relu clamp clamp_min clamp_max hardtanh maximum minimum sum cumsum abs amax amin max min argmax "
    "max_pool2d_with_indices max_pool3d_with_indices any all eq ne lt le gt ge bitwise_and logical_and where sign"
)
_MOVEMENT = _names(
    "cat stack clone copy roll flip constant_pad_nd _to_copy fill zero index index_select gather upsample_nearest2d "
    "repeat masked_fill index_put slice_scatter"
)
_POOLING = _names("mean avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d")
_ACTIVATIONS = _names(
    "sigmoid tanh silu hardswish hardsigmoid gelu elu leaky_relu softplus mish prelu _softmax _log_softmax exp log "
    "sqrt rsqrt"
)
_FREE = _names(
    "empty zeros ones full arange linspace eye rand randn scalar_tensor empty_like zeros_like ones_like full_like "
    "new_empty new_zeros new_ones new_full empty_strided new_empty_strided lift_fresh detach alias _unsafe_view "
    "_reshape_alias _local_scalar_dense as_strided resize"
)


def _elementwise(multiplications: int) -> Callable[..., int]:
    def flops(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        out = out_val[0] if isinstance(out_val, (tuple, list)) else out_val
        return 2 * multiplications * out.numel() if out.is_floating_point() or out.is_complex() else 0

    return flops


def _power(x: Tensor, exponent: Any, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    # a whole power by repeated squaring; other powers are exp(e log x), an activation-like function
    if not isinstance(exponent, (int, float)) or exponent != int(exponent) or not 1 <= abs(exponent) <= 64:
        return 0
    n = int(abs(exponent))
    return int(2 * out_val.numel() * (n.bit_length() - 1 + n.bit_count() - 1 + (exponent < 0)))


def _dense_vector(a: Tensor, b: Tensor, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    return 2 * a.numel()


def _dense_vector_add(y: Tensor, a: Tensor, b: Tensor, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    return 2 * a.numel()


def fft_macs(lengths: Sequence[int], transforms: int, *, real: bool) -> int:
    """Real multiplications of `transforms` radix-2 FFTs over axes of these lengths: `2 n log2 n` each, half if real.

    A complex butterfly is one complex product (4 multiplications) for two outputs and there are `n/2 log2 n` of them;
    other radices differ by a few per cent. The logarithm is taken as it is for lengths that are no power of two.

    Example:
        >>> fft_macs([8], 1, real=False), fft_macs([4, 4], 3, real=True)
        (48, 192)
    """
    n = math.prod(lengths)
    return math.ceil((1 if real else 2) * transforms * n * math.log2(n)) if n > 1 else 0


def _fft(real: bool) -> Callable[..., int]:
    def flops(x: Tensor, dim: Sequence[int], *args: Any, out_val: Any = None, **kwargs: Any) -> int:
        full = out_val if real and not out_val.is_complex() else x  # the side of a real transform with all n samples
        lengths = [full.shape[d] for d in dim]
        return 2 * fft_macs(lengths, full.numel() // max(1, math.prod(lengths)), real=real)

    return flops


_OURS: dict[Any, Callable[..., int]] = {
    **dict.fromkeys((aten.mul, aten.mul_, aten.div, aten.div_, aten.reciprocal, aten.square), _elementwise(1)),
    **dict.fromkeys((aten.addcmul, aten.addcmul_, aten.lerp, aten.lerp_), _elementwise(1)),
    **dict.fromkeys((aten.addcdiv, aten.addcdiv_), _elementwise(2)),
    **dict.fromkeys((aten.pow, aten.pow_), _power),
    # one multiplication for the variance, one for the affine map; unlike batch norm these do not fold
    **dict.fromkeys((aten.native_group_norm, aten.native_layer_norm), _elementwise(2)),
    **dict.fromkeys((aten.mv, aten.dot), _dense_vector),
    aten.addmv: _dense_vector_add,
    aten._fft_r2c: _fft(real=True),
    aten._fft_c2r: _fft(real=True),
    aten._fft_c2c: _fft(real=False),
}


def has_formula(packet: Any) -> bool:
    """Whether the multiply-adds of this operator are known."""
    return packet in flop_registry or packet in _OURS


def macs_of(packet: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The multiply-adds of one call of an operator that has a formula."""
    formula = flop_registry.get(packet) or _OURS[packet]
    flops = int(formula(*args, **kwargs, out_val=out))
    macs = -(-flops // 2)  # a formula may hold a multiplication without an addition, which is one FLOP and one MAC
    return macs * _real_products(packet, args)


def _real_products(packet: Any, args: tuple[Any, ...]) -> int:
    """Real multiplications in one product of the operands' kind: 4 if two of them are complex, 2 if one is."""
    if packet in FFTS:
        return 1  # said in its formula
    operands = sum(isinstance(a, Tensor) and a.is_complex() for a in args) + sum(isinstance(a, complex) for a in args)
    if packet in (aten.div, aten.div_) and operands == 2:
        return 8  # a product with the conjugate, the square of the length, and two divisions
    return (1, 2, 4)[min(operands, 2)]


def kind_of(packet: Any) -> str:
    """The column of the report in which the multiply-adds of this operator are counted."""
    if packet in CONVOLUTIONS or str(packet).startswith("aten.convolution"):
        return "convolution"
    if packet in FFTS:
        return "fft"
    if str(packet).startswith("pdecnn."):
        return OUR_KINDS.get(str(packet), "pde")
    return "elementwise" if packet in _OURS and packet not in LINEAR else "linear"


def reason_uncounted(func: Any) -> str | None:
    """Why an operator without a formula is not counted; None for views and allocations, which compute nothing."""
    name = func._schema.name.partition("::")[2]
    stem = name.rstrip("_") if not name.startswith("_") else name
    if stem in _FREE or _is_view(func):
        return None
    if func._overloadpacket in BATCH_NORMS:
        return UNCOUNTED_REASONS["batch_norm"]
    groups = (("additions", _ADDITIONS), ("movement", _MOVEMENT), ("pooling", _POOLING), ("activation", _ACTIVATIONS))
    for reason, names in groups:
        if stem in names:
            return UNCOUNTED_REASONS[reason]
    return UNCOUNTED_REASONS["other"]


def _is_view(func: Any) -> bool:
    aliases = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
    return bool(aliases) and not any(a.is_write for a in aliases)
