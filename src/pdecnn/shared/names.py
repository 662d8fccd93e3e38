"""Hints for names that were mistyped."""

from collections.abc import Iterable
from difflib import get_close_matches


def close_to(name: object, known: Iterable[str], n: int = 3, cutoff: float = 0.6) -> str:
    """A sentence with the known names nearest to `name`, to be put after an error; empty if there are none.

    Example:
        >>> close_to("resnet19", ["resnet18", "vgg11"])
        " Close: 'resnet18'."
    """
    close = get_close_matches(str(name), list(known), n, cutoff)
    return f" Close: {', '.join(map(repr, close))}." if close else ""
