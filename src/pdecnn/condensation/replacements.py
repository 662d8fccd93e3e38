"""What may stand in the place of removed blocks: one small table, which users can extend."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pdecnn.condensation.paper import global_layer
from pdecnn.condensation.pde import PdeOptions, steps
from pdecnn.condensation.site import Run
from pdecnn.shared.names import close_to

Build = Callable[[Run], nn.Module]
B = TypeVar("B", bound=Build)

NOTHING, PAPER, PDE = "nothing", "paper", "pde"
STEPS = {PAPER: 5, PDE: 3}  # K where none is given; that of the others is not used
_CONVS: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS: tuple[Any, ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_BUILDS: dict[str, Build] = {}


class Correction(nn.Module):
    """`act(x + norm(branch(x)))`: something small is added to the map. It starts as the identity.

    Args:
        branch: Maps `(N, C, ...)` to the same shape.
        run: Says how many channels and axes the map has, and whether it has negative values; if not, `act` is a ReLU.
    """

    def __init__(self, branch: nn.Module, run: Run) -> None:
        super().__init__()
        self.branch = branch
        self.norm = _norm(run)
        self.act = nn.Identity() if run.signed else nn.ReLU()
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        """`(N, C, ...) -> (N, C, ...)`."""
        out: Tensor = self.act(x + self.norm(self.branch(x)))
        return out


def register_replacement(name: str) -> Callable[[B], B]:
    """Adds the decorated function to the table of replacements, for `plan(replacement=name)` and `--replacement name`.

    It is given the `Run` and returns a module that maps `(N, *run.shape)` to the same shape. A saved model that has
    such layers needs the same registration before it is loaded. Names of the package's own are taken.

    Example:
        >>> @register_replacement("blur")
        ... def blur(run):
        ...     return nn.AvgPool2d(3, 1, 1)
        >>> "blur" in replacements()
        True
    """

    if name in BUILT_IN:
        raise ValueError(f"register_replacement: {name!r} is one of the package's own. Choose another name.")

    def keep(function: B) -> B:
        _BUILDS[name] = function
        return function

    return keep


def replacements() -> tuple[str, ...]:
    """The names in the table."""
    return (NOTHING, *_BUILDS, PAPER)


def check_replacement(name: Any, who: str) -> None:
    """A ValueError unless there is such a replacement."""
    if name not in replacements():
        hint = close_to(str(name), replacements())
        raise ValueError(f"{who}: replacement must be one of {', '.join(replacements())}, got {name!r:.80}.{hint}")


def chosen(run: Run, choice: str, *, keep: int | None = None) -> Run:
    """The run with another replacement; costs are not counted anew.

    `"pde K=1"` also says the number of steps, which else is the one by default.
    """
    keep = run.keep if keep is None else keep
    replacement, _, steps = choice.partition(" K=")
    K = int(steps) if steps else STEPS.get(replacement, 1)
    if replacement == run.replacement:
        return dataclasses.replace(run, keep=keep, K=K if steps else run.K)
    plain: dict[str, Any] = {} if replacement == PAPER else {"init": "identity", "options": {}}
    return dataclasses.replace(run, keep=keep, replacement=replacement, K=K, **plain)


def choice_of(run: Run) -> str:
    """The inverse: `"pde"`, or `"pde K=1"` where the number of steps is not the one by default."""
    usual = STEPS.get(run.replacement)
    return run.replacement if usual in (None, run.K) else f"{run.replacement} K={run.K}"


def choices_at(run: Run, names: Iterable[str]) -> list[str]:
    """What the names mean at a run, each once: where it has `pde` of two steps, `"pde"` is `"pde K=2"`."""
    return list(dict.fromkeys(choice_of(chosen(run, name)) for name in names))


def build(run: Run, init: nn.Module | None, like: Tensor) -> nn.Module:
    """The layer of a run, on the device and in the type of `like`; `init` makes the paper's first guess."""
    check_replacement(run.replacement, f"Plan: run {run.path}")
    if run.replacement == PAPER:
        return global_layer(run, init, like)
    if run.replacement == NOTHING:
        return nn.Identity()
    dtype = like.dtype if like.dtype.is_floating_point else torch.float32
    with torch.device(like.device):
        return _BUILDS[run.replacement](run).to(dtype=dtype)


def _norm(run: Run) -> Any:
    return _NORMS[len(run.shape) - 2](run.shape[0])


def _conv(run: Run, side: int, **options: Any) -> Any:
    return _CONVS[len(run.shape) - 2](run.shape[0], run.shape[0], side, padding=side // 2, bias=False, **options)


def depthwise(run: Run) -> nn.Module:
    """A convolution of each channel with three pixels a side."""
    return Correction(_conv(run, 3, groups=run.shape[0]), run)


def separable(run: Run) -> nn.Module:
    """A depth-wise convolution, then a mixing of channels: the usual cheap block."""
    return Correction(_mixed(_conv(run, 3, groups=run.shape[0]), run), run)


def pde(run: Run) -> nn.Module:
    """Advection, diffusion and reaction: K steps of transport in each channel, then a reaction among channels.

    The variants of `PdeOptions` are the options of the run.
    """
    options = PdeOptions.parse(run.options, run)
    inside = nn.Sequential(*steps(run, options))
    if not options.reaction:
        return Correction(inside, run)
    return Correction(inside.append(_conv(run, 1)) if options.maps else _mixed(inside, run), run)


def _mixed(inside: nn.Module, run: Run) -> nn.Sequential:
    parts = inside if isinstance(inside, nn.Sequential) else [inside]
    return nn.Sequential(*parts, _norm(run), nn.ReLU(), _conv(run, 1))


_BUILDS |= {"depthwise": depthwise, "separable": separable, PDE: pde}
BUILT_IN = replacements()
