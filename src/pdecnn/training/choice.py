"""How a run computes: its memory format, its depth-wise kernel, its compiler.

None of these changes what is learned, but all change the time, and the last bits. What a recipe leaves to `auto` is
timed on copies of the model before the first step; the recipe that the run folder keeps names the outcome, so that a
resumed run, and a new one by that file, take the same path.
"""

import copy
import itertools
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pdecnn.layers.depthwise import depthwise_convs, use_native
from pdecnn.shared.modules import tensors_in
from pdecnn.shared.trees import LARGE, takes_targets
from pdecnn.training.recipe import Recipe

log = logging.getLogger(__name__)

FIELDS = ("channels_last", "depthwise", "compile")
LEAST_STEPS = 500  # of a run that is worth a measurement, which takes some ten of them
ROUNDS = 3
GAIN = 0.95  # part of the usual way's time below which another is taken


class Way(NamedTuple):
    """One way to compute a step."""

    channels_last: bool
    depthwise: str
    compile: bool

    def __str__(self) -> str:
        parts = ["channels_last" if self.channels_last else "contiguous"]
        parts += ["our depth-wise kernel"] if self.depthwise == "native" else []
        return " + ".join([*parts, *(["compiled"] if self.compile else [])])

    def apply(self, model: nn.Module) -> nn.Module:
        """Changes the model in place, and returns what is to be called."""
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.depthwise == "native":
            use_native(model)
        return torch.compile(model) if self.compile else model  # type: ignore[return-value]

    def ordered(self, x: Tensor) -> Tensor:
        """The input in this memory format."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.ndim == 4 else x


def way_of(recipe: Recipe) -> Way:
    """The way that a settled recipe names."""
    assert "auto" not in (recipe.channels_last, recipe.depthwise, recipe.compile)
    return Way(recipe.channels_last is True, recipe.depthwise, recipe.compile is True)


def settle(
    recipe: Recipe,
    model: nn.Module,
    shape: Sequence[int],
    steps: int,
    *,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    say: Callable[[str], None] = lambda text: None,
) -> Recipe:
    """The recipe with nothing left to `auto`.

    Args:
        recipe: The settings of a run that starts.
        model: What is to be trained; it is copied, not changed.
        shape: Of an image, `(C, H, W)`. Models of other inputs are not timed.
        steps: Of the whole run; short ones take the usual way.
        autocast: Makes the context of a forward pass.
        say: Told, in a line, what was measured.
    """
    recipe = sound(recipe, model, say)
    if all(getattr(recipe, name) != "auto" for name in FIELDS):
        return recipe
    usual = usual_way(recipe, shape)
    ways = [usual, *(way for way in _ways(recipe, model) if way != usual)]
    chosen = usual
    if len(ways) > 1 and steps >= LEAST_STEPS and len(shape) == 3 and _is_measured(model):
        x = torch.rand(recipe.data.batch_size, *shape, generator=torch.Generator().manual_seed(0))
        seconds = measure(model, x, ways, autocast=autocast, onednn=recipe.onednn)
        if seconds:
            fastest = min(seconds, key=lambda way: seconds[way])
            chosen = fastest if seconds[fastest] < GAIN * seconds.get(usual, float("inf")) else usual
            times = ", ".join(f"{way} {1e3 * value:.0f} ms" for way, value in seconds.items())
            say(f"computes in {chosen} (a step forward and back: {times})")
    return recipe.model_copy(update=chosen._asdict())


def sound(recipe: Recipe, model: nn.Module, say: Callable[[str], None] = lambda text: None) -> Recipe:
    """The recipe without channels_last where that would give wrong gradients, and uncompiled where that cannot be."""
    if recipe.compile is not False and recipe.distill is not None and recipe.distill.features:
        if recipe.compile is True:
            say("computes uncompiled: feature maps are read inside the network")
        recipe = recipe.model_copy(update={"compile": False})
    if recipe.channels_last is False or not recipe.onednn or (name := overrun(model)) is None:
        return recipe
    if recipe.channels_last is True:
        say(f"computes in contiguous: in channels_last oneDNN's gradient of {name}.weight would be wrong")
    return recipe.model_copy(update={"channels_last": False})


def overrun(model: nn.Module) -> str | None:
    """The first convolution whose weight gradient must not be computed in channels_last on a CPU, or None.

    Where a 1x1 convolution has a stride and fewer channels than a vector has lanes, oneDNN writes beyond its memory
    (its issue 6035): the gradient is wrong, or the process dies.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and max(module.stride) > 1:
            lanes = 16  # of AVX-512
            if module.in_channels // module.groups < lanes and module.weight.device.type == "cpu":
                return str(name)
    return None


def usual_way(recipe: Recipe, shape: Sequence[int]) -> Way:
    """The way where nothing is measured: channels_last for images of 64 x 64 pixels or more, torch's kernels."""
    large = len(shape) == 3 and shape[1] * shape[2] >= LARGE
    given = Way(recipe.channels_last is True, recipe.depthwise, recipe.compile is True)
    return given._replace(
        channels_last=large if recipe.channels_last == "auto" else given.channels_last,
        depthwise="torch" if recipe.depthwise == "auto" else given.depthwise,
    )


def _ways(recipe: Recipe, model: nn.Module) -> list[Way]:
    """All ways that the recipe leaves open; our depth-wise kernel has planes, so it is tried on these alone."""
    formats = [False, True] if recipe.channels_last == "auto" else [recipe.channels_last is True]
    kernels = [recipe.depthwise]
    if recipe.depthwise == "auto":
        kernels = ["torch", "native"] if next(depthwise_convs(model), None) is not None else ["torch"]
    compiled = [False, True] if recipe.compile == "auto" else [recipe.compile is True]
    ways = itertools.starmap(Way, itertools.product(formats, kernels, compiled))
    return [way for way in ways if not (way.channels_last and way.depthwise == "native" and len(formats) > 1)]


def _is_measured(model: nn.Module) -> bool:
    """Whether the model answers images, on the CPU."""
    parameters = list(model.parameters())
    return bool(parameters) and parameters[0].device.type == "cpu" and not takes_targets(model)


def measure(
    model: nn.Module,
    x: Tensor,
    ways: Sequence[Way],
    *,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    onednn: bool = True,
) -> dict[Way, float]:
    """Seconds of a pass forward and back by each way, medians of interleaved rounds; without those that fail."""
    calls: dict[Way, Callable[[], None]] = {}
    seconds: dict[Way, list[float]] = {}
    convolutions = nullcontext() if onednn else torch.backends.mkldnn.flags(enabled=False)
    with torch.random.fork_rng(devices=[]), convolutions:
        for way in ways:
            try:
                calls[way] = _pass(model, way, x, autocast)
                calls[way]()  # takes memory, and compiles
                seconds[way] = []
            except Exception as error:  # a model that cannot be copied, no C++ compiler, an input of another kind
                log.info("%s was not measured: %s", way, error)
        for _ in range(ROUNDS):
            for way, times in seconds.items():
                began = time.perf_counter()
                calls[way]()
                times.append(time.perf_counter() - began)
    return {way: statistics.median(times) for way, times in seconds.items()}


def _pass(
    model: nn.Module, way: Way, x: Tensor, autocast: Callable[[], AbstractContextManager[None]]
) -> Callable[[], None]:
    """A pass of a copy of the model."""
    twin = copy.deepcopy(model).train()
    forward, x = way.apply(twin), way.ordered(x)

    def run() -> None:
        with autocast():
            answers = [q for q in tensors_in(forward(x)) if q.is_floating_point()]
            loss = torch.stack([q.float().square().mean() for q in answers]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        twin.zero_grad()

    return run
