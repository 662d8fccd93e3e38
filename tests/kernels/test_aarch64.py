"""The native library built for aarch64 (NEON) by a cross compiler, and run under qemu against the definitions."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUZZ = ROOT / "tests" / "fuzz"
COMPILER, EMULATOR, SYSROOT = "aarch64-linux-gnu-g++", "qemu-aarch64", Path("/usr/aarch64-linux-gnu")


@pytest.mark.slow
def test_what_the_fuzzer_kept_is_right_on_aarch64(tmp_path):
    """Calls of every kernel, made from bytes: results against `calls.h`, which has the definitions in double."""
    for tool in ("cmake", COMPILER, EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}: install cmake, g++-aarch64-linux-gnu and qemu-user")
    kernels = ROOT / "src" / "pdecnn" / "kernels"
    cross = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    sources = [str(FUZZ / f"{name}.cpp") for name in ("fuzz_calls", "replay")]
    options = ["-std=c++17", "-O1", "-DPDECNN_ISA=baseline", f"-I{kernels / 'common'}", f"-I{kernels / 'ort'}"]
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(tmp_path), *cross],
        ["cmake", "--build", str(tmp_path), "--target", "pdecnn_native", "--parallel", str(os.cpu_count() or 1)],
        [COMPILER, *options, *sources, "-o", str(tmp_path / "replay"), f"-L{tmp_path}", "-lpdecnn_native"],
    ):
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
        assert "warning" not in built.stderr, built.stderr[-3000:]
    files = sorted(map(str, (FUZZ / "corpus" / "calls").iterdir()))
    command = [EMULATOR, "-L", str(SYSROOT), "-E", f"LD_LIBRARY_PATH={tmp_path}", str(tmp_path / "replay"), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, f"{len(files)} files\n"), done.stderr[-3000:]
