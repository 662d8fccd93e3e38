"""A batch norm that knows how many time steps came before it: its statistics are those of that number."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class StepNorm(nn.Module):
    """One scale and shift, and a mean and a variance for each K from `least` to `most`.

    The states after one step and after ten differ in size; with statistics of its own each K gives the rest of the net
    what it is used to.

    Args:
        norm: The batch norm that it takes the place of; its statistics are the first of every K.
        least: The smallest K.
        most: The largest K.

    Attributes:
        K: The number of steps, where `forward` is not told; `set_steps` sets it.

    Example:
        >>> norm = StepNorm(nn.BatchNorm2d(4), 1, 10)
        >>> norm(torch.ones(2, 4, 3, 3), K=2).shape, norm.running_mean.shape
        (torch.Size([2, 4, 3, 3]), torch.Size([10, 4]))
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, norm: Any, least: int, most: int) -> None:
        super().__init__()
        if type(norm) not in BATCH_NORMS or norm.running_mean is None:
            raise ValueError(f"StepNorm: expected a batch norm with running statistics, got {norm!r}.")
        self.kind, self.channels, self.eps, self.momentum = type(norm), norm.num_features, norm.eps, norm.momentum
        self.least, self.most, self.K = least, most, most
        self.register_parameter("weight", norm.weight)
        self.register_parameter("bias", norm.bias)
        rows = most - least + 1
        self.register_buffer("running_mean", norm.running_mean.detach().repeat(rows, 1))
        self.register_buffer("running_var", norm.running_var.detach().repeat(rows, 1))
        self.register_buffer("num_batches_tracked", norm.num_batches_tracked.detach().repeat(rows))
        self.train(norm.training)

    def forward(self, h: Tensor, K: int | None = None) -> Tensor:
        """The norm of the state after K steps."""
        i, momentum = self.row(self.K if K is None else K), self.momentum
        if self.training:
            self.num_batches_tracked[i].add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked[i])
        mean, var = self.running_mean[i], self.running_var[i]
        return nnf.batch_norm(h, mean, var, self.weight, self.bias, self.training, momentum or 0.0, self.eps)

    def at(self, K: int) -> Any:
        """The batch norm of K steps: its parameters and statistics are these, not copies."""
        i = self.row(K)
        norm = self.kind(self.channels, self.eps, self.momentum, affine=False, track_running_stats=False)
        norm.affine, norm.track_running_stats = self.weight is not None, True
        norm._parameters.update(weight=self.weight, bias=self.bias)
        statistics = ("running_mean", "running_var", "num_batches_tracked")
        norm._buffers.update({name: self._buffers[name][i] for name in statistics})  # type: ignore[index]
        return norm.train(self.training)

    def row(self, K: int) -> int:
        """Where the statistics of K steps are; a ValueError if there are none."""
        if not self.least <= K <= self.most:
            raise ValueError(f"StepNorm: this net was trained for K from {self.least} to {self.most}, got K={K}.")
        return K - self.least

    def extra_repr(self) -> str:
        """Channels and the range of K."""
        return f"{self.channels}, K={self.least}..{self.most}"


def normed(norm: nn.Module, h: Tensor, K: int) -> Tensor:
    """`norm(h)` of the state after K steps."""
    out: Tensor = norm(h, K) if isinstance(norm, StepNorm) else norm(h)
    return out


def copied(norm: StepNorm) -> Any:
    """The batch norm of the K that is set, with statistics of its own."""
    found = norm.at(norm.K)
    found._buffers = {name: q.clone() for name, q in found._buffers.items()}
    return found


@torch.no_grad()
def forget(norm: StepNorm) -> None:
    """Makes the next batch of each K the first one."""
    norm.num_batches_tracked.zero_()
