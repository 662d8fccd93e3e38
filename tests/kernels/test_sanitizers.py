"""Every native operator under AddressSanitizer and UndefinedBehaviorSanitizer, in a build of its own.

So are all inputs that a fuzzer found worth keeping (tests/fuzz); the fuzzer itself runs in `make torture`.
"""

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
FUZZ = ROOT / "tests" / "fuzz"
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
        [
            "cmake",
            "--build",
            str(folder),
            "--target",
            "pdecnn_native",
            "pdecnn_ort",
            "--parallel",
            str(os.cpu_count() or 1),
        ],
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
from pdecnn.kernels.advection_diffusion.cpu import _fields
from pdecnn.kernels.advection_diffusion.op import Problem

run = load().function("pdecnn_advection_diffusion_forward")
h, c, out = torch.ones(1, 2, 4, {width}), torch.tensor(0.0), torch.empty(1, 1, 4, {width})
problem = Problem(h, None, c, c, c, c, None, 1, 0.2, 1.0, 1.0, "periodic")
run(*_fields(problem), out.data_ptr(), *h.stride())
"""


@pytest.mark.parametrize("width", [8, 9])
def test_the_sanitizer_sees_a_write_beyond_the_end(sanitized, width):
    child = run(sanitized, "-c", BEYOND_THE_END.format(width=width))
    assert child.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in child.stderr, child.stderr[-5000:]
    assert "WRITE of size" in child.stderr


@pytest.mark.parametrize("what, library", [("calls", "pdecnn_native"), ("ort", "pdecnn_ort")])
def test_what_the_fuzzer_kept_is_clean(sanitized, tmp_path, what, library):
    kernels, program = ROOT / "src" / "pdecnn" / "kernels", tmp_path / "replay"
    sources = [str(FUZZ / f"{name}.cpp") for name in (f"fuzz_{what}", "replay")]
    includes = [f"-I{kernels / room}" for room in ("common", "ort")]
    library = [f"-L{sanitized.parent}", f"-Wl,-rpath,{sanitized.parent}", f"-l{library}"]
    for command in (  # the library is watched, not what calls it
        ["g++", "-std=c++17", "-O1", f"-DPDECNN_ISA={ISA}", *includes, "-c", *sources],
        ["g++", "-fsanitize=address,undefined", f"fuzz_{what}.o", "replay.o", "-o", str(program), *library],
    ):
        built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr[-5000:]
    files = sorted(map(str, (FUZZ / "corpus" / what).iterdir()))
    assert len(files) > 50
    done = subprocess.run([str(program), *files], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, f"{len(files)} files\n"), done.stderr[-5000:]
