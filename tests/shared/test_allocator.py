"""Freed memory that stays: counted in page faults, in processes of their own."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from pdecnn.shared import allocator

MEGABYTES, TIMES = 48, 6
SCRIPT = f"""
import ctypes, resource, sys
from pdecnn.shared.allocator import keep_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.prctl(41, 1, 0, 0, 0)  # no huge pages, of which one fault brings many
kept = "call" in sys.argv and keep_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({TIMES}):
    block = libc.malloc({MEGABYTES} << 20)
    libc.memset(block, 1, {MEGABYTES} << 20)
    libc.free(block)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, "torch" in sys.modules)
"""
is_glibc = platform.libc_ver()[0] == "glibc"


def run(*arguments, **environment):
    """Whether memory is kept, and how many times over its pages were asked for."""
    clean = {name: value for name, value in os.environ.items() if name not in (*allocator._OWN, allocator.SWITCH)}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    result = subprocess.run(command, env=clean | environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    kept, faults, torch = result.stdout.split()
    assert torch == "False"
    return kept == "True", int(faults) * os.sysconf("SC_PAGE_SIZE") / (MEGABYTES << 20)


@pytest.mark.skipif(not is_glibc, reason="the C library is not glibc")
@pytest.mark.parametrize(
    "arguments, environment, kept",
    [
        ((), {}, False),
        (("call",), {}, True),
        (("call",), {"PDECNN_ALLOCATOR": "keep"}, True),
        (("call",), {"PDECNN_ALLOCATOR": "system"}, False),
        (("call",), {"MALLOC_TOP_PAD_": "4096"}, False),
    ],
)
def test_pages_are_asked_for_once_where_memory_is_kept_and_each_time_where_not(arguments, environment, kept):
    said, times = run(*arguments, **environment)
    assert said == kept
    assert times < 1.2 if kept else times > TIMES - 1


def test_another_word_is_an_error(monkeypatch):
    monkeypatch.setenv("PDECNN_ALLOCATOR", "jemalloc")
    with pytest.raises(ValueError, match="PDECNN_ALLOCATOR must be one of keep, system, got 'jemalloc'"):
        allocator.keep_memory()


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_silent_without_glibc(monkeypatch, error):
    def load(name):
        raise error

    for name in (*allocator._OWN, allocator.SWITCH):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert not allocator.keep_memory()
