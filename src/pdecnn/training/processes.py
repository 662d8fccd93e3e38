"""Several processes that do one job, as `torchrun` or `accelerate launch` starts them: the first writes, all train."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pdecnn.shared.extras import require

T = TypeVar("T")

PATIENCE = timedelta(hours=6)  # how long the others wait while the first plans, fits or writes


def process() -> tuple[int, int]:
    """The number of this process and how many there are, as torchrun and accelerate tell it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Processes:
    """The processes of this job; a single one needs nothing and waits for nobody.

    All of them make the same calls in the same order. On machines without a GPU they talk over gloo.

    Example:
        >>> alone = Processes()
        >>> alone.is_first, alone.first(lambda: 3)
        (True, 3)
    """

    def __init__(self) -> None:
        self.rank, self.count = process()
        self.state: Any = None
        if self.count > 1:
            gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
            self.state = require("accelerate", "train").PartialState(cpu=not gpu, timeout=PATIENCE)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def first(self, find: Callable[[], T]) -> T:
        """What `find` gives in the first process, for all; elsewhere it is not called. An error ends all of them."""
        if self.count == 1:
            return find()
        answer: list[Any] = [None, None]
        failure: BaseException | None = None
        if self.is_first:
            try:
                answer[0] = find()
            except BaseException as error:  # the others wait: they are told, then it goes on its way
                failure, answer[1] = error, f"{type(error).__name__}: {error}"
        torch.distributed.broadcast_object_list(answer, src=0)
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise RuntimeError(f"the first of {self.count} processes failed: {answer[1]}")
        found: T = answer[0]
        return found

    @torch.no_grad()
    def share(self, model: nn.Module) -> None:
        """Gives all processes the weights and statistics that the model has in the first."""
        if self.count == 1:
            return
        for value in model.state_dict().values():
            if isinstance(value, Tensor):
                there = value.to(self.state.device).contiguous()
                torch.distributed.broadcast(there, src=0)
                value.copy_(there)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            values = values.to(self.state.device)
            torch.distributed.all_reduce(values)
        return values
