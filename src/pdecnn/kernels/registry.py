"""Which kernel backs each operator, and why not a faster one."""

from collections.abc import Callable
from dataclasses import dataclass

from pdecnn.kernels.advection_diffusion import cpu as advection_diffusion_cpu
from pdecnn.kernels.depthwise import cpu as depthwise_cpu
from pdecnn.kernels.native import Library, Missing, load
from pdecnn.kernels.shared_expand import cpu as shared_expand_cpu
from pdecnn.kernels.spectral_filter import cpu as spectral_filter_cpu

# operator -> what makes the native library its implementation on the CPU
NATIVE: dict[str, Callable[[Library], None]] = {
    "advection_diffusion": advection_diffusion_cpu.register,
    "depthwise": depthwise_cpu.register,
    "shared_expand": shared_expand_cpu.register,
    "spectral_filter": spectral_filter_cpu.register,
}


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
        for register in NATIVE.values():
            register(library)


def available() -> list[Backing]:
    """One row per operator and device: the kernel in use and, where it is the reference, the reason."""
    library = load()
    rows = []
    for op in NATIVE:
        if isinstance(library, Missing):
            rows.append(Backing(op, "cpu", "reference", library.reason))
        else:
            rows.append(Backing(op, "cpu", f"native ({library.isa})", f"threads: {library.threads}"))
    return rows
