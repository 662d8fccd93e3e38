"""What all figures share: a figure without a window, its colours, and how it is saved."""

import io
from pathlib import Path
from typing import Any

from pdecnn.shared.extras import require
from pdecnn.shared.files import saving, write_atomic

INK, BLUE, GREY, RED = "#22303c", "#1f6f8b", "#9aa5b1", "#b5493a"
FORMATS = ("png", "pdf", "svg")


def new_figure(width: float, height: float) -> Any:
    """An empty figure of that many inches."""
    return require("matplotlib.figure", "viz").Figure(figsize=(width, height), layout="constrained")


def show_map(axes: Any, values: Any, title: str = "", **options: Any) -> Any:
    """A feature map as an image without ticks."""
    shown = axes.imshow(values, interpolation="nearest", **options)
    axes.set_xticks([])
    axes.set_yticks([])
    if title:
        axes.set_title(title, fontsize=9, color=INK)
    return shown


def format_of(path: Path) -> str:
    """The format that the ending of a file asks for.

    Example:
        >>> from pathlib import Path
        >>> format_of(Path("cost.PDF"))
        'pdf'
    """
    ending = path.suffix[1:].lower()
    if ending not in FORMATS:
        raise ValueError(
            f"figure: expected a file that ends in {', '.join(f'.{name}' for name in FORMATS)}, got {str(path)!r}. "
            "Give --output such a name."
        )
    return ending


def save(figure: Any, path: Path) -> None:
    """Writes the figure in the format of the file's ending, all of it or nothing."""
    kind = format_of(path)
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=130)
    write_atomic(path, content.getvalue())
