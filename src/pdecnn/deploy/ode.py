"""ODE blocks for export: a solver that chooses its steps cannot be traced, one with equal steps can."""

import copy

from torch import nn

from pdecnn.layers.ode_block import TABLEAUS, ODEBlock


def is_adaptive(module: nn.Module) -> bool:
    """Whether the module is an ODE block whose number of steps depends on its input."""
    return isinstance(module, ODEBlock) and module.gradient != "anode" and module.steps is None


def fix_steps(model: nn.Module, steps: int, method: str = "rk4") -> nn.Module:
    """A copy of `model` in which every adaptive ODE block takes equal steps; the parameters are the same.

    Args:
        model: Any model with ODE blocks, trained or not.
        steps: Number of equal steps of each block.
        method: `"euler"`, `"midpoint"`, `"heun"` or `"rk4"`.

    Example:
        >>> import timm
        >>> net = timm.create_model("mnist_odenet")
        >>> any(is_adaptive(m) for m in net.modules()), any(is_adaptive(m) for m in fix_steps(net, 8).modules())
        (True, False)
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"fix_steps: steps must be an int of at least 1, got {steps!r}.")
    if method not in TABLEAUS:
        raise ValueError(f"fix_steps: method must be one of {', '.join(TABLEAUS)}, got {method!r}.")
    twin = copy.deepcopy(model)
    blocks = [m for m in twin.modules() if isinstance(m, ODEBlock) and is_adaptive(m)]
    if not blocks:
        raise ValueError(f"fix_steps: {type(model).__name__} has no ODE block with an adaptive solver.")
    for block in blocks:
        block.gradient, block.method, block.steps = "anode", method, steps
    return twin
