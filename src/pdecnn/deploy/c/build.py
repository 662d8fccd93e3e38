"""A generated file on this machine: compiled by its C compiler and called through ctypes."""

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FLAGS = ("-std=c99", "-O3", "-march=native", "-ffp-contract=off")  # the bits of every other target
FAST = (*FLAGS[:-1], "-ffp-contract=fast")  # products and sums in one, where this machine can


def compiler() -> list[str]:
    """The C compiler, `$CC` or the first of cc, gcc, clang; a RuntimeError that says what to do if there is none."""
    given = shlex.split(os.environ.get("CC", ""))
    for command in [given] if given else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    raise RuntimeError(
        f"export: no C compiler to check the file with: {given[0] if given else 'cc, gcc or clang'} is not installed. "
        "Install one, name it in CC, or export with check=False."
    )


class Built:
    """A shared library made from a generated file.

    Args:
        source: The file, or its text.
        name: The prefix of its public names.
        command: The compiler; the machine's by default.
        flags: Of the compiler.
    """

    def __init__(
        self, source: str, name: str, command: Sequence[str] | None = None, flags: Sequence[str] = FLAGS
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file, library = Path(folder) / "net.c", Path(folder) / "net.so"
            file.write_text(source)
            call = [*(command or compiler()), *flags, "-shared", "-fPIC", str(file), "-o", str(library)]
            done = subprocess.run(call, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"export: {shlex.join(call)} failed:\n{done.stderr.strip()}")
            self.library = ctypes.CDLL(str(library))
            self.bytes = library.stat().st_size
        self.name = name

    def run(self, arena: Any, values: Any, out: Any, K: int | None = None) -> int:
        """One call of `run`, or of `run_k` if K is given, on contiguous float32 arrays."""
        pointers = [ctypes.c_void_p(q.ctypes.data) for q in (arena, values, out)]
        if K is None:
            return int(self.library[f"{self.name}_run"](*pointers))
        return int(self.library[f"{self.name}_run_k"](*pointers, ctypes.c_int(K)))


def runner(source: str, **options: Any) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """A function of batches that runs a generated file sample by sample."""
    name, arena_bytes, shapes = described(source)
    function = Built(source, name, **options).library[f"{name}_run"]
    sizes = [int(np.prod(shape)) for shape in shapes]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        count = len(inputs[0])
        rows = [x.detach().to("cpu", torch.float32).reshape(count, -1) for x in inputs]
        flat = (rows[0] if len(rows) == 1 else torch.cat(rows, 1)).contiguous()
        out = torch.empty(count, sum(sizes))
        arena = np.full(arena_bytes // 4, np.nan, dtype=np.float32)  # of this call alone: others may run beside it
        a, x, y = arena.ctypes.data, flat.data_ptr(), out.data_ptr()
        for i in range(count):
            places = (a, x + 4 * i * flat.shape[1], y + 4 * i * out.shape[1])
            function(*map(ctypes.c_void_p, places))
        parts = out.split(sizes, 1)
        return [part.reshape(count, *shape[1:]) for part, shape in zip(parts, shapes, strict=True)]

    return run


def described(source: str) -> tuple[str, int, list[tuple[int, ...]]]:
    """The prefix, the bytes of the arena and the shapes of the outputs, as the first lines of a file say them."""
    name = re.findall(r"int (\w+)_run\(", source)[0]
    outputs, arena = re.findall(r"-> (.*?); SRAM ([\d,]+) bytes", source)[0]
    shapes = [tuple(map(int, q.split("x"))) for q in outputs.split(", ")]
    return name, int(arena.replace(",", "")), shapes
