"""Files and folders are replaced whole, and what is not ours is left alone."""

import errno
import os
import random
import signal
import time
from pathlib import Path

import pytest
from torch import nn

from pdecnn.shared import files
from pdecnn.shared.files import SaveError, atomic_folder, clean_up, remove_folder, saving, standing, write_atomic
from pdecnn.training import load_checkpoint, save_checkpoint

CONFIG = {"model": {"builder": "custom"}}


def number(folder):
    return load_checkpoint(folder, model=nn.Linear(2, 2)).config["number"]


def save(folder, n):
    return save_checkpoint(folder, nn.Linear(2, 2), {**CONFIG, "number": n})


@pytest.mark.parametrize("can_exchange", [True, False])
def test_there_is_a_checkpoint_at_every_moment_of_an_overwrite(tmp_path, monkeypatch, can_exchange):
    """Every call that changes names is the last one before a crash, once."""
    if not can_exchange:
        monkeypatch.setattr(files, "exchange", lambda a, b: False)

    class CrashError(BaseException):
        pass

    for calls in range(40):
        folder = tmp_path / f"{calls}" / "net"
        save(folder, 1)
        left = calls

        def counted(call):
            def run(*args, **kwargs):
                nonlocal left
                if left == 0:
                    raise CrashError
                left -= 1
                return call(*args, **kwargs)

            return run

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", counted(os.replace))
            patch.setattr(files, "exchange", counted(files.exchange))
            patch.setattr(files.shutil, "rmtree", lambda *a, **k: None)  # a kill cleans nothing up
            patch.setattr(os, "unlink", lambda *a: None)
            try:
                save(folder, 2)
                done = True
            except CrashError:
                done = False
        assert number(folder) in (1, 2)  # as it stands
        clean_up(folder.parent)
        assert number(folder) == (2 if done else number(folder))
        assert [entry.name for entry in folder.parent.iterdir()] == ["net"]
        save(folder, 3)
        assert number(folder) == 3
        if done:
            return
    raise AssertionError("unreachable: a save renames less often")


def test_the_only_copy_is_never_cleaned_away(tmp_path):
    save(tmp_path / "net", 1)
    os.rename(tmp_path / "net", tmp_path / ".old-net")
    assert standing(tmp_path / "net") == tmp_path / ".old-net"
    assert number(tmp_path / "net") == 1
    clean_up(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["net"]
    assert number(tmp_path / "net") == 1


def kill_overwriting(folder: Path, kills: int, how: str, seed: int = 0) -> None:
    """Kills a process that overwrites a checkpoint, `kills` times; there is a whole one after each."""
    rng, last = random.Random(seed), 0
    save(folder, 0)
    for _ in range(kills):
        pid = _forked_writer(folder, how, last)
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        found = number(folder)
        assert found >= last  # nothing goes back in time
        last = found


def _forked_writer(folder: Path, how: str, n: int) -> int:
    """A child that has everything imported, so that a kill falls into the writing."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if how == "plain":
                files.exchange = lambda a, b: False
            while True:
                n += 1
                save(folder, n)
                os.write(write, b".")
        finally:
            os._exit(1)
    os.close(write)
    os.read(read, 1)  # it has written one
    os.close(read)
    return pid


@pytest.mark.parametrize("how", ["exchange", "plain"])
def test_kills_while_overwriting_leave_a_checkpoint(tmp_path, how):
    kill_overwriting(tmp_path / "net", 20, how)
    clean_up(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["net"]
    assert number(tmp_path / "net") > 0


@pytest.mark.parametrize("what", ["folder", "file", "link", "dangling", "nested", "mixed"])
def test_only_a_checkpoint_is_replaced(tmp_path, what):
    path, kept = tmp_path / "proj", tmp_path / "kept"
    kept.mkdir()
    (kept / "thesis.txt").write_text("years of work")
    if what == "folder":
        path.mkdir()
        (path / "thesis.txt").write_text("years of work")
    elif what == "file":
        path.write_text("years of work")
    elif what == "link":
        path.symlink_to(kept)
    elif what == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif what == "nested":
        save(path, 1)
        (path / "runs").mkdir()
    else:
        path.mkdir()
        (path / "package.json").write_text("{}")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match=r"proj is a .*only a checkpoint is replaced"):
        save(path, 2)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    assert path.is_symlink() == (what in ("link", "dangling"))


def test_an_empty_folder_and_an_own_checkpoint_are_replaced(tmp_path):
    (tmp_path / "net").mkdir()
    for n in (1, 2):
        save(tmp_path / "net", n)
    (tmp_path / "net/manifest.json").unlink()  # copied by hand
    save(tmp_path / "net", 3)
    assert number(tmp_path / "net") == 3


def test_a_full_disk_is_named(tmp_path):
    with pytest.raises(SaveError, match=r"cannot write model\.onnx: No space left on device"), saving("model.onnx"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(SaveError, match=r"cannot write .*inner"), atomic_folder(tmp_path / "a") as folder:
        write_atomic(folder / "missing" / "inner", "x")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named_where_an_old_folder_goes(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    old = tmp_path / "step-1"
    old.mkdir()
    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(SaveError, match=r"step-1.*No space left"):
        remove_folder(old)
    assert old.is_dir()
