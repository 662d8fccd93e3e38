"""One process for a folder."""

import errno
import os
import signal
import time

import pytest

from pdecnn.shared import locks
from pdecnn.shared.locks import Lock, LockedError


def holder(folder, *, seconds=30.0):
    """A process that holds the lock."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            lock = Lock(folder)
            lock.acquire("test")
            os.write(write, b".")
            time.sleep(seconds)
        finally:
            os._exit(0)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture(params=["flock", "pid"])
def how(request, monkeypatch):
    """The kernel's locks, and a file system without them."""
    if request.param == "pid":

        def none(file, what):
            raise OSError(errno.ENOLCK, "no locks")

        monkeypatch.setattr(locks.fcntl, "flock", none)
    return request.param


def test_the_owner_is_named_and_a_kill_frees_the_folder(tmp_path, how):
    pid = holder(tmp_path)
    try:
        with pytest.raises(LockedError, match=rf"train: .* is in use by process {pid} on .*Wait until it has ended"):
            Lock(tmp_path).acquire("train")
    finally:
        kill(pid)
    lock = Lock(tmp_path)
    lock.acquire("train")
    assert (tmp_path / ".lock").read_text().split()[0] == str(os.getpid())
    lock.release()
    lock.release()
    Lock(tmp_path).acquire("train")


def test_a_second_run_of_the_same_process_is_refused(tmp_path, how):
    first = Lock(tmp_path)
    first.acquire("train")
    with pytest.raises(LockedError, match=f"process {os.getpid()}"):
        Lock(tmp_path).acquire("train")
    first.release()


def test_another_machine_is_believed_without_locks(tmp_path, how):
    (tmp_path / ".lock").write_text("1 elsewhere\n")
    if how == "flock":  # the kernel knows better
        Lock(tmp_path).acquire("train")
    else:
        with pytest.raises(LockedError, match="process 1 on elsewhere"):
            Lock(tmp_path).acquire("train")


def test_children_do_not_keep_the_lock_of_a_killed_parent(tmp_path):
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        Lock(tmp_path).acquire("train")
        child = os.fork()
        if child == 0:
            child = os.getpid()
            os.write(write, str(child).encode())
        time.sleep(30)
        os._exit(0)
    child = int(os.read(read, 20))
    os.close(read)
    os.close(write)
    kill(parent)
    os.kill(child, 0)  # it lives
    try:
        Lock(tmp_path).acquire("train")
    finally:
        os.kill(child, signal.SIGKILL)


def test_damaged_lock_files_are_stale(tmp_path, how):
    for content in (b"", b"\xff\xff", b"x" * 1000, b"\0" * 10):
        (tmp_path / ".lock").write_bytes(content)
        lock = Lock(tmp_path)
        lock.acquire("train")
        lock.release()
