"""Writing so that a crash at any moment leaves either the old content or the new, never a part of it."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


class SaveError(OSError):
    """Something could not be written; what had been saved before is untouched."""

    def __init__(self, target: Path, cause: OSError) -> None:
        self.target = target
        super().__init__(
            f"save: cannot write {target}: {cause.strerror or cause}. Everything saved earlier is intact. Free some "
            "space or make the folder writable, then continue with --resume."
        )


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replaces the file `path` by `content`: temporary file in the same folder, fsync, rename, fsync of the folder."""
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".tmp-{path.name}-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
        sync_folder(path.parent)
    except OSError as error:
        raise SaveError(path, error) from error
    finally:
        if temporary:  # an error, or Ctrl-C
            with contextlib.suppress(OSError):
                os.unlink(temporary)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder that becomes `path` when the block ends well and vanishes when it does not."""
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".tmp-{path.name}-"))
        os.chmod(temporary, 0o755)
        yield temporary
        sync_folder(temporary)
        if path.exists():
            remove_folder(path)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise (error if isinstance(error, SaveError) else SaveError(path, error)) from error
    finally:
        if temporary and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Deletes a folder; it disappears under its name at once, so that no half-deleted one is ever seen."""
    trash = path.with_name(f".trash-{path.name}-{os.getpid()}")
    os.replace(path, trash)
    shutil.rmtree(trash, ignore_errors=True)


def point_to(link: Path, target: Path) -> None:
    """Makes `link` a relative symbolic link to `target`, replacing an older one in one step."""
    temporary = link.with_name(f".tmp-{link.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(target, link.parent))
        os.replace(temporary, link)
    except OSError as error:
        raise SaveError(link, error) from error


def clean_up(folder: Path) -> None:
    """Removes what interrupted writes left behind."""
    for left in (*folder.glob(".tmp-*"), *folder.glob(".trash-*")):
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
