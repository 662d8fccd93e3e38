"""How much each choice at each site changes the answers, found from images alone, before anything is trained.

One run at a time is changed. Its new layer is fitted to the teacher's feature maps, the batch norms after it get the
statistics of their new inputs, and the harm is the distance of the answers to the teacher's on held-out images. What
the runs before it give is the same every time, so it is remembered.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.condensation.apply import site_modules
from pdecnn.condensation.fit import answer_distance, channels_first, collect, fit_layer, recalibrate
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.replacements import NOTHING, chosen
from pdecnn.condensation.site import Run
from pdecnn.shared.modules import eval_mode, listen, replace
from pdecnn.shared.progress import ProgressCallback, begin
from pdecnn.shared.trees import arguments

STEPS = 20  # of the optimiser, for each layer that is tried

Harms = dict[str, dict[str, list[float]]]
"""By run and replacement: the harm with `keep` blocks, from the fewest to all but one."""


def measure_harms(
    plan: Plan,
    model: nn.Module,
    inputs: Sequence[Any],
    held: Any,
    replacements: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Harms:
    """The harm of every choice, as the Kullback-Leibler divergence of the answers (or their relative square).

    `nothing` is measured with every number of blocks; the others with the fewest, and taken to help in the same
    proportion where more blocks stay.

    Args:
        plan: Its runs are the sites, their `keep` the fewest blocks that may stay.
        model: The model before.
        inputs: Batches of images to fit on.
        held: A batch to measure on.
        replacements: Names of the table in `replacements.py`; of all runs, or of each by its path.
        seed: Seed of the layers' start and of the order of the images.
        progress: As in `plan`.
    """
    given = replacements if isinstance(replacements, Mapping) else {run.path: replacements for run in plan.runs}
    others = {path: [name for name in names if name != NOTHING] for path, names in given.items()}
    total = sum(_most(run) - run.keep + 1 + len(others[run.path]) for run in plan.runs)
    done = begin(progress, "measuring what each choice harms", total)
    with torch.no_grad(), eval_mode(model):
        wanted = model(*arguments(model, held))
    remembered = _Remembered(plan, model, [*inputs, held])

    def harm(run: Run, maps: "_Maps") -> float:
        torch.manual_seed(seed)
        student = remembered.shorten(dataclasses.replace(plan, runs=(run,)).apply(model), run)
        maps.fit(student, run, seed)
        recalibrate(student, run.site, remembered.told(inputs)) if run.site else None
        (x,) = remembered.told([held], len(inputs))
        with torch.no_grad(), eval_mode(student):
            found = answer_distance(student(*arguments(student, x)), wanted)
        done()
        return found

    found: Harms = {}
    for run in plan.runs:
        maps = _Maps(model, inputs, remembered)
        bare = [harm(chosen(run, NOTHING, keep=keep), maps) for keep in range(run.keep, _most(run) + 1)]
        found[run.path] = {NOTHING: bare}
        for name in others[run.path]:
            share = min(1.0, harm(chosen(run, name), maps) / max(bare[0], 1e-12))
            found[run.path][name] = [share * value for value in bare]
    return found


def _most(run: Run) -> int:
    """The most blocks that may stay if something is to be condensed."""
    return len(run.units) - 1


class _Maps:
    """The feature maps before and after the blocks of a run, found once for all that may replace them: what comes to a
    new layer is what came to the blocks."""

    def __init__(self, model: nn.Module, inputs: Sequence[Any], remembered: "_Remembered") -> None:
        self.model, self.inputs, self.remembered = model, inputs, remembered
        self.found: tuple[Tensor, Tensor] | None = None

    def fit(self, student: nn.Module, run: Run, seed: int) -> None:
        """Fits the layer of the one run that was changed."""
        layer: Mapping[str, nn.Module] = site_modules(student, [run])
        if run.replacement == NOTHING or run.site not in layer:
            return
        if self.found is None:
            target = (run.transition or "") if run.is_dense else run.site
            wanted, _ = collect(self.model, [target], self.inputs, outputs=True)
            given, _ = collect(student, [run.site], self.remembered.told(self.inputs), outputs=False)
            self.found = channels_first(given[run.site], run), channels_first(wanted[target], run)
        x, y = self.found
        fit_layer(layer[run.site], x, y, site=run.site, steps=STEPS, lr=1e-2, batch_size=64, seed=seed)


class _Given(nn.Module):
    """Gives a map that is known, whatever comes in."""

    def __init__(self, remembered: "_Remembered", site: str) -> None:
        super().__init__()
        self.remembered, self.site = remembered, site

    def forward(self, x: Tensor) -> Tensor:
        """The map of the batch at hand; a copy, for the next block may work in place."""
        return self.remembered.maps[self.site][self.remembered.batch].clone()


class _Remembered:
    """What left the runs of the model, batch by batch, so that those before a change need not be computed again.

    Args:
        plan: Its runs; those of dense blocks are computed.
        model: The model before.
        inputs: All batches.
    """

    def __init__(self, plan: Plan, model: nn.Module, inputs: Sequence[Any]) -> None:
        self.batch = 0
        self.runs = {run.site: run for run in plan.runs if not run.is_dense}
        self.names = [name for name, _ in model.named_modules()]
        self.maps: dict[str, list[Tensor]] = {}  # in the order of the calls
        sites = {model.get_submodule(site): site for site in self.runs}

        def keep(module: nn.Module, args: Any, kwargs: Any, out: Tensor) -> None:
            self.maps.setdefault(sites[module], []).append(out.detach().clone())

        with torch.no_grad(), eval_mode(model), listen(sites, after=keep):
            for x in inputs:
                model(*arguments(model, x))

    def told(self, inputs: Sequence[Any], first: int = 0) -> Iterator[Any]:
        """The batches, the first of them being number `first`."""
        for self.batch, x in enumerate(inputs, first):
            yield x

    def shorten(self, student: nn.Module, changed: Run) -> nn.Module:
        """The student, in place, with what is known in the place of all runs that are computed before the changed."""
        order = list(self.maps)
        if changed.site not in order:
            return student
        here = self.names.index(changed.site)
        new: dict[nn.Module, nn.Module] = {}
        for site in order[: order.index(changed.site)]:
            if self.names.index(site) < here:  # the norms of others are given new statistics
                new |= {student.get_submodule(path): nn.Identity() for path in self.runs[site].members()}
                new[student.get_submodule(site)] = _Given(self, site)
        replace(student, lambda module: new.get(module, module))
        return student
