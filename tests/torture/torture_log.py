"""How hard to try, and where the counts go."""

import os
from pathlib import Path

LONG = bool(os.environ.get("PDECNN_TORTURE"))  # `make torture` sets it


def note(text: str) -> None:
    """Adds a line to the file that PDECNN_TORTURE_LOG names, if any."""
    name = os.environ.get("PDECNN_TORTURE_LOG")
    if name:
        with Path(name).open("a") as file:
            file.write(text + "\n")
