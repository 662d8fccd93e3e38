"""Start each new layer close to the blocks it replaces, from feature maps alone: no labels, no end-to-end training.

Teacher and student are run on a few batches. Each new layer, from the first to the last, learns to map what the student
gives it to what leaves the blocks in the teacher: its last linear part by regression, then all its parameters by a
hundred small steps. Then the batch norms after it get the statistics of their new inputs. Before all that, what has
fewer inner channels is solved for (see `inner.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from pdecnn.condensation.apply import NEW, site_modules
from pdecnn.condensation.inner import fit_inner
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.replacements import Correction
from pdecnn.condensation.site import Run
from pdecnn.layers.global_layer_nd import GLOBAL_LAYERS, AnyGlobalLayer
from pdecnn.shared.modules import eval_mode, listen, with_momentum
from pdecnn.shared.progress import ProgressCallback
from pdecnn.shared.trees import arguments, count, named_tensors, ordered, part, takes_images
from pdecnn.training.batches import as_batch

State = dict[str, Tensor]


@dataclass(frozen=True)
class Fitted:
    """How well the layer at `site` maps what the removed blocks are given to what they give.

    The errors are mean squares relative to the variance of the target: 0 is perfect, 1 as good as a constant.
    They are measured on held-out images. `skipped` is that of the identity, that is, of leaving the blocks out; `kept`
    is false if the model answered better, on held-out images, before this layer was fitted, and was left so.
    """

    site: str
    skipped: float
    before: float
    after: float
    kept: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.site}: unexplained variance {self.before:.3f} -> {self.after:.3f} "
            f"(blocks left out: {self.skipped:.3f})" + ("" if self.kept else "; undone, as it did not help")
        )


def fit_layers(
    student: nn.Module,
    teacher: nn.Module,
    plan: Plan,
    data: Iterable[Any],
    *,
    batches: int = 4,
    steps: int = 100,
    lr: float = 1e-2,
    batch_size: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    solving: ProgressCallback | None = None,
) -> list[Fitted]:
    """Fits the new layers of `student` in place and says how well it went.

    One batch more than `batches` is read and held out. A layer after whose fit the student's answers on it are further
    from the teacher's than they were before is put back.

    Args:
        student: What `plan.apply(teacher)` gave.
        teacher: The model before; it is not changed.
        plan: The plan.
        data: Batches of inputs, one batch as a Tensor, or pairs of inputs and labels; labels are not read. Inputs are
            tensors, or what `pdecnn.distill` takes.
        batches: How many of them are used.
        steps: Steps of the optimiser for each layer; 0 leaves it at the regression of the norm.
        lr: Learning rate.
        batch_size: Maps per step.
        seed: Seed of the order.
        progress: Called with a line about each layer.
        solving: Told of each place with fewer inner channels, as `progress` of `plan`.
    """
    runs = {run.site: run for run in plan.runs}
    layers = {s: m for s, m in site_modules(student, plan.runs).items() if hasattr(m, NEW)}
    batches_of = [data] if isinstance(data, Tensor) else data
    read = zip(range(batches + 1), batches_of, strict=False)
    inputs, held = hold_out([ordered(as_batch(b)[0]) for _, b in read], teacher)
    blocks = plan.prune(teacher)
    if blocks is not teacher:  # what is left of the blocks, and of the student around them, meets other inputs
        recalibrate(blocks, "", inputs)
        recalibrate(student, "", inputs)
    if plan.inner:
        _take_over(student, fit_inner(blocks, plan.inner, inputs, progress=solving))
    # the new layer of a dense run is the last part of the transition, so that its target is what leaves that
    sources = {site: (runs[site].transition or "") if runs[site].is_dense else site for site in layers}
    targets, _ = collect(blocks, sources.values(), [*inputs, held], outputs=True)
    fitted = []
    for site, layer in layers.items():
        given, maps = collect(student, [site], [*inputs, held], outputs=False)
        x = channels_first(given[site], runs[site])
        y = channels_first(targets[sources[site]], runs[site])
        n = sum(maps[site][:-1])
        unseen = (x[n:], y[n:])
        start, norms = _state(student), _statistics(student)
        found = fit_layer(layer, x[:n], y[:n], unseen, site=site, steps=steps, lr=lr, batch_size=batch_size, seed=seed)
        recalibrate(student, site, inputs)
        fitted.append(replace(found, kept=_keep_best(student, teacher, held, start, norms)))
        if progress:
            progress(str(fitted[-1]))
    return fitted


def _take_over(student: nn.Module, solved: nn.Module) -> None:
    """Gives the student the weights of what it has of a narrower model; its new layers keep theirs."""
    new = tuple(f"{name}." for name, m in student.named_modules() if hasattr(m, NEW))
    known = {name: value for name, value in solved.state_dict().items() if not name.startswith(new)}
    mine = student.state_dict()
    student.load_state_dict({n: v for n, v in known.items() if n in mine and mine[n].shape == v.shape}, strict=False)


def hold_out(batches: list[Any], model: nn.Module) -> tuple[list[Any], Any]:
    """All batches but the last, and the last; a single batch gives a quarter of itself."""
    if not batches:
        raise ValueError("fit_layers: data gave no batch.")
    if len(batches) > 1:
        return batches[:-1], batches[-1]
    x, images = batches[0], takes_images(model, batches[0])
    n = count(x, images)
    if n < 2:
        return batches, x
    first = n - max(1, n // 4)
    return [part(x, slice(first), images)], part(x, slice(first, None), images)


def _keep_best(student: nn.Module, teacher: nn.Module, held: Any, start: State, norms: State) -> bool:
    """Keeps the state whose answers are nearest to the teacher's: the fitted one, with the statistics of the batch
    norms found anew or as they were, or the first; tells whether it is a fitted one."""
    fitted = _state(student)
    with torch.no_grad(), eval_mode(teacher):
        wanted = teacher(*arguments(teacher, held))
    distances = []
    for state in (fitted, {**fitted, **norms}, start):
        student.load_state_dict(state)
        with torch.no_grad(), eval_mode(student):
            distances.append(answer_distance(student(*arguments(student, held)), wanted))
    best = min(range(3), key=lambda i: distances[i])
    student.load_state_dict((fitted, {**fitted, **norms}, start)[best])
    return best < 2


def answer_distance(out: Any, wanted: Any) -> float:
    """KL divergence of logits; of other answers the mean square of all tensors whose shapes agree."""
    if isinstance(wanted, Tensor) and wanted.ndim == 2:
        p, q = nnf.log_softmax(wanted, dim=1), nnf.log_softmax(out, dim=1)
        found = float(nnf.kl_div(q, p, reduction="batchmean", log_target=True))
    else:
        theirs, mine = named_tensors(wanted), named_tensors(out)
        same = [n for n, q in theirs.items() if q.is_floating_point() and n in mine and mine[n].shape == q.shape]
        found = sum(_error(mine[n], theirs[n]) for n in same)
    return found if found == found else float("inf")


def _state(model: nn.Module) -> State:
    return {key: value.clone() for key, value in model.state_dict().items()}


def _statistics(model: nn.Module) -> State:
    """The running statistics of the batch norms outside new layers."""
    inside = [name for name, m in model.named_modules() if getattr(m, NEW, False)]
    return {
        key: value
        for key, value in _state(model).items()
        if key.endswith(("running_mean", "running_var")) and not any(key.startswith(f"{name}.") for name in inside)
    }


@torch.no_grad()
def collect(
    model: nn.Module, paths: Iterable[str], inputs: Iterable[Any], *, outputs: bool
) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """What the modules are given, or with `outputs` what they give, in eval mode, and how many maps of each input."""
    modules = {path: model.get_submodule(path) for path in paths}
    stores: dict[nn.Module, list[Tensor]] = {module: [] for module in modules.values()}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> None:
        stores[module].append(args[0].detach().clone())  # blocks may work in place

    def after(module: nn.Module, args: Any, kwargs: Any, out: Tensor) -> None:
        stores[module].append(out.detach().clone())

    with eval_mode(model), listen(stores, after=after) if outputs else listen(stores, before=before):
        for x in inputs:
            model(*arguments(model, x))
    counts = {path: [len(maps) for maps in stores[module]] for path, module in modules.items()}
    return {path: _cat(stores[module]) for path, module in modules.items()}, counts


def _cat(maps: list[Tensor]) -> Tensor:
    """The maps of all batches; where images differ in size, the corner that all of them have."""
    sizes = (min(n) for n in zip(*(q.shape[1:] for q in maps), strict=True))
    corner = (slice(None), *map(slice, sizes))
    return torch.cat([q[corner] for q in maps])


@torch.no_grad()
def recalibrate(model: nn.Module, site: str, inputs: Iterable[Any]) -> None:
    """Gives the batch norms after `site` the statistics of their inputs now; new layers keep theirs."""
    modules = list(model.named_modules())
    first = [name for name, _ in modules].index(site)
    inside = {m for _, layer in modules if getattr(layer, NEW, False) for m in layer.modules()}
    after = [m for _, m in modules[first:] if isinstance(m, _BatchNorm) and m not in inside]
    norms = [m for m in after if m.track_running_stats]
    with eval_mode(model), with_momentum(norms, None):
        for m in norms:
            m.reset_running_stats()
            m.train()
        for x in inputs:
            model(*arguments(model, x))


def channels_first(maps: Tensor, run: Run) -> Tensor:
    """The maps of a run as `(N, C, ...)`."""
    return maps.movedim(-1, 1).contiguous() if run.channels_last else maps


def fit_layer(
    layer: nn.Module,
    x: Tensor,
    y: Tensor,
    held: tuple[Tensor, Tensor] | None = None,
    *,
    site: str = "",
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
) -> Fitted:
    """Fits one layer to map `x` to `y`; the state with the smallest error on the `held` maps is kept, if any."""
    was_training = layer.training
    x_held, y_held = held or (x, y)
    first, error = _state(layer), _error(_run(layer, x_held, batch_size), y_held)
    frozen = {id(p) for p in layer.init.parameters()} if isinstance(layer, GLOBAL_LAYERS) else set()
    parameters = [p for p in layer.parameters() if id(p) not in frozen]
    skipped = _error(x_held, y_held)
    if not parameters:
        return Fitted(site, skipped, error, error)
    _calibrate(layer, x[: 4 * batch_size])
    before = _error(_run(layer, x_held, batch_size), y_held)
    if isinstance(layer, GLOBAL_LAYERS):
        _regress_norm(layer, x, y, batch_size)
    elif isinstance(layer, Correction):
        _regress_branch(layer, x, y, batch_size)
    best, state = _error(_run(layer, x_held, batch_size), y_held), _state(layer)
    if not best <= error:
        best, state = error, first
    optimizer = torch.optim.Adam(parameters, lr=lr)
    total = max(steps, 6)  # a fifth of 5 is one step, and the schedule divides by one less
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=total, pct_start=0.2)
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
    after = _error(_run(layer, x_held, batch_size), y_held)
    if not after <= best:
        layer.load_state_dict(state)
        after = best
    layer.zero_grad(set_to_none=True)
    layer.train(was_training)
    return Fitted(site, skipped, before, after)


@torch.no_grad()
def _run(layer: nn.Module, x: Tensor, batch_size: int) -> Tensor:
    with eval_mode(layer):
        return torch.cat([layer(maps) for maps in torch.split(x, 4 * batch_size)])


@torch.no_grad()
def _calibrate(layer: nn.Module, x: Tensor) -> None:
    """Gives the norms inside the layer, of a Global layer those of its coefficients, the statistics of these maps."""
    parts = (layer.velocity, layer.diffusion) if isinstance(layer, GLOBAL_LAYERS) else (layer,)
    norms = [m for part in parts for m in part.modules() if isinstance(m, _BatchNorm)]
    with eval_mode(layer), with_momentum(norms, 1.0):  # the norms of a first guess keep what they know
        for m in norms:
            m.train()
        if isinstance(layer, GLOBAL_LAYERS):
            layer.coefficients(layer.first_guess(x)[0])
        else:
            layer(x)


@torch.no_grad()
def _regress_norm(layer: AnyGlobalLayer, x: Tensor, y: Tensor, batch_size: int) -> None:
    """Sets the output norm to the statistics of h^K and the scale and shift that best give the target, per channel."""
    norm = layer.norm
    if not isinstance(norm, _BatchNorm) or norm.running_mean is None or norm.running_var is None:
        return
    states = []
    with eval_mode(layer):
        for maps in torch.split(x, 4 * batch_size):
            h, source = layer.first_guess(maps)
            states.append(layer.solve(h, source, layer.coefficients(h)))  # type: ignore[arg-type]
    h = torch.cat(states)
    target = y - x if layer.residual else y
    dims = (0, *range(2, h.ndim))
    mean, var = h.mean(dims), h.var(dims, unbiased=False)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)
    each = (-1, *[1] * (h.ndim - 2))
    centred = (h - mean.view(each)) / (var + norm.eps).sqrt().view(each)
    norm.weight.copy_((centred * target).mean(dims) / centred.square().mean(dims).clamp_min(1e-12))
    norm.bias.copy_(target.mean(dims))


@torch.no_grad()
def _regress_branch(layer: Correction, x: Tensor, y: Tensor, batch_size: int) -> None:
    """Lets the branch give, as well as it linearly can, what is to be added: `y - x`.

    A branch that ends in a mixing of channels gets the mixing of least squares; any other one, a factor per channel.
    """
    last = layer.branch[-1] if isinstance(layer.branch, nn.Sequential) else None
    mixing = last if isinstance(last, _ConvNd) and last.groups == 1 and set(last.kernel_size) == {1} else None
    inner = layer.branch if mixing is None else layer.branch[:-1]  # type: ignore[index]
    with eval_mode(layer):
        z = _rows(torch.cat([inner(maps) for maps in torch.split(x, 4 * batch_size)]))
    target = _rows(y - x)
    mean, wanted = z.mean(0), target.mean(0)
    z, target = z - mean, target - wanted
    if mixing is not None:
        gram = z.T @ z
        ridge = 1e-3 * gram.diagonal().mean().clamp_min(1e-12) * torch.eye(len(gram), dtype=gram.dtype)
        weights = torch.linalg.solve(gram + ridge.to(gram.device), z.T @ target)
        mixing.weight.copy_(weights.T.reshape(mixing.weight.shape))
        mean, z = mean @ weights, z @ weights
        factor = torch.ones_like(mean)
    else:
        factor = (z * target).mean(0) / z.square().mean(0).clamp_min(1e-12)
    norm, var = layer.norm, z.square().mean(0)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)
    norm.weight.copy_(factor * (var + norm.eps).sqrt())
    norm.bias.copy_(wanted)


def _rows(maps: Tensor) -> Tensor:
    """`(N, C, ...) -> (pixels, C)`, in double precision."""
    return maps.movedim(1, -1).flatten(0, -2).double()


def _error(h: Tensor, y: Tensor) -> float:
    return float(nnf.mse_loss(h, y) / y.var().clamp_min(1e-12))
