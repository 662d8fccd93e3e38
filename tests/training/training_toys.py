"""A tiny network, tiny data and runs in processes of their own, shared by the tests of training."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.training import Dataset, Images, Recipe

SERVER = multiprocessing.get_context("forkserver")  # forks from a process that has imported all, so kills are cheap
SERVER.set_forkserver_preload(["training_toys", "timm", "accelerate", "pdecnn.training.stream"])


def tiny_net(norm: bool = True) -> nn.Sequential:
    """A convolution, a norm, dropout (whose masks must survive a resume) and a classifier."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        nn.BatchNorm2d(4) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout(0.2 if norm else 0.0),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


def tiny_data(n: int = 60) -> Dataset:
    """Three classes of 8x8 images that differ in brightness."""
    g = torch.Generator().manual_seed(1)
    y = torch.randint(0, 3, (n + 30,), generator=g)
    x = (torch.randint(0, 100, (n + 30, 1, 8, 8), generator=g) + 70 * y.view(-1, 1, 1, 1)).to(torch.uint8)
    images = Images(x, y)
    return Dataset("tiny", images[:n], images[n:], ("dark", "grey", "bright"), mean=(0.5,), std=(0.25,))


def recipe(**changes: Any) -> Recipe:
    """Four epochs of six steps with everything random switched on."""
    values: dict[str, Any] = {
        "model": {"name": "tiny"},
        "data": {"name": "tiny", "batch_size": 10, "augment": {"pad": 1, "flip": 0.5, "cutout": 2}},
        "epochs": 4,
        "optimizer": {"name": "sgd", "lr": 0.05, "weight_decay": 1e-3},
        "schedule": {"name": "cosine", "warmup_epochs": 1},
        "clip_grad": 1.0,
        "ema_decay": 0.9,
        "tensorboard": False,
        "checkpoint_every": 4,
    }
    return Recipe.parse({**values, **changes})


def start(target: Callable[..., None], *args: Any) -> Any:
    """Runs `target(*args)` in a new process."""
    process = SERVER.Process(target=target, args=args)
    process.start()
    return process


def weights(folder: str | Path) -> dict[str, Tensor]:
    """All tensors of the last checkpoint: inference weights, raw weights and optimiser."""
    from safetensors.torch import load_file

    found = {}
    for file in sorted((Path(folder) / "last").glob("*.safetensors")):
        found |= {f"{file.stem}/{key}": value for key, value in load_file(file).items()}
    return found


def assert_same_weights(a: str | Path, b: str | Path) -> None:
    """Every bit of the last checkpoints of two runs is the same."""
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    assert len(first) > 10
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def single_thread() -> None:
    """What a process of its own does first."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
