"""Writing so that a crash at any moment leaves either the old content or the new, never a part of it.

While a folder is replaced, three names may be seen beside it: `.tmp-<name>-*` is being written or was replaced,
`.trash-<name>-*` is being deleted, and `.old-<name>` is the only good copy for an instant, on file systems that cannot
exchange two names. `standing` finds it there, `clean_up` puts it back.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pdecnn.shared.exchange import exchange

OLD, TEMPORARY, TRASH = ".old-", ".tmp-", ".trash-"


class SaveError(OSError):
    """Something could not be written; what had been saved before is untouched."""

    def __init__(self, target: Path, cause: OSError) -> None:
        self.target = target
        self.errno = cause.errno
        super().__init__(
            f"save: cannot write {target}: {cause.strerror or cause}. Everything saved earlier is intact. Free some "
            "space or make the folder writable, then run it again; training continues with --resume."
        )


@contextlib.contextmanager
def saving(target: str | Path) -> Iterator[None]:
    """Makes a SaveError that names `target` of every OSError in the block, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        raise (error if isinstance(error, SaveError) else SaveError(Path(target), error)) from error


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replaces the file `path` by `content`: temporary file in the same folder, fsync, rename, fsync of the folder."""
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        with saving(path):
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
            temporary = None
            sync_folder(path.parent)
    finally:
        if temporary:  # an error, or Ctrl-C
            with contextlib.suppress(OSError):
                os.unlink(temporary)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder that becomes `path` when the block ends well and vanishes when it does not.

    At every moment `standing(path)` is the old folder or the new one. Whether `path` may be replaced is the caller's
    to ask before.
    """
    temporary = None
    try:
        with saving(path):
            _put_back(path)
            temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}-"))
            os.chmod(temporary, 0o755)
            yield temporary
            sync_folder(temporary)
            _replace_folder(temporary, path)
            sync_folder(path.parent)
    finally:
        if temporary and temporary.exists():  # what was replaced, or what an error left
            shutil.rmtree(temporary, ignore_errors=True)


def _replace_folder(new: Path, path: Path) -> None:
    """Gives the folder `new` the name `path`; what had it is found under the name of `new` afterwards, or gone."""
    if not path.exists():
        os.replace(new, path)
    elif not exchange(new, path):
        old = path.with_name(OLD + path.name)
        os.replace(path, old)
        os.replace(new, path)
        shutil.rmtree(old, ignore_errors=True)


def standing(path: Path) -> Path:
    """`path`, or what a kill left of it: the old folder, when the new one had not yet taken its name."""
    old = path.with_name(OLD + path.name) if path.name else path
    return old if not os.path.lexists(path) and old.is_dir() else path


def _put_back(path: Path) -> None:
    """Gives the old folder its name back if a kill left none, and removes it otherwise."""
    old = path.with_name(OLD + path.name)
    if standing(path) == old:
        os.replace(old, path)
    elif old.is_dir():
        shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Deletes a folder; it disappears under its name at once, so that no half-deleted one is ever seen."""
    trash = path.with_name(f"{TRASH}{path.name}-{os.getpid()}")
    with saving(path):
        os.replace(path, trash)
    shutil.rmtree(trash, ignore_errors=True)


def point_to(link: Path, target: Path) -> None:
    """Makes `link` a relative symbolic link to `target`, replacing an older one in one step."""
    temporary = link.with_name(f"{TEMPORARY}{link.name}-{os.getpid()}")
    with saving(link):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(target, link.parent))
        os.replace(temporary, link)


def clean_up(folder: Path) -> None:
    """Removes what interrupted writes left behind; an only good copy gets its name back first."""
    for old in folder.glob(f"{OLD}*"):
        _put_back(old.with_name(old.name.removeprefix(OLD)))
    for left in (*folder.glob(f"{TEMPORARY}*"), *folder.glob(f"{TRASH}*")):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                left.unlink()


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
