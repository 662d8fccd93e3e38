"""Models outside torch as functions of tensors: ONNX Runtime and compiled C.

An engine may be called from several threads at once. It is pickled as the file that it was made from; a copy is the
engine itself, since nothing in it changes.
"""

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.deploy.api import session
from pdecnn.deploy.check import onnx_runner
from pdecnn.deploy.int8 import quantise
from pdecnn.deploy.onnx import DOMAIN, to_onnx
from pdecnn.shared.extras import require

ENGINES = ("onnx", "onnx-fused", "onnx-int8", "c", "c-int8")


class Engine:
    """What all engines have in common; `open` makes what cannot be pickled from what can.

    Args:
        file: The ONNX file or the C source.
        flash: How many bytes the file puts on a device.
        threads: Threads inside an operator, if the runtime has them.
    """

    def __init__(self, file: bytes, flash: int, threads: int = 1) -> None:
        self.file, self.bytes, self.threads = file, flash, threads
        self.open()

    def open(self) -> None:
        """Loads the file."""
        raise NotImplementedError

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """All outputs for a batch of each input."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """What `open` needs."""
        return {name: getattr(self, name) for name in ("file", "bytes", "threads")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.open()

    def __deepcopy__(self, memo: Any) -> "Engine":
        return self


class OnnxEngine(Engine):
    """An ONNX file in ONNX Runtime.

    `session.run` takes numpy's view of a tensor, and torch takes its answer, without a copy. That is measured: it is
    as fast as a kept binding of inputs and outputs, which two threads cannot share, and faster than a new one.
    """

    def open(self) -> None:
        """Starts a session."""
        onnx = require("onnx", "export")
        domains = {item.domain for item in onnx.load_from_string(self.file).opset_import}
        self.fused = DOMAIN in domains  # else the library is not needed
        self._run = onnx_runner(session(self.file, ops="fused" if self.fused else "portable", threads=self.threads))

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """All outputs for a batch of each input."""
        return self._run(inputs)


class CEngine(Engine):
    """A generated C file, compiled on this machine; a batch is a loop over its samples, with an arena per thread."""

    def open(self) -> None:
        """Compiles the file."""
        from pdecnn.deploy.c.build import FAST, Built, described

        source = self.file.decode()
        name, self.arena_bytes, self.shapes = described(source)
        self._run = Built(source, name, flags=FAST).library[f"{name}_run"]
        self._run.argtypes = [ctypes.c_void_p] * 3
        self._own = threading.local()

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """All outputs for a batch of each input."""
        count = len(inputs[0])
        rows = [x.detach().reshape(count, -1) for x in inputs]
        given = (rows[0] if len(rows) == 1 else torch.cat(rows, 1)).contiguous()
        sizes = [shape[1:].numel() for shape in map(torch.Size, self.shapes)]
        out = torch.empty(count, sum(sizes))
        arena, x, y = self._arena(), given.data_ptr(), out.data_ptr()
        for i in range(count):
            self._run(arena, x + 4 * i * given.shape[1], y + 4 * i * out.shape[1])
        return [q.reshape(count, *shape[1:]) for q, shape in zip(out.split(sizes, 1), self.shapes, strict=True)]

    def _arena(self) -> int:
        if not hasattr(self._own, "arena"):
            self._own.arena = torch.empty(self.arena_bytes, dtype=torch.uint8)
        address: int = self._own.arena.data_ptr()
        return address


def make_engine(
    runtime: str,
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    threads: int = 1,
    int8: Sequence[Sequence[Tensor]] | None = None,
) -> Engine:
    """The model in one of `ENGINES`; those of 8 bits need batches to calibrate with, from `calibration_batches`."""
    if runtime in ("c", "c-int8"):
        from pdecnn.deploy.c.write import write

        written = write(model, inputs, "net", int8=int8)
        return CEngine(written.source.encode(), written.footprint.flash)
    proto = to_onnx(model, inputs, ops="fused" if runtime == "onnx-fused" else "portable")
    file = (proto if int8 is None else quantise(proto, int8)).SerializeToString()
    return OnnxEngine(file, len(file), threads)
