"""Inner channels: those that one layer gives and only one other reads, such as the hidden ones of a residual block.

Fewer of them change nothing around. Which stay, and with which weights the reading layer makes do with them, is found
by least squares on a few images, without labels and without training: channels are taken out one after the other, each
time those whose loss the others can best make up for (He et al., 2017, with the elimination of Hassibi and Stork).
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from pdecnn.condensation.site import STRICT
from pdecnn.shared.extras import require
from pdecnn.shared.modules import eval_mode, listen
from pdecnn.shared.progress import ProgressCallback, begin
from pdecnn.shared.trees import arguments

ROUND = 8  # as many channels stay as are a multiple of it, where there are more
ROUNDS = 32  # of elimination, at the least one channel in each
ROWS = 20_000  # equations for a layer, if the images have as many pixels, and no fewer than 4 for each unknown
RIDGE = 1e-3  # how strongly weights are held to what they were, relative to the mean square of what is read


@dataclass(frozen=True)
class Inner:
    """Channels between two layers.

    Attributes:
        first: Path of the layer that gives them.
        between: Paths of batch norms and depth-wise convolutions on their way.
        last: Path of the layer that reads them.
        channels: How many there are.
        keep: How many stay.
    """

    __pydantic_config__ = STRICT

    first: str
    between: tuple[str, ...]
    last: str
    channels: int
    keep: int

    def check(self) -> "Inner":
        """Itself, or a ValueError."""
        if not 0 < self.keep <= self.channels:
            raise ValueError(f"inner: of {self.channels} channels before {self.last} {self.keep} cannot stay.")
        return self


def find_inner(model: nn.Module, inputs: tuple[Any, ...], share: float) -> tuple[Inner, ...]:
    """The inner channels of a model, in the order in which they are read; `share` of each stay.

    Args:
        model: It is not changed.
        inputs: Its arguments.
        share: Above 0 and at most 1; what stays is rounded down to a multiple of `ROUND`.

    Example:
        >>> import timm
        >>> found = find_inner(timm.create_model("cifar_resnet32"), (torch.zeros(1, 3, 32, 32),), 0.5)
        >>> found[0]
        Inner(first='stages.0.0.conv1', between=('stages.0.0.bn1',), last='stages.0.0.conv2', channels=16, keep=8)
    """
    tp = require("torch_pruning", "prune")
    model = copy.deepcopy(model)
    names = {module: name for name, module in model.named_modules()}
    readers: list[nn.Module] = []
    kinds = [m for m in names if isinstance(m, (nn.Linear, _ConvNd))]
    alone: set[nn.Module] = set()  # what gives one pixel: no few images say enough about its many weights

    def note(module: nn.Module, args: Any, kwargs: Any, out: Tensor) -> None:
        readers.append(module)
        if isinstance(module.weight, Tensor) and out[0].numel() == len(module.weight):
            alone.add(module)

    with eval_mode(model):
        with torch.no_grad(), listen(kinds, after=note):
            model(*inputs)
        for p in model.parameters():
            p.requires_grad_(p.is_floating_point())
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about parameters outside layers: only layers are cut here
            graph = tp.DependencyGraph().build_dependency(model, example_inputs=inputs)
    found = {}
    for first in kinds:
        if not _mixes(first) or readers.count(first) != 1:
            continue
        channels, given = first.weight.shape[:2]
        prune = tp.prune_linear_out_channels if isinstance(first, nn.Linear) else tp.prune_conv_out_channels
        last, between = _path_of(graph.get_pruning_group(first, prune, idxs=list(range(channels))), first, channels)
        if last is None or last in alone or readers.count(last) != 1:
            continue
        keep = min(channels, ROUND * max(1, int(share * channels / ROUND + 1e-9)))
        if keep < channels and channels >= min(given, last.weight.shape[0]):  # else it is a bottleneck already
            found[last] = Inner(names[first], tuple(names[m] for m in between), names[last], channels, keep)
    return tuple(found[m] for m in readers if m in found)


def _path_of(group: Any, first: nn.Module, channels: int) -> tuple[Any, list[nn.Module]]:
    """The layer that alone reads what `first` gives, and what is between; None if others do too."""
    between, last = [], []
    for dependency, idxs in group:
        module = dependency.target.module
        if module is first:
            continue
        plain = type(module).__module__.startswith("torch_pruning")  # an operation without weights
        if list(idxs) != list(range(channels)):
            return None, []
        if isinstance(module, _BatchNorm) or _depth_wise(module):
            between.append(module)
        elif isinstance(module, (nn.Linear, _ConvNd)) and _reads(module) and module.weight.shape[1] == channels:
            last.append(module)
        elif not plain:
            return None, []
    return (last[0], between) if len(last) == 1 else (None, [])


def _mixes(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (
        isinstance(module, _ConvNd) and module.groups == 1 and not module.transposed
    )


def _depth_wise(module: nn.Module) -> bool:
    return isinstance(module, _ConvNd) and 1 < module.groups == module.in_channels == module.out_channels


def _reads(module: nn.Module) -> bool:
    """Whether least squares for this layer are written down: what it computes is a product with patches."""
    if not _mixes(module) or isinstance(module, nn.Linear):
        return isinstance(module, nn.Linear)
    assert isinstance(module, _ConvNd)
    plain = type(module) is nn.Conv2d and isinstance(module.padding, tuple) and module.padding_mode == "zeros"
    return plain or (set(module.kernel_size) == {1} and set(module.padding) == {0})


def cut_inner(model: nn.Module, inner: Sequence[Inner]) -> nn.Module:
    """A copy with fewer inner channels: of each, those to which the reading layer gives the largest weights."""
    small = copy.deepcopy(model)
    for one in inner:
        weight = _known(small, one)
        norms = weight.detach().transpose(0, 1).flatten(1).norm(dim=1)
        _keep(small, one, norms.topk(one.keep).indices.sort().values)
    return small


def fit_inner(
    model: nn.Module, inner: Sequence[Inner], batches: Sequence[Any], *, progress: ProgressCallback | None = None
) -> nn.Module:
    """A copy with fewer inner channels, chosen and made up for by least squares on `batches`.

    From the first to the last: the reading layer learns to give, from the channels that stay and as the layers before
    were changed, what it gave in `model`.
    """
    small = copy.deepcopy(model)
    done = begin(progress, "solving for fewer inner channels", len(inner))
    wanted = _outputs(model, inner, batches)
    for index, one in enumerate(inner):
        _known(small, one)
        if one.keep < one.channels:
            (found,) = _solutions(small, one, index, batches, wanted[one.last], [one.keep])
            _put(small, one, found)
        del wanted[one.last]
        done()
    return small


def inner_errors(
    model: nn.Module,
    inner: Sequence[Inner],
    batches: Sequence[Any],
    keeps: Sequence[Sequence[int]],
    made: Sequence[Sequence[int]],
    *,
    progress: ProgressCallback | None = None,
) -> Iterator[tuple[list[float], list[nn.Module]]]:
    """For each place by itself: the squared error of the reading layer with each number of channels, and models.

    Args:
        model: The model before.
        inner: The places.
        batches: Images to solve on.
        keeps: Of each place, how many channels may stay; from the most to the fewest.
        made: Those of them for which a model is given, with so many channels there alone.
        progress: As in `plan`.
    """
    done = begin(progress, "solving for each place of inner channels", len(inner))
    wanted = _outputs(model, inner, batches)
    for index, (one, numbers, some) in enumerate(zip(inner, keeps, made, strict=True)):
        _known(model, one)
        found = dict(zip(numbers, _solutions(model, one, index, batches, wanted.pop(one.last), numbers), strict=True))
        models = []
        for number in some:
            models.append(copy.deepcopy(model))
            _put(models[-1], one, found[number])
        done()
        yield [solution.error for solution in found.values()], models


class Solution(NamedTuple):
    """Channels that stay, the weights for them, and by how much the squared error is larger than with all."""

    stay: Tensor
    weights: Tensor
    error: float


def _solutions(
    model: nn.Module, one: Inner, index: int, batches: Sequence[Any], wanted: Sequence[Tensor], keeps: Sequence[int]
) -> Iterator[Solution]:
    gram, mixed = _equations(model, one, index, batches, wanted)
    old = _known(model, one).detach().flatten(1).T.double()
    ridge = RIDGE * gram.diagonal().mean().clamp_min(1e-12)
    gram.diagonal().add_(ridge)
    return eliminate(gram, mixed + ridge * old, one.channels, keeps)


def _put(model: nn.Module, one: Inner, found: Solution) -> None:
    """Leaves the channels of a solution, with its weights, in place."""
    _keep(model, one, found.stay)
    with torch.no_grad():
        (left,) = (p for n, p in model.get_submodule(one.last).named_parameters() if n == "weight")
        left.copy_(found.weights.T.reshape(left.shape))


def eliminate(gram: Tensor, mixed: Tensor, channels: int, keeps: Sequence[int]) -> Iterator[Solution]:
    """The channels that stay, and the weights of least squares for them.

    Solves `gram @ weights = mixed`, then takes out channels until so many stay: in each round those with the smallest
    increase of the squared error, for which the weights of all others are corrected.

    Args:
        gram: Of what is read, `(channels * m, channels * m)`, m columns for each channel, side by side.
        mixed: Products of what is read and what is wanted, `(channels * m, outputs)`.
        channels: How many channels there are.
        keeps: How many stay: a solution for each, from the most to the fewest.
    """
    m = len(gram) // channels
    inverse = torch.linalg.inv(gram)
    weights = inverse @ mixed
    left = torch.arange(channels, device=gram.device)
    step = -(-(channels - keeps[-1]) // ROUNDS)
    error = 0.0
    for keep in keeps:
        while len(left) > keep:
            n = len(left)
            own = inverse.view(n, m, n, m).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
            part = weights.view(n, m, -1)
            losses = (part * torch.linalg.solve(own, part)).sum((1, 2))
            out = losses.topk(min(step, n - keep), largest=False).indices
            stays = torch.ones(n, dtype=torch.bool, device=gram.device)
            stays[out] = False
            rows, gone = (mask.repeat_interleave(m) for mask in (stays, ~stays))
            lost = torch.linalg.solve(inverse[gone][:, gone], torch.cat([inverse[gone][:, rows], weights[gone]], 1))
            across = lost[:, : int(rows.sum())].T
            error += float((weights[gone] * lost[:, int(rows.sum()) :]).sum())
            weights = weights[rows] - across @ weights[gone]
            inverse = inverse[rows][:, rows] - across @ inverse[gone][:, rows]
            left = left[stays]
        yield Solution(left, weights, error)


class _ReachedError(Exception):
    """What was to be seen has been seen."""


@torch.no_grad()
def _outputs(model: nn.Module, inner: Sequence[Inner], batches: Sequence[Any]) -> dict[str, list[Tensor]]:
    """What the reading layers give at some pixels of every batch, without their biases."""
    index = {model.get_submodule(one.last): i for i, one in enumerate(inner)}
    found: dict[str, list[Tensor]] = {one.last: [] for one in inner}

    def note(module: nn.Module, args: Any, kwargs: Any, out: Tensor) -> None:
        maps = out if isinstance(module, nn.Linear) else out.movedim(1, -1)
        rows = (maps - module.bias if isinstance(module.bias, Tensor) else maps).flatten(1, -2)
        one = inner[index[module]]
        rows = rows[:, _pixels(module, rows.shape[:2], len(batches), index[module], len(found[one.last]))]
        found[one.last].append(rows.flatten(0, 1))

    with eval_mode(model), listen(index, after=note):
        for x in batches:
            model(*arguments(model, x))
    return found


@torch.no_grad()
def _equations(
    model: nn.Module, one: Inner, index: int, batches: Sequence[Any], wanted: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The normal equations of a reading layer, from the same pixels."""
    layer = model.get_submodule(one.last)
    size = layer.weight[0].numel()  # type: ignore[index, union-attr]
    gram = mixed = None

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(args[0])
        raise _ReachedError

    for i, x in enumerate(batches):
        seen: list[Tensor] = []
        with eval_mode(model), listen([layer], before=note), suppress(_ReachedError):
            model(*arguments(model, x))
        patches = _patches(layer, seen[0])
        pick = _pixels(layer, patches.shape[:2], len(batches), index, i)
        z = patches[:, pick].reshape(-1, size).double()
        y = wanted[i].double()
        gram = z.T @ z if gram is None else gram + z.T @ z
        mixed = z.T @ y if mixed is None else mixed + z.T @ y
    assert gram is not None
    assert mixed is not None
    return gram, mixed


def _patches(layer: nn.Module, x: Tensor) -> Tensor:
    """`(images, pixels of the output, columns)`."""
    if isinstance(layer, nn.Linear):
        return x.flatten(1, -2)
    assert isinstance(layer, _ConvNd)
    if set(layer.kernel_size) == {1} and set(layer.padding) == {0}:
        seen = tuple(slice(None, None, stride) for stride in (1, 1, *layer.stride))
        return x[seen].flatten(2).transpose(1, 2)
    sizes: Any = (layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return nnf.unfold(x, *sizes).transpose(1, 2)


def _pixels(layer: nn.Module, shape: Sequence[int], batches: int, index: int, batch: int) -> Tensor:
    """Which pixels of a batch are looked at: no more than the equations need."""
    images, pixels = shape
    rows = max(ROWS, 4 * layer.weight[0].numel())  # type: ignore[index, union-attr]
    g = torch.Generator().manual_seed(7919 * index + batch)
    return torch.randperm(pixels, generator=g)[: -(-rows // (images * batches))]


def _known(model: nn.Module, one: Inner) -> Tensor:
    """The weight of the reading layer; a ValueError if the model is another one."""
    names = (one.first, *one.between, one.last)
    modules = dict(model.named_modules())
    missing = [name for name in names if name not in modules]
    weight = getattr(modules.get(one.last), "weight", None)
    if missing or not isinstance(weight, Tensor) or weight.ndim < 2 or weight.shape[1] != one.channels:
        what = f"no module {missing[0]!r}" if missing else f"other than {one.channels} channels before {one.last!r}"
        raise ValueError(
            f"Plan.apply: {type(model).__name__} has {what}. The plan was made for another model; make a new one with "
            "pdecnn.plan."
        )
    return weight


def _keep(model: nn.Module, one: Inner, stay: Tensor) -> None:
    """Leaves the channels `stay` of the inner ones, in place."""
    _take(model.get_submodule(one.first), ("weight", "bias"), 0, stay)
    for path in one.between:
        _take(model.get_submodule(path), ("weight", "bias", "running_mean", "running_var"), 0, stay)
    _take(model.get_submodule(one.last), ("weight",), 1, stay)


def _take(module: nn.Module, names: Sequence[str], dim: int, stay: Tensor) -> None:
    for name in names:
        old = getattr(module, name, None)
        if isinstance(old, Tensor):
            new = old.detach().index_select(dim, stay.to(old.device)).clone()
            learnt = isinstance(old, nn.Parameter)
            setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad) if learnt else new)
    n = len(stay)
    if isinstance(module, _BatchNorm):
        module.num_features = n
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _ConvNd):
        if _depth_wise(module):
            module.in_channels = module.out_channels = module.groups = n
        else:
            module.out_channels, module.in_channels = module.weight.shape[:2]
