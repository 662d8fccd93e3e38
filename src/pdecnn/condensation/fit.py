"""Start each Global layer close to the blocks it replaces, from feature maps alone: no labels, no end-to-end training.

The teacher is run on a few batches. Of every run the maps that enter the removed blocks and those that leave them are
kept, and the Global layer learns to map one to the other: first its output norm by linear regression, channel by
channel, then all its parameters by a few hundred small steps.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from pdecnn.condensation.apply import global_layers
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.record import eval_mode
from pdecnn.condensation.site import Run
from pdecnn.layers.global_layer import GlobalLayer


@dataclass(frozen=True)
class Fitted:
    """How well the Global layer at `site` maps what the removed blocks are given to what they give.

    The errors are mean squares relative to the variance of the target: 0 is perfect, 1 as good as a constant.
    `skipped` is that of the identity, that is, of leaving the blocks out.
    """

    site: str
    skipped: float
    before: float
    after: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.site}: unexplained variance {self.before:.3f} -> {self.after:.3f} "
            f"(blocks left out: {self.skipped:.3f})"
        )


def fit_layers(
    student: nn.Module,
    teacher: nn.Module,
    plan: Plan,
    data: Iterable[Any],
    *,
    batches: int = 4,
    steps: int = 100,
    lr: float = 3e-3,
    batch_size: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Fitted]:
    """Fits the Global layers of `student` in place and says how well it went.

    Args:
        student: What `plan.apply(teacher)` gave.
        teacher: The model before; it is not changed.
        plan: The plan.
        data: Batches of inputs, or pairs of inputs and labels; labels are not read.
        batches: How many of them are used.
        steps: Steps of the optimiser for each layer; 0 leaves it at the regression of the norm.
        lr: Learning rate.
        batch_size: Maps per step.
        seed: Seed of the order.
        progress: Called with a line about each layer.
    """
    runs = {run.site: run for run in plan.runs if not run.is_dense}
    layers = {site: layer for site, layer in global_layers(student, plan.runs).items() if site in runs}
    inputs = [b[0] if isinstance(b, (tuple, list)) else b for _, b in zip(range(batches), data, strict=False)]
    if not inputs:
        raise ValueError("fit_layers: data gave no batch.")
    maps = collect_maps(teacher, [runs[site] for site in layers], inputs)
    fitted = []
    for site, layer in layers.items():
        x, y = (_channels_first(t, runs[site]) for t in maps[site])
        fitted.append(fit_layer(layer, x, y, site=site, steps=steps, lr=lr, batch_size=batch_size, seed=seed))
        if progress:
            progress(str(fitted[-1]))
    return fitted


@torch.no_grad()
def collect_maps(teacher: nn.Module, runs: Iterable[Run], inputs: Iterable[Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """For each run the maps that enter its removed blocks and those that leave them, by site."""
    pairs: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    handles = []
    for run in runs:
        first, last = run.child(run.removed[0][0]), run.child(run.removed[-1][-1])
        ins, outs = pairs.setdefault(run.site, ([], []))
        handles.append(teacher.get_submodule(first).register_forward_pre_hook(_keep_input(ins)))
        handles.append(teacher.get_submodule(last).register_forward_hook(_keep_output(outs)))
    try:
        with eval_mode(teacher):
            for x in inputs:
                teacher(x)
    finally:
        for handle in handles:
            handle.remove()
    return {site: (torch.cat(ins), torch.cat(outs)) for site, (ins, outs) in pairs.items()}


def _keep_input(store: list[Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        store.append(args[0].detach().clone())  # blocks may work in place

    return hook


def _keep_output(store: list[Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, out: Tensor) -> None:
        store.append(out.detach().clone())

    return hook


def _channels_first(maps: Tensor, run: Run) -> Tensor:
    return maps.permute(0, 3, 1, 2).contiguous() if run.channels_last else maps


def fit_layer(
    layer: GlobalLayer, x: Tensor, y: Tensor, *, site: str = "", steps: int, lr: float, batch_size: int, seed: int
) -> Fitted:
    """Fits one layer to map `x` to `y`; the state with the smallest error is kept."""
    was_training = layer.training
    frozen = {id(p) for p in layer.init.parameters()}
    parameters = [p for p in layer.parameters() if id(p) not in frozen]
    skipped = _error(x, y)
    _calibrate_coefficients(layer, x[: 4 * batch_size])
    before = _error(_run(layer, x, batch_size), y)
    _regress_norm(layer, x, y, batch_size)
    best = _error(_run(layer, x, batch_size), y)
    state = {k: v.clone() for k, v in layer.state_dict().items()}
    optimizer = torch.optim.Adam(parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=max(steps, 1), pct_start=0.2)
    g = torch.Generator().manual_seed(seed)
    scale = y.var().clamp_min(1e-12)
    layer.eval()  # the norms are fitted as they will be used
    for _ in range(steps):
        index = torch.randint(len(x), (min(batch_size, len(x)),), generator=g)
        loss = nnf.mse_loss(layer(x[index]), y[index]) / scale
        if not torch.isfinite(loss):
            break
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
    after = _error(_run(layer, x, batch_size), y)
    if not after <= best:
        layer.load_state_dict(state)
        after = best
    layer.zero_grad(set_to_none=True)
    layer.train(was_training)
    return Fitted(site, skipped, before, after)


@torch.no_grad()
def _run(layer: GlobalLayer, x: Tensor, batch_size: int) -> Tensor:
    with eval_mode(layer):
        return torch.cat([layer(part) for part in torch.split(x, 4 * batch_size)])


@torch.no_grad()
def _calibrate_coefficients(layer: GlobalLayer, x: Tensor) -> None:
    """Gives the norms of the coefficients the statistics of these maps."""
    norms = [m for part in (layer.velocity, layer.diffusion) for m in part.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.train()
        m.momentum = 1.0
    h, _ = layer.first_guess(x)
    layer.coefficients(h)
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
        m.eval()


@torch.no_grad()
def _regress_norm(layer: GlobalLayer, x: Tensor, y: Tensor, batch_size: int) -> None:
    """Sets the output norm to the statistics of h^K and the scale and shift that best give the target, per channel."""
    norm = layer.norm
    if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None or norm.running_var is None:
        return
    states = []
    with eval_mode(layer):
        for part in torch.split(x, 4 * batch_size):
            h, source = layer.first_guess(part)
            states.append(layer.solve(h, source, layer.coefficients(h)))
    h = torch.cat(states)
    target = y - x if layer.residual else y
    mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3), unbiased=False)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)
    centred = (h - mean[:, None, None]) / (var + norm.eps).sqrt()[:, None, None]
    norm.weight.copy_((centred * target).mean((0, 2, 3)) / centred.square().mean((0, 2, 3)).clamp_min(1e-12))
    norm.bias.copy_(target.mean((0, 2, 3)))


def _error(h: Tensor, y: Tensor) -> float:
    return float(nnf.mse_loss(h, y) / y.var().clamp_min(1e-12))
