"""AOTInductor: a model compiled ahead of time into one `.pt2` package, for servers with torch and no tracing.

The compiler is given the operators as torch has them (`roll`, FFT): it fuses those and not slices with concatenations.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from pdecnn.deploy.check import Runner
from pdecnn.deploy.lower import lower_with, trace
from pdecnn.deploy.portable import TABLE
from pdecnn.reference import advection_diffusion as reference
from pdecnn.shared.modules import tensors_in


def write_pt2(model: nn.Module, inputs: Sequence[Tensor], path: Path) -> None:
    """Compiles `model` into the package `path`. Needs a C++ compiler."""

    def solve(h: Tensor, h_prev: Tensor | None, *others: object) -> Tensor:
        u, v, D_x, D_y, f, K, dt, dx, dy, boundary = others
        options = {"h_prev": h_prev, "K": K, "dt": dt, "dx": dx, "dy": dy, "boundary": boundary}
        return reference(h, u, v, D_x, D_y, f, **options)  # type: ignore[arg-type]

    table = {**TABLE, torch.ops.pdecnn.advection_diffusion.default: solve}
    program = trace(lower_with(table, model, inputs, whole_layers=False), inputs)
    torch._inductor.aoti_compile_and_package(program, package_path=os.fspath(path))


def load_pt2(path: Path) -> Runner:
    """A function of tensors that runs the package `path`."""
    compiled = torch._inductor.aoti_load_package(os.fspath(path))
    return lambda inputs: tensors_in(compiled(*inputs))
