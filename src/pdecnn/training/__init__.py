"""Training: recipes, data, one loop, checkpoints. Needs `pip install "pdecnn[train]"` only when `fit` is called."""

from pdecnn.models.build import build_model as build_model
from pdecnn.models.build import register_builder as register_builder
from pdecnn.training.augment import Augment as Augment
from pdecnn.training.build import open_model as open_model
from pdecnn.training.checkpoint import Checkpoint as Checkpoint
from pdecnn.training.checkpoint import CheckpointError as CheckpointError
from pdecnn.training.checkpoint import load_checkpoint as load_checkpoint
from pdecnn.training.checkpoint import save_checkpoint as save_checkpoint
from pdecnn.training.data import Dataset as Dataset
from pdecnn.training.data import EvalLoader as EvalLoader
from pdecnn.training.data import Images as Images
from pdecnn.training.data import TrainLoader as TrainLoader
from pdecnn.training.datasets import load_dataset as load_dataset
from pdecnn.training.diverged import DivergedError as DivergedError
from pdecnn.training.evaluation import Metrics as Metrics
from pdecnn.training.evaluation import evaluate as evaluate
from pdecnn.training.loaders import Loaders as Loaders
from pdecnn.training.loaders import make_loaders as make_loaders
from pdecnn.training.loop import fit as fit
from pdecnn.training.objective import Classification as Classification
from pdecnn.training.objective import Distillation as Distillation
from pdecnn.training.recipe import Recipe as Recipe
from pdecnn.training.recipe import RecipeError as RecipeError
from pdecnn.training.recipe import list_recipes as list_recipes
from pdecnn.training.recipe import load_recipe as load_recipe
from pdecnn.training.trainer import FitResult as FitResult
