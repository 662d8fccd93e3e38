"""Reading files that may be anyone's: limits on size, depth and numbers, one error that names file, key and cure."""

import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from pdecnn.shared.names import close_to

MB = 2**20
MAX_DEPTH = 40  # of lists and dicts in each other; our own files have a dozen
MAX_DIGITS = 100  # of an integer; Python's own limit is on time, not on sense


class FileError(ValueError):
    """A file that cannot be used; the message names the file, the key in it, and what to do."""


@contextmanager
def open_regular(path: Path, limit: int) -> Iterator[BinaryIO]:
    """Opens a file of at most `limit` bytes; pipes, devices and sockets, which may never answer, are refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise FileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    with (
        os.fdopen(descriptor, "rb") if stat.S_ISREG(os.fstat(descriptor).st_mode) else _refuse(descriptor, path) as file
    ):
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise FileError(f"{path} has {size:,} bytes, more than the {limit:,} that such a file may have.")
        yield file


def _refuse(descriptor: int, path: Path) -> NoReturn:
    os.close(descriptor)
    raise FileError(f"{path} is not a regular file but a folder, a pipe or a device; give the file itself.")


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    with open_regular(path, limit) as file:
        try:
            return file.read()
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_text(path: Path, limit: int) -> str:
    """The same as text in UTF-8."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}.") from error


def read_json(path: Path, limit: int, *, nan_in: tuple[str, ...] = ()) -> Any:
    """What a JSON file holds; see `parse_json`."""
    return parse_json(read_text(path, limit), str(path), nan_in=nan_in)


def read_object(path: Path, limit: int, *, nan_in: tuple[str, ...] = ()) -> dict[str, Any]:
    """A JSON file that holds an object."""
    value = read_json(path, limit, nan_in=nan_in)
    if not isinstance(value, dict):
        raise FileError(f"{path} holds a {type(value).__name__}, expected an object such as {{...}}.")
    return value


def parse_json(text: str, where: str, *, nan_in: tuple[str, ...] = ()) -> Any:
    """Strict JSON: no key twice, no NaN or infinity (but below the top keys `nan_in`), no depth, no huge integer.

    Example:
        >>> parse_json('{"K": 5}', "plan.json")
        {'K': 5}
        >>> parse_json('{"K": 5, "K": 6}', "plan.json")
        Traceback (most recent call last):
        pdecnn.shared.reading.FileError: plan.json has the key 'K' twice; keep one of them.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) < len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise FileError(f"{where} has the key {twice!r:.80} twice; keep one of them.")
        return made

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_int=lambda digits: integer(digits, where))
    except FileError:
        raise
    except RecursionError as error:
        raise FileError(f"{where} is not readable JSON: it is nested more than {MAX_DEPTH} deep.") from error
    except ValueError as error:
        raise FileError(f"{where} is not readable JSON: {error}. Restore it from a copy, or write it anew.") from error
    check_tree(value, where, nan_in=nan_in)
    return value


def integer(digits: str, where: str) -> int:
    """An integer of a sensible length."""
    if len(digits) > MAX_DIGITS:
        raise FileError(f"{where} has an integer of {len(digits):,} digits ({digits[:12]}...); write a shorter number.")
    return int(digits)


def check_tree(value: Any, where: str, *, nan_in: tuple[str, ...] = ()) -> None:
    """Raises a FileError that names the key of what is nested too deeply, or is not finite."""
    stack: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while stack:
        key, node = stack.pop()
        if isinstance(node, float) and not math.isfinite(node) and not (key and key[0] in nan_in):
            raise FileError(f"{where}: {'.'.join(key) or 'the value'} is {node}; a finite number is expected.")
        if isinstance(node, (dict, list, tuple)):
            if len(key) >= MAX_DEPTH:
                start = ".".join(key[:4])
                raise FileError(f"{where}: {start}... is nested more than {MAX_DEPTH} deep; flatten it.")
            items = node.items() if isinstance(node, dict) else enumerate(node)
            stack.extend(((*key, str(k)), child) for k, child in items)


def check_keys(values: Mapping[str, Any], known: Mapping[str, Any], needed: tuple[str, ...], where: str) -> None:
    """Raises a FileError for a key that is not known or a needed one that is missing; `known` has the type of each."""
    for key, value in values.items():
        if key not in known:
            hint = close_to(key, known)
            raise FileError(f"{where} has no entry {key!r:.80}; there are {', '.join(sorted(known))}.{hint}")
        if not isinstance(value, known[key]) or (isinstance(value, bool) and known[key] is not bool):
            expected = getattr(known[key], "__name__", None) or str(known[key])
            raise FileError(f"{where}: {key} must be {expected}, got {value!r:.80}.")
    for key in needed:
        if key not in values:
            raise FileError(f"{where} is not complete: {key!r} is missing.")


def guarded(where: str, build: Callable[[], Any]) -> Any:
    """What `build` makes of content that was read; whatever it raises on odd content becomes a FileError."""
    try:
        return build()
    except FileError:
        raise
    except Exception as error:
        raise FileError(f"{where}: {type(error).__name__}: {error}") from error
