"""Optional dependencies, imported when they are needed and named when they are not there."""

import importlib
from typing import Any


def require(module: str, extra: str) -> Any:
    """Imports `module`, or says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'export: needs {module}, which is not installed. Run: pip install "pdecnn[{extra}]"'
        ) from error
