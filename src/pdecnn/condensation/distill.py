"""Recover what a condensed model has lost, from the model it was made of."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pdecnn.condensation.apply import new_layers
from pdecnn.condensation.checkpoint import CONFIG, current_config
from pdecnn.condensation.norms import GENTLER, keep_statistics
from pdecnn.condensation.plan import Plan
from pdecnn.shared.modules import eval_mode, tensors_in
from pdecnn.shared.names import close_to
from pdecnn.shared.trees import arguments, map_tensors, takes_images, takes_targets
from pdecnn.shared.trees import part as some
from pdecnn.training import Augment, Dataset, FitResult, Loaders, Recipe, fit
from pdecnn.training.batches import Answered, as_batch, as_loaders
from pdecnn.training.check import check_data
from pdecnn.training.imitation import Imitation, OwnLoss, is_logits
from pdecnn.training.objective import captured
from pdecnn.training.own import in_memory
from pdecnn.training.progress import Reporter, choose_reporter
from pdecnn.training.recipe import DistillRecipe, merge

LR, NEW = 0.005, 10.0  # kept blocks know their task already; new layers learn theirs
FEATURES, OF_BLOCKS = 0.1, 1.0  # weight of feature maps; those of blocks in small steps, which stay near to the teacher
OF_ARGUMENTS = ("model", "data", "epochs", "seed", "distill", "steps")
DEFAULTS: dict[str, Any] = {
    "schedule": {"name": "cosine", "warmup_epochs": 0.5},
    "tensorboard": False,
    "evaluate_every": 0,
}


def distill(
    student: nn.Module,
    teacher: nn.Module,
    data: Any,
    *,
    val: Any = None,
    loss: OwnLoss | None = None,
    distance: OwnLoss | None = None,
    metric: Any = None,
    features: Sequence[str] | Mapping[str, str] = (),
    epochs: int = 10,
    batch_size: int = 64,
    lr: float = LR,
    new: float = NEW,
    weight: float = 0.9,
    temperature: float = 4.0,
    feature_weight: float | None = None,
    augment: Mapping[str, Any] | None = None,
    seed: int = 0,
    steps: tuple[int, int] | None = None,
    recipe: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> FitResult:
    """Trains `student` in place to answer as `teacher` does, and to have its feature maps where blocks were replaced.

    For classifiers the loss is `(1 - weight) * cross entropy + weight * T^2 * KL(teacher || student)`. For models that
    give anything else, such as maps, pyramids or dicts, it is the mean square of the difference of each tensor to the
    teacher's, relative to the latter; `docs/any-task.md` has examples. Both have added, for each new layer,
    `feature_weight` times the distance of its output to that of the run it replaced, relative to the latter.

    Where a classifier's batch norms would lose more by the statistics of these images than the student has lost, they
    keep theirs, AdamW takes small steps in place of SGD, `lr` / 50, and blocks that have fewer inner channels learn
    the outputs of the teacher's too (`recipe={"frozen_norms": False}`: not so).

    Args:
        student: A condensed model, or any model that gives what the teacher gives (then without the feature maps).
        teacher: The model before; it is put in eval mode, its parameters are not touched.
        data: A DataLoader, a torch Dataset, a list or other iterable of batches `(x, y)`, a dataset in memory, or
            loaders. Without labels the teacher's answers are all there is, and accuracies are agreement with it.
        val: The like, to evaluate on; without it nothing is evaluated.
        loss: Your loss, `loss(answer, y)`, in place of the cross entropy; it has the weight `1 - weight`.
        distance: Your distance, `distance(answer, teacher's answer)`, in place of the one above; it has `weight`.
        metric: What is measured on `val`: `metric(answer, y)`, of which the mean over images is taken, or an object
            with `update`, `compute` and `reset`, as in torchmetrics. Larger is better unless it has an attribute
            `higher_is_better = False`. By default accuracy, and where answers are no logits the distance.
        features: Further modules whose outputs the student learns, by name: `["backbone"]`, or `{student: teacher}`.
        epochs: Passes over the training images.
        batch_size: Images per step, where `data` is not of batches.
        lr: Learning rate of the blocks that were kept.
        new: How many times larger that of the new layers is.
        weight: Share of the teacher's answers in the loss.
        temperature: T, which softens the answers.
        feature_weight: Weight of the feature maps; with 0 the answers alone are learned. 0.1 by default, and 1 if
            there are only those of blocks with fewer inner channels.
        augment: What is done to images in memory, as in a recipe: `{"pad": 2, "flip": 0.5}`.
        seed: Seed of order and augmentation.
        steps: The least and the most K of one net that serves them all, such as `(1, 10)`: each step of training has
            the most, the least and one between, the most teaching the others. `pdecnn.layers.set_steps` then sets K.
        recipe: Further settings, as in a recipe, over those from here: `{"precision": "bf16"}`, or
            `{"optimizer": {"name": "adamw", "lr": 1e-3}}`.
        run_dir: Folder for logs and checkpoints.
        resume: Continue the run in `run_dir`.
        reporter: Shows the progress: a bar or plain lines by default, `Reporter()` for none.
    """
    check_recipe(recipe, epochs)
    if isinstance(data, Dataset):
        loaders = in_memory(data, batch_size, seed, augment=Augment(**dict(augment or {})))
    else:
        loaders = as_loaders(data, val, batch_size=batch_size, seed=seed)
    of_maps = FEATURES if feature_weight is None else feature_weight
    pairs = {**matched_modules(student), **named_pairs(features, student)} if of_maps else {}
    learning = {"temperature": temperature, "features": pairs, "feature_weight": of_maps if pairs else 0.0}
    own = imitation(
        teacher, loaders, {**learning, "weight": weight}, loss=loss, distance=distance, metric=metric,
        features=features,
    )  # fmt: skip
    if own is None:
        loaders = known_to(teacher, check_data(teacher, loaders))
    elif (recipe or {}).get("loss"):
        raise ValueError("distill: recipe may set loss for classifiers alone; give loss= a function.")
    keep = (
        own is None and "frozen_norms" not in (recipe or {}) and keep_statistics(student, teacher, _first(loaders)[0])
    )
    if keep and of_maps and (blocks := inner_blocks(student, teacher, loaders)):
        closely = OF_BLOCKS if feature_weight is None and not pairs else of_maps
        learning |= {"features": {**pairs, **blocks}, "feature_weight": closely}
    rates = {
        "name": "adamw" if keep else "sgd",
        "lr": lr * GENTLER if keep else lr,
        "weight_decay": 5e-4,
        "lr_scale": dict.fromkeys(sites(student), new),
    }
    settings = Recipe.parse(
        {
            **merge({"optimizer": rates, **DEFAULTS, "frozen_norms": keep}, recipe or {}),
            "model": {"builder": "condensed", "name": type(student).__name__},
            "data": {"name": "loaders", "batch_size": batch_size},
            "epochs": epochs,
            "seed": seed,
            "steps": None if steps is None else dict(zip(("least", "most"), steps, strict=True)),
            "distill": {
                "weight": weight if loaders.labelled else 1.0,
                **learning,
            },
        }
    )
    config = current_config(student) or getattr(student, CONFIG, None)
    return fit(
        student,
        loaders,
        settings,
        teacher=teacher,
        objective=own,
        model_config=config,
        run_dir=run_dir,
        resume=resume,
        reporter=choose_reporter() if reporter is None else reporter,
    )


def check_recipe(recipe: Mapping[str, Any] | None, epochs: int) -> None:
    """Raises what is wrong with the further settings of a distillation, so that nobody waits for it."""
    if taken := [name for name in OF_ARGUMENTS if name in (recipe or {})]:
        raise ValueError(f"distill: recipe may not set {', '.join(taken)}; the arguments of distill do.")
    given = {"model": {"name": "student"}, "data": {"name": "loaders"}, "epochs": epochs}
    Recipe.parse({**merge(DEFAULTS, recipe or {}), **given})


def imitation(
    teacher: nn.Module,
    loaders: Loaders,
    learning: Mapping[str, Any] | None = None,
    *,
    loss: OwnLoss | None = None,
    distance: OwnLoss | None = None,
    metric: Any = None,
    features: Sequence[str] | Mapping[str, str] = (),
) -> Imitation | None:
    """What is learnt of a teacher that is no classifier, or with functions of the user's own; None for a classifier."""
    x, y = _first(loaders)
    if loss is None and distance is None and metric is None and not features and is_logits(_answer(teacher, x)):
        return None
    aims = {"feature_weight": FEATURES, **(learning or {})}
    whole = {"backbone": "backbone"} if takes_targets(teacher) and hasattr(teacher, "backbone") else {}
    aims["features"] = aims.get("features") or named_pairs(features, teacher) or whole
    own = Imitation(teacher, DistillRecipe(**aims), loss=loss, distance=distance, metric=metric)
    own.check(x, y)
    return own


def _first(loaders: Loaders) -> tuple[Any, Any]:
    """A batch of training images and what belongs to them."""
    return as_batch(next(iter(loaders.plain if loaders.plain is not None else loaders.train.batches(0))))


def _answer(model: nn.Module, x: Any) -> Any:
    """What the model gives for the first sample of a batch."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    one = map_tensors(some(x, slice(1), takes_images(model, x)), lambda q: q.to(device))
    with torch.no_grad(), eval_mode(model):
        try:
            return model(*arguments(model, one))
        except Exception as error:
            shapes = ", ".join(str(tuple(q.shape)) for q in tensors_in(one))
            raise ValueError(
                f"data: {type(model).__name__} does not run on a batch of shape {shapes}: {error}. --input C,H,W sets "
                "the size of images."
            ) from error


def named_pairs(features: Sequence[str] | Mapping[str, str], student: nn.Module) -> dict[str, str]:
    """`{student: teacher}` of the modules that a user named."""
    names = [features] if isinstance(features, str) else features
    pairs = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    known = dict(student.named_modules())
    for name in pairs:
        if name not in known:
            raise ValueError(
                f"distill: features names {name!r}; the student has no such module.{close_to(name, known)}"
            )
    return pairs


def known_to(teacher: nn.Module, loaders: Loaders) -> Loaders:
    """The loaders with the teacher's answers for labels, in the evaluation, if there are none."""
    if loaders.labelled or loaders.evaluation is None or isinstance(loaders.evaluation, Answered):
        return loaders
    return replace(loaders, evaluation=Answered(teacher, loaders.evaluation))


def sites(student: nn.Module) -> list[str]:
    """Where a condensed model has new layers."""
    plan = _plan_of(student)
    return [] if plan is None else list(new_layers(student, plan.runs))


def _plan_of(student: nn.Module) -> Plan | None:
    config = getattr(student, CONFIG, None)
    return None if config is None else Plan.from_dict(config["plan"])


def matched_modules(student: nn.Module) -> dict[str, str]:
    """The modules of a condensed model whose outputs have a counterpart in the model before, `{student: teacher}`.

    A new layer has the path of the last block it replaced. Maps of a narrower model have none.
    """
    plan = _plan_of(student)
    if plan is None or plan.width != 1:  # other channels
        return {}
    runs = [run for run in plan.runs if run.condenses and run.site]
    return {path: path for path in ((run.transition or "") if run.is_dense else run.site for run in runs) if path}


def inner_blocks(student: nn.Module, teacher: nn.Module, loaders: Loaders) -> dict[str, str]:
    """The modules, such as residual blocks, that have fewer inner channels and give maps as large as ever."""
    plan = _plan_of(student)
    if plan is None:
        return {}
    both = set(dict(student.named_modules())) & set(dict(teacher.named_modules()))
    inner = [one.last for one in plan.inner if one.last in both]  # others went with their run
    names = list(dict.fromkeys(holder for holder, _, _ in (last.rpartition(".") for last in inner) if holder))
    if not names:
        return {}
    x = _first(loaders)[0]
    with captured(student, names, "student") as mine:
        _answer(student, x)
    with captured(teacher, names, "teacher") as theirs:
        _answer(teacher, x)
    maps = {name: (mine.get(name), theirs.get(name)) for name in names}  # None where only the parts of a module are run
    return {name: name for name, (h, g) in maps.items() if _shape(h) == _shape(g) != ()}


def _shape(h: Any) -> tuple[int, ...]:
    return tuple(h.shape) if isinstance(h, torch.Tensor) else ()
