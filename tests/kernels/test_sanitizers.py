"""Every native operator under AddressSanitizer and UndefinedBehaviorSanitizer, in a build of its own."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pdecnn.kernels.native import Library, load

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).with_name("native_cases.py")
# what is out of bounds for a vector of 32 bytes is so for others; one instruction set halves the time to compile
ISA = "avx2" if platform.machine() in ("x86_64", "AMD64") else "baseline"


def runtime(name):
    """The path of a run-time library of g++; g++ answers with the bare name where it has none."""
    path = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    return path if os.path.isabs(path) else None


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """The path of the library, built with sanitizers."""
    for tool in ("cmake", "g++"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} to build the library with")
    if runtime("libasan.so") is None:
        pytest.skip("g++ has no AddressSanitizer here")
    library = load()
    if isinstance(library, Library) and not library.handle.pdecnn_cpu_runs(ISA.encode()):
        pytest.skip(f"this CPU does not run {ISA}")
    folder = tmp_path_factory.mktemp("sanitized")
    options = ["-DPDECNN_SANITIZE=ON", f"-DPDECNN_ISAS={ISA}", "-DCMAKE_CXX_COMPILER=g++"]
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(folder), *options],
        ["cmake", "--build", str(folder), "--target", "pdecnn_native", "--parallel", str(os.cpu_count() or 1)],
    ):
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
    return folder / "libpdecnn_native.so"


def run(library, *arguments):
    # libstdc++ beside the sanitizer, so that it finds the function that throws C++ exceptions
    environment = {
        "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python leaks by design
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PDECNN_LIBRARY": str(library),
        "PDECNN_KERNELS": "native",
        "PDECNN_ISA": ISA,
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=900
    )


def test_every_case_is_clean(sanitized):
    child = run(sanitized, str(CASES), f"native ({ISA})")
    assert child.stdout == "all cases pass\n", child.stderr[-5000:]
    assert child.returncode == 0
    assert "Sanitizer" not in child.stderr
    assert "runtime error" not in child.stderr


BEYOND_THE_END = """
import torch
from pdecnn.kernels.native import load
from pdecnn.kernels.advection_diffusion.cpu import _problem

run = load().function("pdecnn_advection_diffusion_forward")
h, c, out = torch.ones(1, 2, 4, {width}), torch.tensor(0.0), torch.empty(1, 1, 4, {width})
problem = _problem((h, None, c, c, c, c, None), 1, 0.2, 1.0, 1.0, "periodic")
run(*problem, out.data_ptr(), *h.stride())
"""


@pytest.mark.parametrize("width", [8, 9])
def test_the_sanitizer_sees_a_write_beyond_the_end(sanitized, width):
    child = run(sanitized, "-c", BEYOND_THE_END.format(width=width))
    assert child.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in child.stderr, child.stderr[-5000:]
    assert "WRITE of size" in child.stderr
