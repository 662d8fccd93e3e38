"""Which kernel backs each operator, and why not a faster one."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from pdecnn.kernels.advection_diffusion import cpu as advection_diffusion_cpu
from pdecnn.kernels.depthwise import cpu as depthwise_cpu
from pdecnn.kernels.global_layer import cpu as global_layer_cpu
from pdecnn.kernels.library import LIBRARY
from pdecnn.kernels.native import Library, Missing, load
from pdecnn.kernels.shared_expand import cpu as shared_expand_cpu
from pdecnn.kernels.spectral_filter import cpu as spectral_filter_cpu

# operator -> what makes the native library its implementation on the CPU
NATIVE: dict[str, Callable[[Library], None]] = {
    "advection_diffusion": advection_diffusion_cpu.register,
    "depthwise": depthwise_cpu.register,
    "global_layer": global_layer_cpu.register,
    "shared_expand": shared_expand_cpu.register,
    "spectral_filter": spectral_filter_cpu.register,
}


_NOT_BUILT: set[str] = set()  # operators that the loaded library does not have


@dataclass(frozen=True)
class Backing:
    """What computes an operator on a kind of device."""

    op: str
    device: str
    kernel: str
    note: str = ""


def register_all() -> None:
    """Registers every faster kernel that this machine has."""
    library = load()
    if isinstance(library, Library):
        for op, register in NATIVE.items():
            try:
                register(library)
            except AttributeError:  # an older build, or a compiler that the kernel is not written for
                _NOT_BUILT.add(op)
    if triton_missing() is None:
        from pdecnn.kernels.advection_diffusion import triton as advection_diffusion_triton

        LIBRARY.impl("advection_diffusion", advection_diffusion_triton.forward, "CUDA")
        LIBRARY.impl("advection_diffusion_backward", advection_diffusion_triton.backward, "CUDA")
        from pdecnn.kernels.global_layer import triton as global_layer_triton
        from pdecnn.kernels.global_layer import triton_training as global_training_triton

        LIBRARY.impl("global_layer", global_layer_triton.global_layer, "CUDA")
        LIBRARY.impl("global_training", global_training_triton.forward, "CUDA")
        LIBRARY.impl("global_training_backward", global_training_triton.backward, "CUDA")


def triton_missing() -> str | None:
    """Why the Triton kernels are not used on CUDA; None if they are."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    if torch.version.hip is not None:
        return "the kernels are written for CUDA, not for ROCm"
    if find_spec("triton") is None:
        return "triton is not installed"
    return None


def is_native(op: str) -> bool:
    """Whether the native library computes `op` on the CPU."""
    return isinstance(load(), Library) and op not in _NOT_BUILT


def available() -> list[Backing]:
    """One row per operator and device: the kernel in use and, where it is the reference, the reason."""
    library = load()
    rows = []
    for op in NATIVE:
        if isinstance(library, Missing):
            rows.append(Backing(op, "cpu", "reference", library.reason))
        elif op in _NOT_BUILT:
            rows.append(Backing(op, "cpu", "reference", f"{library.path} does not have it"))
        else:
            rows.append(Backing(op, "cpu", f"native ({library.isa})", f"threads: {library.threads}"))
    missing = triton_missing()
    rows.append(Backing("advection_diffusion", "cuda", "reference" if missing else "triton", missing or ""))
    return rows
