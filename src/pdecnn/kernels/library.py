"""What every operator is registered with: the one library of torch, and the codes that native kernels know words by."""

from typing import Any

import torch

LIBRARY: Any = torch.library.Library("pdecnn", "FRAGMENT")  # type: ignore[no-untyped-call]
TAGS = (torch.Tag.pt2_compliant_tag,)

# as the enums of common/abi.h
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
BOUNDARIES = {"periodic": 0, "neumann": 1, "dirichlet": 2}
ACTIVATIONS = {"identity": 0, "relu": 1, "relu6": 2, "tanh": 3, "hardtanh": 4}  # hardtanh clamps to [-1, 1]
