"""Optional dependencies, imported when they are needed and named when they are not there."""

import importlib
from typing import Any

# who needs what an extra installs
_ROOMS = {
    "export": "deploy",
    "executorch": "deploy",
    "hub": "hub",
    "ode": "layers",
    "prune": "condensation",
    "search": "training",
    "studio": "viz",
    "symmetry": "symmetry",
    "train": "training",
    "viz": "viz",
}
_NOT_OURS = ("executorch",)  # too large to be an extra of pdecnn: installed by its own name


def require(module: str, extra: str) -> Any:
    """Imports `module`, or says who needs it and what to install.

    Example:
        >>> require("no_such_module", "viz")
        Traceback (most recent call last):
        ModuleNotFoundError: viz: needs no_such_module, which is not installed. Run: pip install "pdecnn[viz]"
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or module)
        cause = "which is not installed" if absent else f"which cannot be imported ({error})"
        target = extra if extra in _NOT_OURS else f'"pdecnn[{extra}]"'
        message = f"{_ROOMS[extra]}: needs {module}, {cause}. Run: pip install {target}"
        raise ModuleNotFoundError(message, name=module) from error
