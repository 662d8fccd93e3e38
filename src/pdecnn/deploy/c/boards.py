"""A generated file on boards with Arm Cortex-M that QEMU imitates: its outputs, instructions and size.

Needs `arm-none-eabi-gcc` and `qemu-system-arm` (Debian: gcc-arm-none-eabi, qemu-system-arm).
"""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pdecnn.deploy.c.write import Written

FILES = Path(__file__).parent / "board"
GCC, QEMU = "arm-none-eabi-gcc", "qemu-system-arm"
TICK = 40  # instructions: the counter runs at 25 MHz, and QEMU takes a nanosecond for each
BOARDS = {
    "cortex-m3": ("mps2-an385", ("-mfloat-abi=soft",)),
    "cortex-m4": ("mps2-an386", ("-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")),
    "cortex-m7": ("mps2-an500", ("-mfloat-abi=hard", "-mfpu=fpv5-sp-d16")),
}


@dataclass(frozen=True)
class Run:
    """One run: the outputs, about how many instructions it took (to 40), and bytes of code and of constants."""

    out: Tensor
    instructions: int
    code: int
    constants: int


def installed() -> bool:
    """Whether both tools are there."""
    return bool(shutil.which(GCC) and shutil.which(QEMU))


def run_on(cpu: str, written: Written, x: Tensor, *, level: str = "-O2", seconds: float = 600.0) -> Run:
    """Compiles a file whose names begin with `net` for a core and runs it once on `x`."""
    board, flags = BOARDS[cpu]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = ", ".join(f"{v!r}f" for v in x.reshape(-1).tolist())
        (folder / "input.h").write_text(f"static const float input[] = {{{values}}};\n")
        (folder / "net.c").write_text(written.source)
        (folder / "net.h").write_text(written.header)
        build = [GCC, "-std=c99", f"-mcpu={cpu}", "-mthumb", *flags, level, "-ffp-contract=off", "-I."]
        _call([*build, "-c", "net.c"], folder)
        _call(
            [*build, "-nostartfiles", str(FILES / "main.c"), "net.o", "-T", str(FILES / "link.ld"), "-o", "net"], folder
        )
        sections = _sections(folder / "net.o")
        call = [QEMU, "-M", board, "-cpu", cpu, "-kernel", "net", "-nographic", "-monitor", "none", "-serial", "none"]
        call += ["-semihosting-config", "enable=on,target=native", "-icount", "shift=0"]
        words = [int(line, 16) for line in _call(call, folder, seconds).split()]
    out = torch.from_numpy(np.array(words[:-1], dtype=np.uint32).view(np.float32).copy())
    return Run(out, TICK * words[-1], sections[".text"], sections[".rodata"])


def _call(command: list[str], folder: Path, seconds: float | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout + done.stderr


def _sections(file: Path) -> dict[str, int]:
    """Bytes of code and of constants of an object file, those of parts of each kind together."""
    sizes = {".text": 0, ".rodata": 0}
    for line in _call(["arm-none-eabi-size", "-A", file.name], file.parent).splitlines():
        name, *numbers = line.split() or [""]
        for kind in sizes:
            if name.startswith(kind):
                sizes[kind] += int(numbers[0])
    return sizes
