"""Names: hints for mistyped ones, and the dotted paths of modules."""

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


def child_path(parent: str, name: str) -> str:
    """The path of a child; the model itself is `""`."""
    return f"{parent}.{name}" if parent else name


def is_within(path: str, module: str) -> bool:
    """Whether a path is that of `module` or of something inside it.

    Example:
        >>> is_within("layer1.0.conv", "layer1.0"), is_within("layer10", "layer1"), is_within("layer1", "")
        (True, False, True)
    """
    return not module or path == module or path.startswith(module + ".")
