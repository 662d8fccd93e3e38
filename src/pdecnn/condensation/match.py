"""Is this the model that a plan was made for? Asked before a block of it is removed."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.condensation.site import Run
from pdecnn.models.described import described
from pdecnn.shared.modules import listen


def count_kernels(module: nn.Module) -> int:
    """How many kernels of convolutions a module holds: what tells a longer stage from a shorter one."""
    return sum(p.ndim > 2 for p in module.parameters())


def check_model(
    model: nn.Module, runs: Iterable[Run], input_shapes: Sequence[tuple[int, ...]], base: dict[str, Any] | None
) -> None:
    """Raises a ValueError unless the blocks of the runs are in the model, as many and of the shapes of the plan."""
    runs = [run for run in runs if run.condenses]
    _check_name(model, base)
    for run in runs:
        try:
            parent = model.get_submodule(run.parent)
        except AttributeError:
            continue  # `check_paths` says what is missing
        found = count_kernels(parent)
        axes, wanted = {p.ndim - 2 for p in parent.parameters() if p.ndim > 2}, len(run.shape) - 1
        if run.kernels and wanted not in axes:
            raise ValueError(
                f"Plan.apply: the plan is for {wanted}-D convolutions, {run.parent or 'the model'} has none. Make a "
                "new plan with pdecnn.plan."
            )
        if run.kernels and found != run.kernels:
            raise ValueError(
                f"Plan.apply: {run.parent or 'the model'} holds {found} convolutions, {run.kernels} when the plan was "
                f"made: it is another {type(model).__name__}. Make a new plan with pdecnn.plan."
            )
    shapes = _shapes(model, [_witness(run) for run in runs], input_shapes)
    for run in runs:
        got = shapes.get(_witness(run), ())
        if len(got) == len(run.shape) + 1:
            got = (got[-1], *got[1:-1]) if run.channels_last else got[1:]
            if tuple(got) != tuple(run.shape):
                raise ValueError(
                    f"Plan.apply: the run {run.path} has feature maps of shape {tuple(got)} in this "
                    f"{type(model).__name__}, the plan says {tuple(run.shape)}. The plan was edited, or made for "
                    "another model; make a new one with pdecnn.plan."
                )


def _check_name(model: nn.Module, base: dict[str, Any] | None) -> None:
    cfg = getattr(model, "pretrained_cfg", None)
    if known := described(cfg):
        name = known.get("name") if known.get("builder", "timm") == "timm" else None
    else:
        name = cfg.get("architecture") if isinstance(cfg, dict) else getattr(cfg, "architecture", None)
    planned = (base or {}).get("name") if (base or {}).get("builder", "timm") == "timm" else None
    if name and isinstance(planned, str) and planned.partition(".")[0] != name:
        raise ValueError(
            f"Plan.apply: the plan was made for {planned!r}, the model is {name!r}. Make a new one with pdecnn.plan."
        )


def _witness(run: Run) -> str:
    """The module whose output has the shape of the run; empty if none shows it."""
    if run.is_dense:
        return run.transition or ""
    return run.child(run.units[0][-1])


def _shapes(
    model: nn.Module, paths: Sequence[str], input_shapes: Sequence[tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """What these modules return, by a pass without numbers; nothing for models that do not run without them."""
    seen: dict[nn.Module, tuple[int, ...]] = {}

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            seen.setdefault(module, tuple(output.shape))

    tensors = [*model.parameters(), *model.buffers()]
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    inputs = tuple(torch.empty(shape, dtype=dtype, device="meta") for shape in input_shapes)
    try:
        # a copy for which no tensor is copied; what has two names stays one
        twin = copy.deepcopy(model, {id(t): _without_numbers(t) for t in tensors}).eval()
        modules = dict(twin.named_modules(remove_duplicate=False))
        watched = {path: modules[path] for path in paths if path in modules}
        with torch.no_grad(), listen(watched.values(), after=note):
            twin(*inputs)
    except Exception:  # it needs numbers, or arguments that a plan does not keep
        return {}
    return {path: seen[module] for path, module in watched.items() if module in seen}


def _without_numbers(t: Tensor) -> Tensor:
    empty = torch.empty_like(t, device="meta")
    return nn.Parameter(empty, requires_grad=t.requires_grad) if isinstance(t, nn.Parameter) else empty
