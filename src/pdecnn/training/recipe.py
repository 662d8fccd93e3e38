"""Recipes: everything that decides a training run, as one validated YAML file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pdecnn.layers.steps import MAX_SERVED
from pdecnn.models.build import check_steps
from pdecnn.shared.names import close_to
from pdecnn.shared.reading import FileError, check_tree, read_text
from pdecnn.shared.yaml_files import dump_yaml, parse_yaml

Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


MAX_RECIPE = 100_000  # bytes


class RecipeError(FileError):
    """A recipe with an unknown key or an impossible value; the message names the key."""


class Part(BaseModel):
    """A part of a recipe: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelRecipe(Part):
    """Which model: a name in timm's registry (ours are in it) and its arguments."""

    builder: str = "timm"
    name: str
    kwargs: dict[str, Any] = {}
    pretrained: bool = False

    @model_validator(mode="after")
    def _check(self) -> "ModelRecipe":
        check_steps(self.kwargs)
        return self


class AugmentRecipe(Part):
    """See `pdecnn.training.Augment`."""

    pad: Count = 0
    shrink: Count = 0
    flip: Fraction = 0.0
    scale: tuple[Positive, Positive] | None = None
    cutout: Count = 0


class StreamRecipe(Part):
    """Datasets too large for memory: an image folder or anything that `timm.data.create_dataset` reads."""

    num_classes: Annotated[int, Field(ge=1)]
    train_split: str = "train"
    test_split: str = "validation"
    image_size: Annotated[int, Field(ge=8)] = 224
    crop_fraction: Annotated[float, Field(gt=0, le=1)] = 0.875
    crop_scale: tuple[Positive, Positive] = (0.08, 1.0)  # the part of an image that a training crop shows
    interpolation: str = "bicubic"
    rand_augment: str | None = None
    random_erase: Fraction = 0.0
    random_erase_mode: Literal["const", "rand", "pixel"] = "pixel"
    random_erase_count: Annotated[int, Field(ge=1)] = 1
    color_jitter: NonNegative | None = None
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[Positive, ...] = (0.229, 0.224, 0.225)
    workers: Count = 4


class DataRecipe(Part):
    """Which data, in which batches. `batch_size` counts over all processes."""

    name: str
    batch_size: Annotated[int, Field(ge=1)] = 128
    eval_batch_size: Annotated[int, Field(ge=1)] = 512
    augment: AugmentRecipe = AugmentRecipe()
    hold_out: Count = 0
    train_limit: Annotated[int, Field(ge=1)] | None = None
    test_limit: Annotated[int, Field(ge=1)] | None = None
    stream: StreamRecipe | None = None


class OptimizerRecipe(Part):
    """A timm optimiser by name ("sgd" is Nesterov, "momentum" is not) and its options."""

    name: str = "sgd"
    lr: Positive = 0.1
    momentum: Fraction = 0.9
    weight_decay: NonNegative = 0.0
    decay_bias_and_norm: bool = True
    lr_scale: dict[str, Positive] = {}  # factors of the rate by the path of a module, such as that of a new layer
    options: dict[str, float | bool | str | list[float]] = {}


class ScheduleRecipe(Part):
    """A timm schedule, evaluated at every step."""

    name: Literal["constant", "cosine", "multistep", "step", "poly", "tanh"] = "cosine"
    warmup_epochs: NonNegative = 0.0
    warmup_lr: NonNegative = 1e-6
    min_lr: NonNegative = 0.0
    milestones: tuple[Positive, ...] = ()
    decay_epochs: Positive = 30.0
    decay_rate: Positive = 0.1
    noise: tuple[Fraction, Fraction] | None = None

    @model_validator(mode="after")
    def _check(self) -> "ScheduleRecipe":
        if (self.name == "multistep") != bool(self.milestones):
            raise ValueError("milestones are given for the multistep schedule, and only for it")
        if list(self.milestones) != sorted(self.milestones):
            raise ValueError("milestones must rise")
        return self


class LossRecipe(Part):
    """Cross entropy and what is mixed into it."""

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    mixup: NonNegative = 0.0
    cutmix: NonNegative = 0.0
    aux_weight: NonNegative = 0.4
    weight_variation: NonNegative = 0.0  # of neighbouring blocks, see `pdecnn.training.weight_variation`


class DistillRecipe(Part):
    """Distillation from a teacher: `loss = (1 - weight) * task + weight * T^2 * KL(teacher || student)`."""

    weight: Fraction = 0.9
    temperature: Positive = 4.0
    feature_weight: NonNegative = 0.0
    features: dict[str, str] = {}


class StepsRecipe(Part):
    """The numbers of time steps K that one net is trained to serve: each step of training has the least, the most and
    one between."""

    least: Annotated[int, Field(ge=1, le=MAX_SERVED)] = 1
    most: Annotated[int, Field(ge=1, le=MAX_SERVED)] = 10

    @model_validator(mode="after")
    def _check(self) -> "StepsRecipe":
        if self.least >= self.most:
            raise ValueError(f"least={self.least} must be below most={self.most}")
        return self


class Recipe(Part):
    """All settings of one run.

    Example:
        >>> recipe = Recipe.parse({"model": {"name": "test_resnet"}, "data": {"name": "fashion-mini"}, "epochs": 2})
        >>> recipe.optimizer.name, recipe.data.batch_size
        ('sgd', 128)
    """

    model: ModelRecipe
    data: DataRecipe
    epochs: Annotated[int, Field(ge=1)]
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    loss: LossRecipe = LossRecipe()
    distill: DistillRecipe | None = None
    steps: StepsRecipe | None = None
    clip_grad: Positive | None = None
    drop_path_ramp: bool = False
    frozen_norms: bool = False  # batch norms keep their statistics
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    # ways to compute; auto: the fastest that a measurement before the first step finds, see `pdecnn.training.choice`
    channels_last: bool | Literal["auto"] = "auto"
    depthwise: Literal["torch", "native", "auto"] = "auto"
    compile: bool | Literal["auto"] = False
    onednn: bool = True  # oneDNN convolutions on the CPU; nets of one channel run faster without
    seed: Count = 0
    evaluate_every: Count = 1
    checkpoint_every: Annotated[int, Field(ge=1)] | None = None
    keep_checkpoints: Annotated[int, Field(ge=2)] = 2
    tensorboard: bool = True

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        if self.schedule.warmup_epochs >= self.epochs:
            raise ValueError(
                f"schedule.warmup_epochs={self.schedule.warmup_epochs:g} must be below epochs={self.epochs}"
            )
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "Recipe":
        """Validates nested dicts; raises a RecipeError that names every wrong key."""
        try:
            check_tree(values, "recipe")
        except FileError as error:
            raise RecipeError(str(error)) from error
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            lines = []
            for e in error.errors(include_url=False, include_context=False):
                key = ".".join(str(part) for part in e["loc"]) or "recipe"
                if e["type"] == "extra_forbidden":
                    lines.append(_unknown([str(part) for part in e["loc"]]))
                    continue
                lines.append(f"{key}: {e['msg']}, got {e['input']!r:.80}")
            raise RecipeError("recipe: " + "; ".join(lines) + ".") from error

    def override(self, assignments: Iterable[str]) -> "Recipe":
        """The recipe with `key=value` assignments applied; keys are dotted, values are YAML.

        Example:
            >>> recipe = Recipe.parse({"model": {"name": "test_resnet"}, "data": {"name": "mnist"}, "epochs": 2})
            >>> recipe.override(["optimizer.lr=0.5", "data.augment.flip=0.5"]).optimizer.lr
            0.5
        """
        assignments = list(assignments)
        values = assign(self.model_dump(), assignments)
        _shorten_warmup(values, self.epochs, assignments)
        return Recipe.parse(values)

    def to_yaml(self) -> str:
        """The whole recipe, defaults included, as YAML that `load_recipe` reads back."""
        return dump_yaml(self.model_dump(mode="json"))


def assign(values: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """The nested dict, changed in place by `key=value` assignments; keys are dotted, values are YAML.

    Example:
        >>> assign({"epochs": 2}, ["precision=bf16", "optimizer.lr=0.5"])
        {'epochs': 2, 'precision': 'bf16', 'optimizer': {'lr': 0.5}}
    """
    for text in assignments:
        key, equals, value = text.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise RecipeError(f"recipe: expected key=value such as optimizer.lr=0.05, got {text!r}.")
        node = values
        for part in path[:-1]:
            child = node.get(part)
            if child is None:
                child = node[part] = {}
            if not isinstance(child, dict):
                raise RecipeError(f"recipe: {key.strip()}: {part!r} is a value and has no parts.")
            node = child
        node[path[-1]] = _yaml(value, f"-o {text}")
    return values


def _unknown(path: list[str]) -> str:
    """What is said of a setting that does not exist."""
    part: Any = Recipe
    for name in path[:-1]:
        kinds = get_args(part.model_fields[name].annotation) or (part.model_fields[name].annotation,)
        part = next((k for k in kinds if isinstance(k, type) and issubclass(k, Part)), part)
    known = list(part.model_fields)
    return f"there is no setting {'.'.join(path)!r}.{close_to(path[-1], known)} There are {', '.join(known)}"


def _shorten_warmup(values: dict[str, Any], epochs: int, assignments: list[str]) -> None:
    """A run that is made shorter has a shorter warm-up too, unless the user says how long it is."""
    schedule, now = values.get("schedule"), values.get("epochs")
    if not isinstance(now, int) or any(text.strip().startswith("schedule") for text in assignments):
        return
    if isinstance(schedule, dict) and now >= 1 and schedule["warmup_epochs"] >= now:
        schedule["warmup_epochs"] = schedule["warmup_epochs"] * now / epochs


def load_recipe(source: str | Path) -> Recipe:
    """Reads a recipe: the name of one in the package (`list_recipes`), or a path to a YAML file.

    A recipe may start from another of the package with `extends: name`; its own keys then win.

    Example:
        >>> load_recipe("quick/fashion-mini").data.name
        'fashion-mini'
    """
    values = _read(source, seen=())
    try:
        return Recipe.parse(values)
    except RecipeError as error:
        raise RecipeError(str(error).replace("recipe:", f"recipe: {source}:", 1)) from error


def list_recipes() -> dict[str, str]:
    """Names of the recipes in the package and the comment at their head."""
    root = _folder()
    found: dict[str, str] = {}
    for group in sorted(root.iterdir(), key=lambda entry: entry.name):
        for entry in sorted(group.iterdir(), key=lambda entry: entry.name) if group.is_dir() else []:
            if entry.name.endswith(".yaml") and not entry.name.startswith("_"):
                found[f"{group.name}/{entry.name[:-5]}"] = _header(entry.read_text())
    return found


def _header(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return " ".join(lines)


def _read(source: str | Path, seen: tuple[str, ...]) -> dict[str, Any]:
    text = _text(source)
    values = _yaml(text, str(source))
    if not isinstance(values, dict):
        raise RecipeError(f"recipe: {source} holds a {type(values).__name__}, expected keys and values.")
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str) or base in seen:
        raise RecipeError(f"recipe: {source}: extends must name another recipe of the package, got {base!r}.")
    if base not in _names():
        raise RecipeError(f"recipe: {source}: extends must name a recipe of the package, got {base!r}.")
    return merge(_read(base, (*seen, base)), values)


def _text(source: str | Path) -> str:
    if isinstance(source, str) and source in _names():
        return _folder().joinpath(f"{source}.yaml").read_text()
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        try:
            return read_text(path, MAX_RECIPE)
        except FileError as error:
            raise RecipeError(f"recipe: {error}") from error
    hint = close_to(source, list_recipes(), cutoff=0.4)
    raise RecipeError(
        f"recipe: no recipe named {str(source)!r}.{hint} `pdecnn recipes` lists all; a file ends in .yaml."
    )


def _names() -> set[str]:
    return {f"{g.name}/{e.name[:-5]}" for g in _folder().iterdir() if g.is_dir() for e in g.iterdir()}


def _folder() -> Path:
    return Path(__file__).parent.parent / "recipes"


def _yaml(text: str, where: str) -> Any:
    try:
        return parse_yaml(text, where)
    except FileError as error:
        raise RecipeError(f"recipe: {error}") from error


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """One nested dict over another: what `top` does not name stays."""
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged
