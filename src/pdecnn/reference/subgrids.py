"""Neighbours `d` pixels away on a periodic grid: the grid falls apart into interleaved grids of true neighbours.

Along an axis of n pixels, `i -> i + d (mod n)` has `g = gcd(d, n)` orbits of length `n / g`. Listing each orbit in its
own row turns "d pixels away" into "next"; no pixel is lost or repeated, for any n and d.
"""

import torch
from torch import Tensor


def split(q: Tensor, d: int) -> Tensor:
    """Puts the interleaved grids of `q`, `(N, C, H, W)`, into the batch: `(N * g_y * g_x, C, H / g_y, W / g_x)`.

    Example:
        >>> split(torch.arange(6.0).view(1, 1, 1, 6), 2).squeeze()
        tensor([[0., 2., 4.],
                [1., 3., 5.]])
        >>> split(torch.arange(5.0).view(1, 1, 1, 5), 2).squeeze()
        tensor([0., 2., 4., 1., 3.])
    """
    C = q.shape[1]
    rows = _orbits(_orbits(q, 3, d), 2, d)  # (N, C, g_y, H / g_y, g_x, W / g_x)
    return rows.permute(0, 2, 4, 1, 3, 5).reshape(-1, C, rows.shape[3], rows.shape[5])


def merge(q: Tensor, d: int, height: int, width: int) -> Tensor:
    """Undoes `split`: back to `(N, C, height, width)`."""
    g_y, g_x = _gcd(d, height), _gcd(d, width)
    rows = q.reshape(-1, g_y, g_x, *q.shape[1:]).permute(0, 3, 1, 4, 2, 5)
    return _rejoin(_rejoin(rows, 2, d), 3, d)


def _gcd(d: int, n: int) -> int:
    """`math.gcd`, where n may be the symbol of a size: a graph asks for its remainders alone."""
    for g in range(d, 1, -1):
        if d % g == 0 and n % g == 0:
            return g
    return 1


def _orbits(q: Tensor, axis: int, d: int) -> Tensor:
    n = q.shape[axis]
    g = _gcd(d, n)
    if g == d:
        return q.reshape(*q.shape[:axis], n // d, d, *q.shape[axis + 1 :]).transpose(axis, axis + 1)
    q = q.index_select(axis, _order(n, d, q.device))
    return q.reshape(*q.shape[:axis], g, n // g, *q.shape[axis + 1 :])


def _rejoin(rows: Tensor, axis: int, d: int) -> Tensor:
    g, length = rows.shape[axis], rows.shape[axis + 1]
    if g == d:
        return rows.transpose(axis, axis + 1).flatten(axis, axis + 1)
    order = _order(g * length, d, rows.device)
    return rows.flatten(axis, axis + 1).index_select(axis, order.argsort())


def _order(n: int, d: int, device: torch.device) -> Tensor:
    """The indices `0 ... n-1` listed orbit by orbit."""
    g = _gcd(d, n)
    start = torch.arange(g, device=device)[:, None]
    return ((start + d * torch.arange(n // g, device=device)) % n).flatten()
