"""Where values lie in the arena: no two that are needed at the same time overlap, and the whole is as small as found."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TRIES = 300
ALIGNMENT = 4  # floats


@dataclass(frozen=True)
class Buffer:
    """`size` floats that are needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def plan(buffers: Sequence[Buffer]) -> tuple[list[int], int]:
    """The first float of each buffer, and the number of floats of all.

    Buffers are placed one after the other, each in the smallest gap that holds it beside those that live with it. Their
    order decides how well they fit: the largest first, the longest first, and orders near these, until the most that
    is needed at once is reached.

    Example:
        >>> plan([Buffer(8, 0, 1), Buffer(4, 1, 2), Buffer(8, 2, 3)])
        ([0, 8, 0], 12)
    """
    sizes = [-(-b.size // ALIGNMENT) * ALIGNMENT for b in buffers]
    least = lower_bound(buffers)
    chance = random.Random(0)
    keys = (
        lambda i: (-sizes[i], buffers[i].first),
        lambda i: (-(buffers[i].last - buffers[i].first), -sizes[i]),
        lambda i: (-sizes[i] * (buffers[i].last - buffers[i].first + 1), buffers[i].first),
        lambda i: (buffers[i].first, -sizes[i]),
    )
    orders = [sorted(range(len(buffers)), key=key) for key in keys]
    best: tuple[list[int], int] | None = None
    for attempt in range(TRIES):
        if attempt < len(orders):
            order = orders[attempt]
        else:
            order = list(kept)
            for _ in range(1 + attempt % 3):
                i = chance.randrange(len(order)) if order else 0
                order.insert(chance.randrange(len(order) + 1), order.pop(i)) if order else None
        found = _place(order, buffers, sizes)
        if best is None or found[1] < best[1]:
            best, kept = found, order
        if best[1] <= least:
            break
    assert best is not None
    return best


def lower_bound(buffers: Iterable[Buffer]) -> int:
    """The most floats that are needed at one time."""
    live = list(buffers)
    steps = {b.first for b in live}
    return max((sum(-(-b.size // ALIGNMENT) * ALIGNMENT for b in live if b.first <= t <= b.last) for t in steps), default=0)


def _place(order: Sequence[int], buffers: Sequence[Buffer], sizes: Sequence[int]) -> tuple[list[int], int]:
    places = [-1] * len(buffers)
    end = 0
    for i in order:
        b = buffers[i]
        taken = sorted(
            (places[j], places[j] + sizes[j])
            for j in range(len(buffers))
            if places[j] >= 0 and buffers[j].first <= b.last and b.first <= buffers[j].last
        )
        best, gap, reached = -1, -1, 0
        for start, stop in taken:
            if start - reached >= sizes[i] and (best < 0 or start - reached < gap):
                best, gap = reached, start - reached
            reached = max(reached, stop)
        places[i] = reached if best < 0 else best
        end = max(end, places[i] + sizes[i])
    return places, end
