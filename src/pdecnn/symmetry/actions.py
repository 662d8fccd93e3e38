"""How a change of basis of the stream, `u -> T u`, acts on the weights of each kind of block.

A block *reads* the stream of its input and must absorb `T^-1`; it *writes* to the stream of its output and must apply
`T`. All weights are changed in place; norms on the stream must have been folded. For the factored equations `T` must
be monomial: `u~_i = d_i u_src(i)`. A `T` that is not is put into the matrices that there are (which changes the
function: only `transform(..., force=True)` gets here with such a T).
"""

from functools import singledispatch

import torch
from torch import Tensor, nn

from pdecnn.layers.cp_block import CPBlock, LiftedBlock
from pdecnn.layers.quasilinear import Equation3, Equation4, Equation5, Equation6, Equation7, QuasilinearBlock
from pdecnn.layers.shared_expand import SharedDepthwiseExpand
from pdecnn.layers.tensor_block import TensorBlock
from pdecnn.symmetry.groups import Group


def read(layer: nn.Module, T: Tensor) -> None:
    """`W <- W T^-1` on the input axis of a convolution or linear layer."""
    assert isinstance(layer, (nn.Conv2d, nn.Linear))
    W = layer.weight.data
    flat = W.flatten(2) if W.ndim == 4 else W.unsqueeze(2)  # (out, in, taps)
    layer.weight.data = torch.einsum("oit,ij->ojt", flat, torch.linalg.inv(T)).reshape(W.shape)


def write(conv: nn.Module, T: Tensor) -> None:
    """`W <- T W` and `b <- T b` on the output axis of a convolution."""
    assert isinstance(conv, nn.Conv2d)
    conv.weight.data = torch.einsum("ij,jkhw->ikhw", T, conv.weight.data)
    if conv.bias is not None:
        conv.bias.data = T @ conv.bias.data


@singledispatch
def act_on_output(block: QuasilinearBlock, T: Tensor) -> None:
    """Lets the block write `T v` where it wrote `v`. The skip is not touched."""
    write(block.mix, T)  # type: ignore[arg-type]


@act_on_output.register
def _(block: Equation4, T: Tensor) -> None:
    if (monomial := split_monomial(T)) is None:
        write(block.mix, T if block.mix.groups == 1 else torch.block_diag(*[T] * block.f))
        return
    src, d = monomial
    sums = block.mix.out_channels // block.m  # one for each derivative in the reading of the text
    rows = (torch.arange(sums).unsqueeze(1) * block.m + src).flatten()
    _select_rows(block.mix, rows)
    _select_rows(block.coefficients, rows)
    _scale_end(block, src, d)


@act_on_output.register
def _(block: Equation5, T: Tensor) -> None:
    if (monomial := split_monomial(T)) is not None:
        src, d = monomial
        order = torch.arange(block.f * block.n) if block.order is None else block.order
        groups = order.view(block.m, -1)[src]
        if block.has_end_norm:
            block.order = groups.flatten()
            _scale_end(block, src, d)
            return
        rows = torch.ones(block.f * block.n, dtype=T.dtype)
        rows[groups] = d.unsqueeze(1)
        block.coefficients.weight.data *= rows.view(-1, 1, 1, 1)
        block.order = groups.flatten()


@singledispatch
def act_on_input(block: QuasilinearBlock, T: Tensor) -> None:
    """Lets the block read `T u` where it read `u`. The skip is not touched."""
    read(block.coefficients, T)  # type: ignore[arg-type]
    if (monomial := split_monomial(T)) is not None:
        src, d = monomial
        _rename(block, src, (src.unsqueeze(1) * block.f + torch.arange(block.f)).flatten(), d)


@act_on_input.register
def _(block: CPBlock, T: Tensor) -> None:
    read(block.factors, T)


@act_on_input.register
def _(block: LiftedBlock, T: Tensor) -> None:
    read(block.select, T)
    read(block.coefficients, T)


@act_on_input.register
def _(block: TensorBlock, T: Tensor) -> None:
    block.change_input(torch.linalg.inv(T))
    if not block.shared and (monomial := split_monomial(T)) is not None:  # the stencils go along with their channels
        index = (monomial[0].unsqueeze(1) * block.f + torch.arange(block.f)).flatten()
        assert isinstance(block.expand, nn.Conv2d)
        _select_rows(block.expand, index)


@singledispatch
def _rename(block: QuasilinearBlock, src: Tensor, index: Tensor, d: Tensor) -> None:
    """Goes along inside a block when its channel `i` is now `d_i` times the former channel `src(i)`.

    `index` is the permutation of the `f n` inner channels that goes with `src`.
    """
    raise TypeError(f"act_on_input: no rule for {type(block).__name__}.")


@_rename.register
def _(block: Equation3, src: Tensor, index: Tensor, d: Tensor) -> None:
    _select_rows(block.coefficients, index)
    _select_columns(block.mix, index)
    _permute_derivatives(block, index, d)


@_rename.register
def _(block: Equation4, src: Tensor, index: Tensor, d: Tensor) -> None:
    _select_columns(block.mix, index if block.mix.groups == 1 else src)
    _permute_derivatives(block, index, d)


@_rename.register
def _(block: Equation5, src: Tensor, index: Tensor, d: Tensor) -> None:
    _select_rows(block.coefficients, index)
    _permute_derivatives(block, index, d)
    order = torch.arange(len(index)) if block.order is None else block.order
    block.order = index.argsort()[order]  # where the products have gone


@_rename.register
def _(block: Equation6, src: Tensor, index: Tensor, d: Tensor) -> None:
    _select_rows(block.coefficients, src)
    block.coefficients.weight.data /= d.view(-1, 1, 1, 1)
    _select_columns(block.mix, index)
    _permute_derivatives(block, index)


@_rename.register
def _(block: Equation7, src: Tensor, index: Tensor, d: Tensor) -> None:
    _select_rows(block.coefficients, index)
    block.coefficients.weight.data /= d.repeat_interleave(block.f).view(-1, 1, 1, 1)
    _select_columns(block.mix, index)
    _select_channels(block.norm_expand, index)
    if not block.shared:
        block.derive.weight.data = block.derive.weight.data[index]


def split_monomial(T: Tensor) -> tuple[Tensor, Tensor] | None:
    """`(src, d)` with `T[i, src(i)] = d_i`, or None if `T` is not monomial."""
    if not Group.MONOMIAL.contains(T):
        return None
    src = T.abs().argmax(1)
    return src, T[torch.arange(len(T)), src]


def _scale_end(block: QuasilinearBlock, src: Tensor, d: Tensor) -> None:
    """Reorders and scales the norm at the end of a block, which no convolution precedes."""
    norm = block.norm
    assert isinstance(norm, nn.BatchNorm2d)
    _select_channels(norm, src)
    norm.weight.data *= d
    norm.bias.data *= d


def _select_rows(conv: nn.Conv2d, index: Tensor) -> None:
    conv.weight.data = conv.weight.data[index]
    if conv.bias is not None:
        conv.bias.data = conv.bias.data[index]


def _select_columns(conv: nn.Conv2d, index: Tensor) -> None:
    conv.weight.data = conv.weight.data[:, index]


def _select_channels(norm: nn.Module, index: Tensor) -> None:
    for tensor in (*norm.parameters(), *norm.buffers()):
        if tensor.ndim == 1:
            tensor.data = tensor.data[index]


def _permute_derivatives(block: QuasilinearBlock, index: Tensor, d: Tensor | None = None) -> None:
    """Reorders stencils and inner norm; a derivative that comes in `d` times as large leaves the norm unchanged."""
    if not isinstance(block.expand, SharedDepthwiseExpand):
        assert isinstance(block.expand, nn.Conv2d)
        _select_rows(block.expand, index)
    norm = block.norm_expand
    _select_channels(norm, index)
    if d is not None:
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        d = d.repeat_interleave(block.f)
        norm.weight.data /= d  # not the variance: it stands beside eps
        norm.running_mean.data *= d
