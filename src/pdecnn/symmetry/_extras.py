"""The parts of `symmetry` that need torch's parametrizations, geotorch or scipy (`pip install "pdecnn[symmetry]"`)."""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from pdecnn.shared.extras import require


def assignment(gain: Tensor) -> Tensor:
    """The permutation `src` that maximises `sum_i gain[i, src[i]]`."""
    optimize = require("scipy.optimize", "symmetry")
    _, columns = optimize.linear_sum_assignment(gain.detach().cpu().numpy(), maximize=True)
    return torch.as_tensor(columns)


class Parameter(nn.Module):
    """A module with a square `weight` to be parametrised."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.detach().double().clone())

    def forward(self) -> Tensor:
        """The group element."""
        return self.weight


def orthogonal_parameter(start: Tensor) -> nn.Module:
    """An element of the component of O(n) that holds `start`."""
    module = parametrizations.orthogonal(Parameter(start), orthogonal_map="matrix_exp")
    module.weight = start.detach().double()
    return module


def invertible_parameter(start: Tensor) -> nn.Module:
    """An element of the component of GL(n) that holds `start`."""
    module = Parameter(start)
    require("geotorch", "symmetry").invertible(module, "weight")
    module.double().weight = start.detach().double()  # type: ignore[assignment]
    return module


class ScaledParameter(nn.Module):
    """`diag(e^s) start`: the connected component of a monomial matrix."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.register_buffer("start", start.detach().double().clone())
        self.log_scale = nn.Parameter(torch.zeros(start.shape[0], dtype=torch.float64))

    @property
    def weight(self) -> Tensor:
        """The group element."""
        return self.log_scale.exp().unsqueeze(1) * self.start  # type: ignore[operator]

    def forward(self) -> Tensor:
        """The group element."""
        return self.weight
