"""Training: recipes, data, one loop, checkpoints. Needs `pip install "pdecnn[train]"` only when `fit` is called."""

from pdecnn.models.build import build_model, register_builder
from pdecnn.shared.allocator import keep_memory
from pdecnn.training.augment import Augment
from pdecnn.training.build import open_model
from pdecnn.training.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from pdecnn.training.data import Dataset, EvalLoader, Images, TrainLoader
from pdecnn.training.datasets import load_dataset
from pdecnn.training.diverged import DivergedError, first_divergence
from pdecnn.training.evaluation import Metrics, evaluate
from pdecnn.training.loaders import Loaders, make_loaders
from pdecnn.training.loop import fit
from pdecnn.training.objective import Classification, Distillation
from pdecnn.training.recipe import Recipe, RecipeError, list_recipes, load_recipe
from pdecnn.training.trainer import FitResult
from pdecnn.training.variation import weight_variation

__all__ = [
    "Augment",
    "Checkpoint",
    "CheckpointError",
    "Classification",
    "Dataset",
    "Distillation",
    "DivergedError",
    "EvalLoader",
    "FitResult",
    "Images",
    "Loaders",
    "Metrics",
    "Recipe",
    "RecipeError",
    "TrainLoader",
    "build_model",
    "evaluate",
    "first_divergence",
    "fit",
    "keep_memory",
    "list_recipes",
    "load_checkpoint",
    "load_dataset",
    "load_recipe",
    "make_loaders",
    "open_model",
    "register_builder",
    "save_checkpoint",
    "weight_variation",
]
