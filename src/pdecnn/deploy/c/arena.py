"""Where values lie in the arena: those that are needed at the same time do not overlap, and the whole is small."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

TRIES, PAIRS = 300, 20_000_000  # orders, and pairs of buffers that are looked at in all
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
    sizes = [_whole(b.size) for b in buffers]
    least = lower_bound(buffers)
    chance = random.Random(0)
    keys = (
        lambda i: (-sizes[i], buffers[i].first),
        lambda i: (-(buffers[i].last - buffers[i].first), -sizes[i]),
        lambda i: (-sizes[i] * (buffers[i].last - buffers[i].first + 1), buffers[i].first),
        lambda i: (buffers[i].first, -sizes[i]),
    )
    found = [_place(sorted(range(len(buffers)), key=key), buffers, sizes) for key in keys]
    best = min(found, key=lambda placing: placing.end)
    for attempt in range(min(TRIES, PAIRS // (1 + len(buffers) ** 2))):
        if best.end <= least or len(buffers) < 2:
            break
        order = list(best.order)
        for _ in range(1 + attempt % 3):
            order.insert(chance.randrange(len(order)), order.pop(chance.randrange(len(order))))
        best = min(best, _place(order, buffers, sizes), key=lambda placing: placing.end)
    return best.places, best.end


class _Placing(NamedTuple):
    """Buffers as they came out, placed in an order."""

    places: list[int]
    end: int
    order: Sequence[int]


def lower_bound(buffers: Iterable[Buffer]) -> int:
    """The most floats that are needed at one time."""
    needed: dict[int, int] = {}
    for b in buffers:
        for t in range(b.first, b.last + 1):
            needed[t] = needed.get(t, 0) + _whole(b.size)
    return max(needed.values(), default=0)


def _whole(floats: int) -> int:
    return -(-floats // ALIGNMENT) * ALIGNMENT


def _place(order: Sequence[int], buffers: Sequence[Buffer], sizes: Sequence[int]) -> _Placing:
    places = [-1] * len(buffers)
    live: dict[int, list[int]] = {}  # the placed buffers that a step needs
    end = 0
    for i in order:
        b = buffers[i]
        others = {j for t in range(b.first, b.last + 1) for j in live.get(t, ())}
        best, gap, reached = -1, -1, 0
        for start, stop in sorted((places[j], places[j] + sizes[j]) for j in others):
            if start - reached >= sizes[i] and (best < 0 or start - reached < gap):
                best, gap = reached, start - reached
            reached = max(reached, stop)
        places[i] = reached if best < 0 else best
        end = max(end, places[i] + sizes[i])
        for t in range(b.first, b.last + 1):
            live.setdefault(t, []).append(i)
    return _Placing(places, end, order)
