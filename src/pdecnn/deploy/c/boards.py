"""A generated file on boards with Arm Cortex-M or RISC-V that QEMU imitates: its outputs, instructions and size.

Debian has the tools: gcc-arm-none-eabi and qemu-system-arm; gcc-riscv64-unknown-elf, picolibc-riscv64-unknown-elf and
qemu-system-misc.
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
GCC = "arm-none-eabi-gcc"


@dataclass(frozen=True)
class Board:
    """What makes and runs a program for a core; `tick` is what one tick of its counter is, in instructions."""

    tools: str
    qemu: tuple[str, ...]
    flags: tuple[str, ...]
    script: str
    tick: int

    def installed(self) -> bool:
        """Whether compiler, its library and QEMU are there."""
        gcc = shutil.which(f"{self.tools}-gcc")
        specs = [flag.removeprefix("--specs=") for flag in self.flags if flag.startswith("--specs=")]
        return bool(gcc and shutil.which(self.qemu[0]) and all(_found(gcc, name) for name in specs))


def _found(gcc: str, name: str) -> bool:
    """Whether a compiler has a file of its own by that name; else it prints the name alone."""
    call = [gcc, f"-print-file-name={name}"]
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip() != name


def _arm(cpu: str, machine: str, *flags: str) -> Board:
    # the counter runs at 25 MHz, and QEMU takes a nanosecond for each instruction
    qemu = ("qemu-system-arm", "-M", machine, "-cpu", cpu)
    return Board("arm-none-eabi", qemu, (f"-mcpu={cpu}", "-mthumb", *flags), "arm.ld", 40)


BOARDS = {
    "cortex-m3": _arm("cortex-m3", "mps2-an385", "-mfloat-abi=soft"),
    "cortex-m4": _arm("cortex-m4", "mps2-an386", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    "cortex-m7": _arm("cortex-m7", "mps2-an500", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
    "rv32imafc": Board(
        "riscv64-unknown-elf",
        ("qemu-system-riscv32", "-M", "virt", "-bios", "none"),
        ("-march=rv32imafc", "-mabi=ilp32f", "-mno-relax", "--specs=picolibc.specs"),
        "riscv.ld",
        1,
    ),
}


@dataclass(frozen=True)
class Run:
    """One run: the outputs, how many instructions it took (on Arm to 40), and bytes of code and of constants."""

    out: Tensor
    instructions: int
    code: int
    constants: int


def run_on(cpu: str, written: Written, x: Tensor, *, level: str = "-O2", seconds: float = 600.0) -> Run:
    """Compiles a file whose names begin with `net` for a core and runs it once on `x`."""
    board = BOARDS[cpu]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = ", ".join(f"{v!r}f" for v in x.reshape(-1).tolist())
        (folder / "input.h").write_text(f"static const float input[] = {{{values}}};\n")
        (folder / "net.c").write_text(written.source)
        (folder / "net.h").write_text(written.header)
        build = [f"{board.tools}-gcc", "-std=c99", *board.flags, level, "-ffp-contract=off", "-I."]
        _call([*build, "-c", "net.c"], folder)
        script = ["-T", str(FILES / board.script), "-o", "net"]
        _call([*build, "-nostartfiles", str(FILES / "main.c"), "net.o", *script], folder)
        sections = _sections(board, folder / "net.o")
        call = [*board.qemu, "-kernel", "net", "-nographic", "-monitor", "none", "-serial", "none"]
        call += ["-semihosting-config", "enable=on,target=native", "-icount", "shift=0"]
        words = [int(line, 16) for line in _call(call, folder, seconds).split()]
    out = torch.from_numpy(np.array(words[:-1], dtype=np.uint32).view(np.float32).copy())
    return Run(out, board.tick * words[-1], sections[".text"], sections[".rodata"])


def _call(command: list[str], folder: Path, seconds: float | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout + done.stderr


def _sections(board: Board, file: Path) -> dict[str, int]:
    """Bytes of code and of constants of an object file, those of parts of each kind together."""
    sizes = {".text": 0, ".rodata": 0}
    for line in _call([f"{board.tools}-size", "-A", file.name], file.parent).splitlines():
        name, *numbers = line.split() or [""]
        for kind in sizes:
            if name.replace(".srodata", ".rodata").startswith(kind):
                sizes[kind] += int(numbers[0])
    return sizes
