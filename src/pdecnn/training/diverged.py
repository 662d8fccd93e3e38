"""What to say when the loss stops being a number."""

import copy
from typing import Any

import torch
from torch import Tensor, nn


class DivergedError(RuntimeError):
    """The loss or a weight became NaN or infinite."""

    def __init__(self, loss: float, step: int, epoch: int, last: float | None, lr: float, where: str) -> None:
        self.loss, self.step, self.epoch, self.lr, self.where = loss, step, epoch, lr, where
        before = "" if last is None else f" Last finite loss {last:.4g}."
        super().__init__(
            f"train: loss became {loss} at step {step} (epoch {epoch}), lr {lr:.4g}.{before} {where} "
            "Use a smaller optimizer.lr, clip_grad, or --on-nan resume."
        )


def first_bad_module(model: nn.Module, x: Tensor) -> str:
    """Names the first parameter or, running the model on `x`, the first module output that is not finite.

    The forward pass runs on a copy, so that running statistics of the model stay as they are.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
        >>> _ = net[0].weight.data.fill_(float("inf"))
        >>> first_bad_module(net, torch.ones(1, 1))
        "The parameter '0.weight' is not finite."
        >>> first_bad_module(nn.Sequential(nn.ReLU(), nn.Threshold(0.5, float("nan"))), torch.zeros(1))
        "The module '1' (Threshold) is the first whose output is not finite."
    """
    for name, value in model.named_parameters():
        if not torch.isfinite(value).all():
            return f"The parameter {name!r} is not finite."
    if not torch.isfinite(x).all():
        return "The input images are not finite."
    model = copy.deepcopy(model)
    bad: list[str] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not bad and not torch.isfinite(output).all():
                bad.append(f"The module {name!r} ({type(module).__name__}) is the first whose output is not finite.")

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(watch(name))
    with torch.no_grad():
        model(x)
    return bad[0] if bad else "All module outputs are finite: the loss itself overflows."
