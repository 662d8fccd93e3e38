"""The Triton solver: its cases under Triton's interpreter, and its compilation for a GPU that need not be here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed; the CUDA kernels need it")

CASES = Path(__file__).with_name("triton_interpreter_cases.py")


def test_cases_pass_under_the_interpreter():
    # A process of its own: torch.compile may have imported Triton here, after which TRITON_INTERPRET has no effect.
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES)],
        env=os.environ | {"TRITON_INTERPRET": "1", "PDECNN_KERNELS": "reference"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert " passed" in child.stdout
    assert "skipped" not in child.stdout


def compile_for_hopper(kernel, storage, arithmetic, **constants):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    annotated = {p.name: p.annotation_type for p in kernel.params}
    assert {name for name, a in annotated.items() if a == "fp64"} == {"dt", "dt_dx", "dt_dy", "dt_dx2", "dt_dy2"}

    def kind(name):
        if name in constants:
            return "constexpr"
        if annotated[name]:
            return annotated[name]
        if name in ("planes", "C", "H", "W", "K") or name in ("s_n", "s_c", "s_y", "s_x"):
            return "i32"
        return f"*{arithmetic}" if name == "scratch" else f"*{storage}"

    source = ASTSource(fn=kernel, signature={name: kind(name) for name in kernel.arg_names}, constexprs=constants)
    options = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # compile, do not look up
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("TRITON_INTERPRET=1 is set: there are no compiled kernels in this process")
    from pdecnn.kernels.advection_diffusion import triton_kernels

    return triton_kernels


@pytest.mark.parametrize(
    "storage, arithmetic, one_tile, boundary",
    [("fp32", "fp32", True, 0), ("bf16", "fp32", False, 1), ("fp64", "fp64", True, 2)],
)
def test_forward_compiles_to_ptx(kernels, storage, arithmetic, one_tile, boundary):
    compiled = compile_for_hopper(
        kernels.forward_kernel, storage, arithmetic,
        U=True, V=False, D_X=False, D_Y=True, BOUNDARY=boundary, HAS_F=True,
        ONE_TILE=one_tile, BLOCK_H=16, BLOCK_W=16,
    )  # fmt: skip
    ptx = compiled.asm["ptx"]
    assert ".visible .entry forward_kernel" in ptx
    assert ptx.count("bar.sync") >= 3, "before the steps, after each step, and before the ring is used again"
    assert ("fma.rn.f64" in ptx) == (arithmetic == "fp64"), "the arithmetic is in the dtype of the ring"


@pytest.mark.parametrize(
    "storage, arithmetic, one_tile, boundary", [("fp32", "fp32", False, 1), ("bf16", "fp32", True, 2)]
)
def test_backward_compiles_to_ptx(kernels, storage, arithmetic, one_tile, boundary):
    compiled = compile_for_hopper(
        kernels.backward_kernel, storage, arithmetic,
        U=True, V=False, D_X=False, D_Y=True, BOUNDARY=boundary, HAS_F=True, HAS_H_PREV=False,
        NEEDS_H=True, NEEDS_H_PREV=False, NEEDS_U=True, NEEDS_V=True, NEEDS_D_X=True, NEEDS_D_Y=True, NEEDS_F=True,
        ONE_TILE=one_tile, BLOCK_H=16, BLOCK_W=16,
    )  # fmt: skip
    ptx = compiled.asm["ptx"]
    assert ".visible .entry backward_kernel" in ptx
    assert ptx.count("bar.sync") >= 5, "two marches of two barriers each, and one before the scratch is used again"
