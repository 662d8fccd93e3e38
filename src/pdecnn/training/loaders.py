"""From a dataset and a recipe to the batches of a run."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from pdecnn.training.augment import Augment
from pdecnn.training.data import Batch, Dataset, EvalLoader, TrainLoader
from pdecnn.training.recipe import Recipe


class Batches(Protocol):
    """Training batches that can be entered at any epoch and position."""

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from position `start` on."""
        ...


@dataclass(frozen=True)
class Loaders:
    """What the loop needs to know about data; `input` is kept in the checkpoint for later users of the model.

    Attributes:
        train: The training batches.
        evaluation: Batches that are not trained on, which can be read again and again; None for no evaluation.
        classes: Names of the classes.
        input: Shape and normalisation of the images.
        plain: Training batches without augmentation, for statistics.
        labelled: Whether the labels are known; else they are -1 and a teacher's answers take their place.
        note: Something the user should know, such as how the images were split.
        name: Of the dataset, or of the folder of images, for a model's card; "" if it is not known.
    """

    train: Batches
    evaluation: Iterable[tuple[Tensor, Tensor]] | None
    classes: tuple[str, ...]
    input: dict[str, Any]
    plain: Iterable[Any] | None = None
    labelled: bool = True
    note: str = ""
    name: str = ""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)


def prepare(dataset: Dataset, recipe: Recipe) -> Dataset:
    """The dataset with the recipe's hold-out and limits."""
    d = recipe.data
    if d.hold_out:
        dataset = dataset.hold_out(d.hold_out)
    return dataset.limit(d.train_limit, d.test_limit)


def make_loaders(dataset: Dataset, recipe: Recipe, rank: int = 0, world_size: int = 1) -> Loaders:
    """Loaders for a dataset in memory.

    Example:
        >>> from pdecnn.training import Recipe, load_dataset
        >>> recipe = Recipe.parse({"model": {"name": "any"}, "data": {"name": "fashion-mini"}, "epochs": 1})
        >>> x, y = next(make_loaders(load_dataset("fashion-mini"), recipe).train.batches(epoch=0))
        >>> x.shape
        torch.Size([128, 1, 28, 28])
    """
    data, d = prepare(dataset, recipe), recipe.data
    train = TrainLoader(
        data.train,
        d.batch_size,
        data.mean,
        data.std,
        Augment(**d.augment.model_dump()),
        seed=recipe.seed,
        rank=rank,
        world_size=world_size,
    )
    plain = EvalLoader(data.train, d.batch_size, data.mean, data.std)
    return Loaders(train, make_eval_loader(data, recipe), data.classes, describe_input(data), plain)


def make_eval_loader(data: Dataset, recipe: Recipe) -> EvalLoader:
    """Batches of the evaluation split."""
    return EvalLoader(data.test, recipe.data.eval_batch_size, data.mean, data.std)


def describe_input(data: Dataset) -> dict[str, Any]:
    """Shape and normalisation that the model expects."""
    return {"shape": list(data.image_shape), "mean": list(data.mean), "std": list(data.std)}
