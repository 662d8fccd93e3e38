"""Two names exchanged in one step, where the system can: no moment at which either is missing."""

import ctypes
import errno
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_HERE = -100  # AT_FDCWD: relative paths begin at the current folder
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)  # this kernel or file system does not do it


def exchange(a: Path, b: Path) -> bool:
    """Exchanges two existing files or folders of one file system; False, with nothing done, where it cannot be had."""
    rename = _rename()
    if rename is None:
        return False
    if rename(os.fsencode(a), os.fsencode(b)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(a), None, str(b))


@cache
def _rename() -> Any:
    """The system's function of two paths, or None."""
    if sys.platform not in ("linux", "darwin"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return lambda a, b: library.renamex_np(a, b, _EXCHANGE)
    if hasattr(library, "renameat2"):
        return lambda a, b: library.renameat2(_HERE, a, _HERE, b, _EXCHANGE)
    return None
