"""The Triton kernels: what they compile to, on any machine, and how long they take, where there is a GPU.

    python benchmarks/gpu.py --compile     # registers, spills and shared memory for sm_80, sm_90 and gfx942
    python benchmarks/gpu.py               # times on this GPU, against torch's own operators and the roofline

The roofline is that of docs/gpu.md: bytes and flops of a pixel over the device's bandwidth.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
SHAPES = ((64, 16, 32, 32), (64, 32, 16, 16), (64, 64, 8, 8), (32, 64, 56, 56))
K = 5
STEPS = (0.5, 0.5, K, 0.2, 1.0, 1.0, "periodic", 1, True, False, "relu")


def signatures() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Each kernel with the constants of a usual call: periodic planes of 32 x 32 in one tile, single precision."""
    from pdecnn.kernels.advection_diffusion.triton_kernels import backward_kernel, forward_kernel
    from pdecnn.kernels.global_layer.triton_kernels import layer_kernel
    from pdecnn.kernels.global_layer.triton_training_kernels import adjoint_kernel, moments_kernel, turned_kernel

    tile = {"BOUNDARY": 0, "HAS_F": True, "ONE_TILE": True, "BLOCK_H": 32, "BLOCK_W": 32}
    fields = dict.fromkeys(("U", "V", "D_X", "D_Y"), True)
    needs = {f"NEEDS_{name}": True for name in ("H", "U", "V", "D_X", "D_Y", "F")}
    acts = {"MAPS": 4, "SIDE": 3, "COEFFICIENT_ACT": 1, "OUTPUT_ACT": 1}
    roles = {"PREVIOUS_IS_INPUT": False, "RESIDUAL": False}
    stencils = {"MAPS": 4, "SIDE": 3, "BLOCK_H": 32, "BLOCK_W": 32}
    return {
        "forward_kernel": (forward_kernel, {**tile, **fields}),
        "backward_kernel": (
            backward_kernel, {**tile, **fields, **needs, "HAS_H_PREV": False, "NEEDS_H_PREV": False},
        ),
        "layer_kernel": (layer_kernel, {**tile, **acts, **roles}),
        "moments_kernel": (moments_kernel, stencils),
        "adjoint_kernel": (adjoint_kernel, {**tile, **stencils, "ACT": 1, "HAS_H_PREV": False}),
        "turned_kernel": (turned_kernel, stencils),
    }  # fmt: skip


def compile_for(name: str, target: str) -> dict[str, Any]:
    """Registers and spills of a thread, and bytes of shared memory of a block of 16 warps."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    kernel, constants = signatures()[name]
    integers = ("planes", "C", "H", "W", "K", "s_n", "s_c", "s_y", "s_x")

    def kind(p: Any) -> str:
        if p.name in constants:
            return "constexpr"
        pointer = "*fp64" if p.name in ("moments", "sums", "grad_taps") else "*fp32"
        return p.annotation_type or ("i32" if p.name in integers else pointer)

    signature = {p.name: kind(p) for p in kernel.params}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    warps = 16 if target != "gfx942" else 8
    made = compile(source, target=GPUTarget(*TARGETS[target]), options={"num_warps": warps, "num_stages": 1})
    row = {"kernel": name, "target": target, "warps": warps, "shared_bytes": made.metadata.shared}
    return row | (_of_amdgcn(made.asm["amdgcn"]) if target == "gfx942" else _of_ptx(made.asm["ptx"], target))


def _of_ptx(ptx: str, target: str) -> dict[str, int]:
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        arch = re.search(r"\.target (\w+)", ptx)
        assert arch is not None
        command = [
            get_ptxas(int(target.removeprefix("sm_"))).path,
            "-v",
            f"--gpu-name={arch[1]}",
            file.name,
            "-o",
            f"{file.name}.o",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        Path(f"{file.name}.o").unlink(missing_ok=True)
    if done.returncode != 0:
        raise RuntimeError(f"gpu: ptxas failed for {target}: {done.stderr or done.stdout}")
    said = done.stderr + done.stdout
    registers = re.search(r"Used (\d+) registers", said)
    spilled = re.search(r"(\d+) bytes spill stores", said)
    assert registers is not None
    return {"registers": int(registers[1]), "spilled": int(spilled[1]) if spilled else 0}


def _of_amdgcn(text: str) -> dict[str, int]:
    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        assert found is not None
        return int(found[1])

    return {"registers": number("vgpr_count"), "spilled": number("vgpr_spill_count")}


def time_inference(shape: tuple[int, ...]) -> dict[str, Any]:
    """Milliseconds of a layer in inference: fused, and operator by operator."""
    from pdecnn.kernels.global_layer import op, triton

    torch.manual_seed(0)
    h, C = torch.rand(shape, device="cuda"), shape[1]
    parameters = [torch.rand(size, device="cuda") for size in ((4, C, 3, 3), (4, C), (C,), (C,))]
    arguments: tuple[Any, ...] = (h, h, *parameters, False, "relu", *STEPS)
    torch.testing.assert_close(triton.global_layer(*arguments), op.default(*arguments), rtol=1e-4, atol=1e-4)
    return _row("inference", h, 8, lambda: triton.global_layer(*arguments), lambda: op.default(*arguments))


def time_training(shape: tuple[int, ...]) -> dict[str, Any]:
    """Milliseconds of a layer up to its output norm, forward and backward: fused, and by torch's stencils and norms."""
    from pdecnn.kernels.global_layer import triton_training
    from pdecnn.kernels.global_layer.training import Layer

    torch.manual_seed(0)
    C, eps = shape[1], [1e-5] * 4
    h, x, grad = (torch.rand(shape, device="cuda") for _ in range(3))
    weight, bias = torch.randn(4, C, 3, 3, device="cuda"), torch.rand(4, C, device="cuda")
    gamma, beta = (0.3 * torch.rand(4, C, device="cuda") for _ in range(2))

    def fused() -> list[torch.Tensor]:
        arguments = (h, x, weight, bias, gamma, beta, eps, *STEPS)
        out, mean, var = triton_training.forward(*arguments)
        return [out, *triton_training.backward(grad, mean, var, *arguments)]

    def apart() -> list[torch.Tensor]:
        leaves = [q.detach().requires_grad_() for q in (h, x, weight, gamma, beta)]
        layer = Layer.of(*leaves[:3], bias, *leaves[3:], eps, *STEPS)
        problem = layer.steps.solve(layer.norms.h, layer.x, layer.norms.maps())
        out = torch.ops.pdecnn.advection_diffusion(*problem)
        return [out, *torch.autograd.grad(out, leaves, grad)]

    for mine, theirs in zip(fused(), apart(), strict=True):
        size = theirs.abs().max().item()
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-3, atol=1e-3 * size)
    return _row("training", h, 80, fused, apart)


def _row(mode: str, h: torch.Tensor, bytes_per_pixel: int, fused: Any, apart: Any) -> dict[str, Any]:
    """Times beside that of as many bytes in a copy, which moves eight for a pixel."""
    from triton.testing import do_bench

    roofline = do_bench(lambda: h.clone()) * bytes_per_pixel / 8
    times = {"fused_ms": do_bench(fused), "operators_ms": do_bench(apart), "roofline_ms": roofline}
    return {"mode": mode, "shape": list(h.shape), **times}


def main(
    compile_only: Annotated[bool, typer.Option("--compile", help="Compile, do not run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    if not compile_only and not torch.cuda.is_available():
        typer.echo("gpu: no CUDA device here. Use --compile to see what the kernels compile to.", err=True)
        raise typer.Exit(1)
    if compile_only:
        rows = [compile_for(name, target) for name in signatures() for target in TARGETS]
    else:
        rows = [time(shape) for time in (time_inference, time_training) for shape in SHAPES]
        (RESULTS / "gpu.json").write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1))
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
