"""The Global layer as ONNX Runtime runs it fastest: on rows of pixels whose channels lie side by side.

A map `(N, C, H, W)` is held as `(N, H, W C)`. A neighbour is then a long run of memory: along x a slice of the rows
beside themselves, along y a gather of whole rows. The convolutions of the runtime hand over channels in this order
at no cost, if a reshape follows the transposition; without it the transposition would be moved on. The steps, and
borders other than periodic ones, are those of `portable.py`.
"""

from functools import partial

import torch
from torch import Tensor

from pdecnn.deploy import portable

_OPS = torch.ops.pdecnn


class Rows(portable.Planes):
    """Maps of the shape of `h`, held as rows; the border is periodic."""

    def __init__(self, h: Tensor, boundary: str = "periodic") -> None:
        super().__init__(h, boundary)
        self.C, self.W = h.shape[1], h.shape[3]

    def hold(self, q: Tensor) -> Tensor:
        """`(N, C, H, W) -> (N, H, W C)`; numbers stay, one number per channel becomes a row."""
        if q.ndim == 0:
            return q
        C, H, columns = q.shape[1:]
        rows = q.permute(0, 2, 3, 1).reshape(-1, H, columns * C)
        return rows if columns == self.W else rows.repeat(1, 1, self.W)

    def release(self, q: Tensor) -> Tensor:
        """`(N, H, W C) -> (N, C, H, W)`."""
        return q.reshape(-1, q.shape[1], self.W, self.C).permute(0, 3, 1, 2)

    def per_channel(self, q: Tensor) -> Tensor:
        """Numbers `(C,)` for every pixel of a row."""
        return q.repeat(self.W)

    def neighbours(self, q: Tensor, axis: int, parity: int) -> tuple[Tensor, Tensor]:
        """The pixels to the right and to the left of each, or below and above."""
        if axis == -1:
            n = q.shape[2]
            twice = torch.cat([q, q], 2)
            return twice.narrow(2, self.C, n), twice.narrow(2, n - self.C, n)
        y = torch.arange(q.shape[1])
        return q.index_select(1, (y + 1) % len(y)), q.index_select(1, (y - 1) % len(y))

    def inflow(self, a: Tensor, axis: int) -> Tensor | None:
        """Minus the divergence; a number has none, and a row that stands for all rows none along y."""
        if a.ndim == 0:
            return None
        after, before = self.neighbours(a, axis, 1)
        return before - after


TABLE: portable.Table = {
    **portable.TABLE,
    _OPS.advection_diffusion.default: partial(portable.advection_diffusion, grid_of=Rows),
    _OPS.global_layer.default: partial(portable.global_layer, grid_of=Rows),
}
