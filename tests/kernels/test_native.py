"""The loader of the native library: what the environment asks for is obeyed or refused, and absence has a reason.

Every case is a process of its own, for the library is chosen once, at import.
"""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pdecnn.kernels.native import ABI_VERSION, ISAS, Library, load
from pdecnn.kernels.registry import NATIVE

CASES = Path(__file__).with_name("native_cases.py")
LIBRARY = load()
needs_library = pytest.mark.skipif(not isinstance(LIBRARY, Library), reason="no native library here")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to make a library with")
SHOW = "from pdecnn import functional, kernels; print(kernels.available())"
SOLVE = "import torch; print(functional.advection_diffusion(torch.ones(1, 1, 2, 2), 0.0, 0.0, 1.0, 1.0).tolist())"


def run(*arguments, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PDECNN_")}
    return subprocess.run(
        [sys.executable, *arguments], env=clean | environment, capture_output=True, text=True, timeout=300
    )


def refused(error, **environment):
    """The last line of the error, with which the import must end."""
    child = run("-c", SHOW, **environment)
    assert child.returncode == 1, child.stdout
    last = child.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{error}: "), child.stderr
    return last.removeprefix(f"{error}: ")


def runs_here(isa):
    symbol = "pdecnn_advection_diffusion_forward_" + isa
    return hasattr(LIBRARY.handle, symbol) and LIBRARY.handle.pdecnn_cpu_runs(isa.encode()) == 1


@needs_library
@pytest.mark.parametrize("isa", ISAS)
def test_every_case_passes_with_each_instruction_set(isa):
    if not runs_here(isa):
        pytest.skip(f"this CPU or build has no {isa}")
    child = run(str(CASES), f"native ({isa})", PDECNN_ISA=isa, PDECNN_KERNELS="native", OMP_NUM_THREADS="1")
    assert child.stdout == "all cases pass\n", child.stderr


def test_every_case_passes_without_the_library():
    child = run(str(CASES), "reference", PDECNN_KERNELS="reference", OMP_NUM_THREADS="1")
    assert child.stdout == "all cases pass\n", child.stderr


@needs_library
def test_the_best_instruction_set_is_the_default():
    best = next(isa for isa in ISAS if runs_here(isa))
    child = run("-c", SHOW, PDECNN_ISA="", PDECNN_KERNELS="")  # empty is unset
    assert child.stdout.count(f"native ({best})") == child.stdout.count("device='cpu'") == len(NATIVE), child.stderr


def test_reference_says_that_it_was_asked_for():
    child = run("-c", SHOW, PDECNN_KERNELS="reference", PDECNN_LIBRARY="/nowhere/lib.so")
    assert child.stdout.count("kernel='reference', note='PDECNN_KERNELS=reference'") == len(NATIVE), child.stderr


def test_unknown_choices_are_refused():
    got = refused("ValueError", PDECNN_KERNELS="fast")
    assert got == "PDECNN_KERNELS must be one of native, reference or unset, got 'fast'."
    got = refused("ValueError", PDECNN_ISA="neon")
    assert got == "PDECNN_ISA must be one of avx512, avx2, baseline or unset, got 'neon'."


def test_a_missing_library_is_a_reason_and_an_error_if_asked_for(tmp_path):
    path = tmp_path / "no.so"
    reason = f"no library in {tmp_path}: pdecnn was installed without a C++ compiler."
    child = run("-c", f"{SHOW}; {SOLVE}", PDECNN_LIBRARY=str(path))
    shown, solved = child.stdout.splitlines()
    assert shown.count(f"kernel='reference', note='{reason}'") == len(NATIVE)
    assert solved == "[[[[1.0, 1.0], [1.0, 1.0]]]]"
    got = refused("RuntimeError", PDECNN_LIBRARY=str(path), PDECNN_KERNELS="native")
    assert got == (
        f"kernels: 'native' was requested but did not load: {reason} "
        "Reinstall pdecnn where a C++ compiler is present, or unset PDECNN_KERNELS to use the reference."
    )


def test_a_file_that_is_no_library_is_a_reason(tmp_path):
    path = tmp_path / "text.so"
    path.write_text("not a library")
    child = run("-c", SHOW, PDECNN_LIBRARY=str(path))
    assert child.stdout.count("kernel='reference'") >= len(NATIVE), child.stderr
    assert f"{path}: " in child.stdout


def build(tmp_path, source):
    path = tmp_path / "made.so"
    (tmp_path / "made.cpp").write_text(f'#include <cstdint>\nextern "C" {{ {source} }}\n')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(path), str(tmp_path / "made.cpp")], check=True)
    return path


@needs_compiler
def test_a_library_of_another_version_is_a_reason(tmp_path):
    path = build(tmp_path, "int32_t pdecnn_abi_version() { return 999; }")
    child = run("-c", SHOW, PDECNN_LIBRARY=str(path))
    reason = f"{path} has ABI version 999, this pdecnn needs {ABI_VERSION}: reinstall pdecnn."
    assert child.stdout.count(f"kernel='reference', note='{reason}'") == len(NATIVE), child.stderr
    assert reason in refused("RuntimeError", PDECNN_LIBRARY=str(path), PDECNN_KERNELS="native")


@needs_compiler
def test_a_library_of_something_else_is_a_reason(tmp_path):
    path = build(tmp_path, "int32_t other() { return 0; }")
    child = run("-c", SHOW, PDECNN_LIBRARY=str(path))
    assert child.stdout.count("undefined symbol: pdecnn_abi_version") == len(NATIVE), child.stderr


@needs_compiler
def test_an_operator_that_the_library_lacks_is_the_reference(tmp_path):
    symbols = ("advection_diffusion_forward", "advection_diffusion_backward")
    functions = " ".join(f"int32_t pdecnn_{name}_baseline(const void*) {{ return 3; }}" for name in symbols)
    common = "int32_t pdecnn_abi_version() { return 4; } int32_t pdecnn_cpu_runs(const char*) { return 1; }"
    layout = 'const char* pdecnn_layout(const char*, int64_t* size) { *size = 0; return ""; }'
    path = build(tmp_path, f"{common} {layout} void pdecnn_set_parallel_for(void*) {{}} {functions}")
    child = run("-c", SHOW, PDECNN_LIBRARY=str(path))
    assert child.stdout.count("kernel='native (baseline)'") == 1, child.stderr
    assert child.stdout.count(f"kernel='reference', note='{path} does not have it'") == len(NATIVE) - 1


@needs_compiler
def test_an_instruction_set_that_is_not_there_is_refused(tmp_path):
    path = build(
        tmp_path,
        "int32_t pdecnn_abi_version() { return 4; } int32_t pdecnn_cpu_runs(const char*) { return 1; }"
        "int32_t pdecnn_advection_diffusion_forward_baseline(const void*) { return 0; }",
    )
    got = refused("RuntimeError", PDECNN_LIBRARY=str(path), PDECNN_ISA="avx512")
    assert got == "kernels: PDECNN_ISA=avx512 was requested, but this build and CPU have only baseline."


@needs_library
def test_a_failing_kernel_raises():
    from pdecnn.kernels.native import NativeFunction

    for status, reason in (
        (1, "out of memory"),
        (2, "torch's thread pool failed"),
        (3, "bad argument"),
        (9, "status 9"),
    ):
        with pytest.raises(RuntimeError, match=f"^solve: {reason}\\.$"):
            NativeFunction("solve", lambda packed, status=status: status, struct.Struct(""))()
    function = LIBRARY.function("pdecnn_advection_diffusion_forward")
    bad_dtype = (99, *[0] * (function.struct.size // 8 - 1))
    with pytest.raises(RuntimeError, match=r"^pdecnn_advection_diffusion_forward: bad argument"):
        function(*bad_dtype)


@needs_library
def test_structs_are_packed_as_the_library_declares_them():
    assert LIBRARY.layout("Map") == "q" * 5
    assert LIBRARY.layout("Problem") == "q" * 9 + "d" * 4 + "q" * 45
    assert LIBRARY.layout("depthwise_norm::Problem") == "q" * 8 + "d" * 4 + "q" * 5
    assert LIBRARY.function("pdecnn_shared_expand_forward").struct.size == 8 * 20
    with pytest.raises(AttributeError, match="does not know the struct Nothing"):
        LIBRARY.layout("Nothing")


@needs_compiler
def test_a_struct_of_another_size_than_its_fields_is_refused(tmp_path):
    path = build(
        tmp_path,
        "int32_t pdecnn_abi_version() { return 4; } int32_t pdecnn_cpu_runs(const char*) { return 1; }"
        "int32_t pdecnn_advection_diffusion_forward_baseline(const void*) { return 0; }"
        'const char* pdecnn_layout(const char*, int64_t* size) { *size = 24; return "int64_t N, C;"; }',
    )
    got = refused("RuntimeError", PDECNN_LIBRARY=str(path))
    assert got.endswith("pdecnn_advection_diffusion_forward has 24 bytes, but its fields 'int64_t N, C;' do not.")
