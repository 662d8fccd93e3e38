"""ExecuTorch: a `.pte` file for phones, with XNNPACK kernels in single precision.

ExecuTorch is a large install (about 545 MB) and is no dependency of pdecnn: `pip install executorch`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.deploy.check import Runner
from pdecnn.deploy.lower import lower, trace
from pdecnn.shared.extras import require


def write_pte(model: nn.Module, inputs: Sequence[Tensor], path: Path) -> None:
    """Writes `model` for the batch of `inputs`; XNNPACK plans its memory for fixed sizes."""
    exir = require("executorch.exir", "executorch")
    xnnpack = require("executorch.backends.xnnpack.partition.xnnpack_partitioner", "executorch")
    lowered = lower(model, inputs, dynamic="nothing")
    program = trace(lowered, inputs, dynamic="nothing")
    edge = exir.to_edge_transform_and_lower(program, partitioner=[xnnpack.XnnpackPartitioner()])
    path.write_bytes(edge.to_executorch().buffer)


def load_pte(path: Path) -> Runner:
    """A function of tensors that runs the file `path`, for the batch it was written for."""
    runtime = require("executorch.runtime", "executorch").Runtime.get()
    program = runtime.load_program(path)
    method = program.load_method("forward")

    def run(inputs: Sequence[Tensor], owner: Any = program) -> list[Tensor]:  # the method's memory is the program's
        with torch.no_grad():
            return [y.clone() for y in method.execute([x.contiguous() for x in inputs])]

    return run
