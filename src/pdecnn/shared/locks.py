"""One owner for a folder: a lock that a crash frees, with a file that says who holds it."""

import contextlib
import errno
import os
import socket
from pathlib import Path

from pdecnn.shared.files import SaveError
from pdecnn.shared.reading import FileError, read_text

try:
    import fcntl
except ModuleNotFoundError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"


class LockedError(RuntimeError):
    """Another process works in the folder."""


class Lock:
    """The right to write into a folder, from `acquire` to `release` or to the end of the process, however it ends.

    The kernel holds the lock (`flock`), so that none is left by a kill. Where it cannot, the process that the file
    names is asked for: the lock of a process of this machine that is gone counts as none.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file: int | None = None

    def acquire(self, where: str) -> None:
        """Takes the lock, or raises a LockedError that names its owner."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SaveError(self.path, error) from error
        try:
            if not _take(file):
                raise LockedError(
                    f"{where}: {self.path.parent} is in use by {_owner(self.path)}. Wait until it has ended, stop it, "
                    "or choose another folder."
                )
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            os.close(file)
            raise SaveError(self.path, error) from error
        except BaseException:
            os.close(file)
            raise
        self._file = file
        _HELD.add(file)

    def release(self) -> None:
        """Gives the lock back; again does nothing."""
        if self._file is not None:
            file, self._file = self._file, None
            _HELD.discard(file)
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_UN)  # also for children that have not yet let go
            os.close(file)


_HELD: set[int] = set()


def _let_go() -> None:
    """In a forked child, such as a worker that loads data: the lock is the parent's."""
    while _HELD:
        os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _take(file: int) -> bool:
    """Whether the lock is ours now."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
        else:
            return True
    pid, _, host = os.pread(file, 300, 0).decode(errors="replace").strip().partition(" ")
    return not pid.isdigit() or (host == socket.gethostname() and not _is_alive(int(pid)))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True


def _owner(path: Path) -> str:
    try:
        pid, _, host = read_text(path, 1000).strip().partition(" ")
    except FileError:
        pid, host = "", ""
    return f"process {pid} on {host}" if pid and host else "another process"
