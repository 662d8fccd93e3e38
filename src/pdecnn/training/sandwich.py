"""One net for every K: each step of training has the largest K, the smallest, and one between.

The largest learns as a net of one K does. The others learn to answer as it does on the same batch: the sandwich rule of
universally slimmable networks (Yu and Huang, 2019).
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.layers.steps import find_statistics, serve_steps, with_steps
from pdecnn.shared.modules import listen
from pdecnn.shared.trees import count, is_images, map_tensors, takes_targets
from pdecnn.training.imitation import difference
from pdecnn.training.loaders import Loaders
from pdecnn.training.objective import Objective
from pdecnn.training.recipe import Recipe
from pdecnn.training.seeding import generator, seed_everything

IMAGES = 1024  # of the training set, on which the statistics of each K are found


class Sandwich:
    """The passes of a step, each of which is to be followed by its backward pass; gradients add up.

    Args:
        model: Gets, in place, statistics for each K.
        recipe: Its `steps`, and the seed of the K between.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        assert recipe.steps is not None
        if takes_targets(model):
            raise ValueError(
                f"steps: {type(model).__name__} gives losses in training, not answers that a smaller K could learn; "
                "train it for one K, with set_steps."
            )
        self.least, self.most, self.seed = recipe.steps.least, recipe.steps.most, recipe.seed
        self.temperature = 1.0 if recipe.distill is None else recipe.distill.temperature
        self.model = serve_steps(model, self.least, self.most)

    def draw(self, step: int) -> list[int]:
        """The K of a step, the largest first: a function of the seed and the step."""
        between = range(self.least + 1, self.most)
        if not between:
            return [self.most, self.least]
        i = torch.randint(len(between), (), generator=generator(self.seed, "K", step))
        return [self.most, between[int(i)], self.least]

    def losses(
        self, objective: Objective, forward: nn.Module, x: Any, y: Any, step: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The loss and the logits, if any, of each K; those of the largest are the objective's."""
        seen: list[tuple[Any, Any]] = []

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            seen.append((args, map_tensors(output, Tensor.detach)))  # mixed images, if the objective mixes

        largest, *others = self.draw(step)
        with with_steps(self.model, largest):
            with listen([forward], after=after):
                found = objective(forward, x, y)
            yield found
        args, wanted = seen[0]
        for K in others:
            with with_steps(self.model, K):
                yield difference(forward(*args), wanted, self.temperature), None

    def find_statistics(self, model: nn.Module, loaders: Loaders) -> None:
        """Finds the statistics of every K of the model on training images, as they come in the first epoch."""
        seed_everything(self.seed, "statistics")
        find_statistics(model, _some(x for x, _ in loaders.train.batches(0)))


def _some(inputs: Iterable[Any]) -> Iterator[Any]:
    """The first batches, with at least `IMAGES` in all if there are as many."""
    seen = 0
    for x in inputs:
        yield x
        seen += count(x, is_images(x))
        if seen >= IMAGES:
            return
