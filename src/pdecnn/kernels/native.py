"""The shared library of native kernels: finding it, choosing the instruction set, and saying why it is not there.

Two environment variables force a choice; asking for what is not there is an error.

- `PDECNN_KERNELS=native|reference`: use the native kernels, or none of them.
- `PDECNN_ISA=baseline|avx2|avx512`: the instruction set of the native kernels.

`PDECNN_LIBRARY` names another build of the library (the tests use it for a build with sanitizers).
"""

import ctypes
import os
import re
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch

ABI_VERSION = 4
ISAS = ("avx512", "avx2", "baseline")  # best first
LIBRARY_NAMES = ("libpdecnn_native.so", "libpdecnn_native.dylib", "pdecnn_native.dll")
STATUS = {1: "out of memory", 2: "torch's thread pool failed", 3: "bad argument"}


@dataclass(frozen=True)
class Library:
    """A loaded library and the instruction set that is used of it."""

    path: Path
    isa: str
    threads: str
    handle: ctypes.CDLL

    def function(self, name: str) -> "NativeFunction":
        """The exported function `name` for the chosen instruction set, and how the struct that it takes is packed."""
        function = getattr(self.handle, f"{name}_{self.isa}")
        function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int32
        return NativeFunction(name, function, struct.Struct("=" + self.layout(name)))

    def layout(self, name: str) -> str:
        """The fields of a struct of `common/abi.h`, `q` or `d` each, from the declarations that the library keeps."""
        size = ctypes.c_int64()
        self.handle.pdecnn_layout.restype = ctypes.c_char_p
        text = self.handle.pdecnn_layout(name.encode(), ctypes.byref(size))
        if text is None:
            raise AttributeError(f"{self.path} does not know the struct {name}.")
        fields = ""
        for kind, names in re.findall(r"(?:const )?([\w:]+)(.*?);", text.decode()):
            for field in names.split(","):
                number = re.search(r"\[(\d+)\]", field)
                one = "q" if "*" in field or kind == "int64_t" else "d" if kind == "double" else self.layout(kind)
                fields += one * int(number[1] if number else 1)
        if 8 * len(fields) != size.value:
            raise RuntimeError(f"{self.path}: {name} has {size.value} bytes, but its fields '{text.decode()}' do not.")
        return fields


@dataclass(frozen=True)
class NativeFunction:
    """A native function, which takes one packed struct; calling it raises if it fails."""

    name: str
    address: Any
    struct: struct.Struct

    def __call__(self, *fields: int | float) -> None:
        """Calls the function with the fields of its struct in `common/abi.h`, one after another."""
        status = self.status(*fields)
        if status:
            raise RuntimeError(f"{self.name}: {STATUS.get(status, f'status {status}')}.")

    def status(self, *fields: int | float) -> int:
        """The same, with what the function answers: 0, or a code of failure."""
        answer: int = self.address(self.struct.pack(*fields))
        return answer


@dataclass(frozen=True)
class Missing:
    """Why there is no library."""

    reason: str


def _choice(variable: str, allowed: tuple[str, ...]) -> str | None:
    value = os.environ.get(variable) or None
    if value is not None and value not in allowed:
        raise ValueError(f"{variable} must be one of {', '.join(allowed)} or unset, got {value!r}.")
    return value


def _candidates() -> list[Path]:
    if path := os.environ.get("PDECNN_LIBRARY"):
        return [Path(path)]
    folders = [Path(__file__).parent]
    with suppress(PackageNotFoundError):  # an editable install keeps the library in site-packages
        folders.append(Path(str(distribution("pdecnn").locate_file("pdecnn/kernels"))))
    return [folder / name for folder in folders for name in LIBRARY_NAMES]


@cache
def load() -> Library | Missing:
    """Loads the library once; says why not if it cannot."""
    wanted = _choice("PDECNN_KERNELS", ("native", "reference"))
    if wanted == "reference":
        return Missing("PDECNN_KERNELS=reference")
    result = _load()
    if isinstance(result, Missing) and wanted == "native":
        raise RuntimeError(
            f"kernels: 'native' was requested but did not load: {result.reason} "
            "Reinstall pdecnn where a C++ compiler is present, or unset PDECNN_KERNELS to use the reference."
        )
    return result


def _load() -> Library | Missing:
    isa_wanted = _choice("PDECNN_ISA", ISAS)
    candidates = _candidates()
    path = next((p for p in candidates if p.is_file()), None)
    if path is None:
        looked = " or ".join(sorted({str(p.parent) for p in candidates}))
        return Missing(f"no library in {looked}: pdecnn was installed without a C++ compiler.")
    try:
        handle = ctypes.CDLL(str(path))
        handle.pdecnn_abi_version.restype = ctypes.c_int32
        version = handle.pdecnn_abi_version()
    except (OSError, AttributeError) as error:
        return Missing(f"{error}.")
    if version != ABI_VERSION:
        return Missing(f"{path} has ABI version {version}, this pdecnn needs {ABI_VERSION}: reinstall pdecnn.")
    isa = _pick_isa(handle, isa_wanted)
    return Library(path, isa, _share_threads(handle), handle)


def _pick_isa(handle: ctypes.CDLL, wanted: str | None) -> str:
    def usable(isa: str) -> bool:
        built = hasattr(handle, f"pdecnn_advection_diffusion_forward_{isa}")
        return built and bool(handle.pdecnn_cpu_runs(isa.encode()))

    if wanted is not None:
        if not usable(wanted):
            have = ", ".join(isa for isa in ISAS if usable(isa))
            raise RuntimeError(f"kernels: PDECNN_ISA={wanted} was requested, but this build and CPU have only {have}.")
        return wanted
    return next(isa for isa in ISAS if usable(isa))


def _share_threads(handle: ctypes.CDLL) -> str:
    """Hands torch's thread pool to the library; without it the kernels run on one thread."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll"):
        with suppress(OSError, AttributeError):
            parallel_for = ctypes.CDLL(str(folder / name)).torch_parallel_for
            handle.pdecnn_set_parallel_for.argtypes = [ctypes.c_void_p]
            handle.pdecnn_set_parallel_for(ctypes.cast(parallel_for, ctypes.c_void_p))
            return "torch"
    return "serial (this torch does not export torch_parallel_for)"
