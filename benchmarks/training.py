"""What the training loop adds to the model's own work: time per step against a bare loop, and the share of data.

    python benchmarks/training.py [--json FILE]

A bare step is forward, backward and optimiser on one fixed batch. Rounds of both kinds take turns, so that a machine
that is busy or slows down treats them alike; the figures are medians over the rounds.
"""

import argparse
import copy
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn
from torch.nn import functional as nnf

import pdecnn.models  # noqa: F401
from pdecnn.training import Dataset, Images, Recipe, fit, make_loaders
from pdecnn.training.rundir import environment

STEPS, ROUNDS = 10, 7
GOAL_STEP, GOAL_DATA = 1.15, 0.10


def recipe(model: str, batch_size: int) -> Recipe:
    """One epoch of the CIFAR settings."""
    return Recipe.parse(
        {
            "model": {"name": model},
            "data": {"name": "cifar10", "batch_size": batch_size, "augment": {"pad": 4, "flip": 0.5}},
            "epochs": 1,
            "optimizer": {"lr": 0.01, "weight_decay": 1e-4},
            "evaluate_every": 0,
            "channels_last": True,
        }
    )


def data(batch_size: int) -> Dataset:
    """Random images of CIFAR's shape; their content does not matter for the time."""
    x = torch.randint(0, 256, (STEPS * batch_size, 3, 32, 32), dtype=torch.uint8)
    images = Images(x, torch.randint(0, 10, (len(x),)))
    return Dataset("random", images, images[:8], tuple("0123456789"), (0.5,) * 3, (0.25,) * 3)


def bare_round(net: nn.Module, batch_size: int) -> float:
    """Seconds per step of a loop without anything else."""
    x = torch.randn(batch_size, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch_size,))
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        nnf.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def loop_round(net: nn.Module, images: Dataset, settings: Recipe) -> float:
    """Seconds per step of `fit`, data and bookkeeping included."""
    stamps: list[float] = []
    result = fit(net, images, settings, on_step=lambda *_: stamps.append(time.perf_counter()))
    if result.status == "stopped":
        raise SystemExit(143)
    return statistics.median(b - a for a, b in itertools.pairwise(stamps))


def data_round(images: Dataset, settings: Recipe) -> float:
    """Seconds per batch of loading and augmentation alone."""
    times: list[float] = []
    batches = make_loaders(images, settings).train.batches(0)
    while True:
        began = time.perf_counter()
        if next(batches, None) is None:
            return statistics.median(times[1:])
        times.append(time.perf_counter() - began)


def measure(model: str, batch_size: int) -> dict[str, Any]:
    """Medians over interleaved rounds."""
    net, images, settings = timm.create_model(model), data(batch_size), recipe(model, batch_size)
    rounds: dict[str, list[float]] = {"bare": [], "loop": [], "data": []}
    for _ in range(ROUNDS):
        rounds["bare"].append(bare_round(copy.deepcopy(net), batch_size))
        rounds["loop"].append(loop_round(copy.deepcopy(net), images, settings))
        rounds["data"].append(data_round(images, settings))
    ms = {name: 1e3 * statistics.median(values) for name, values in rounds.items()}
    ratio = statistics.median(a / b for a, b in zip(rounds["loop"], rounds["bare"], strict=True))
    return {
        "model": model,
        "batch_size": batch_size,
        "bare_ms_per_step": ms["bare"],
        "loop_ms_per_step": ms["loop"],
        "data_ms_per_step": ms["data"],
        "loop_over_bare": ratio,
        "data_share": ms["data"] / ms["loop"],
        "goals": {"loop_over_bare": GOAL_STEP, "data_share": GOAL_DATA},
    }


def main() -> None:
    """Measures, prints and, if asked, keeps the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar_resnet_tiny_global")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = {**measure(arguments.model, arguments.batch_size), **environment()}
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
