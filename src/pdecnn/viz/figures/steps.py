"""Accuracy against the steps K: printed [KS22, Table 6], in our own runs, and of trained nets with another K."""

import warnings
from pathlib import Path
from typing import Any

import timm
import torch

from pdecnn.analysis.tables import Entry, build_table
from pdecnn.training.datasets import load_sample
from pdecnn.viz.figures.canvas import BLUE, GREY, INK, RED, new_figure

TRAINED = {"mnist_toy_global.mnist": "mnist", "cifar_resnet_tiny_global.cifar10": "cifar10"}
STEPS = (1, 2, 3, 4, 5, 6, 8, 10)


def length(entry: Entry) -> str:
    """How long our net of a row was trained, and whether it had a teacher."""
    return f"{entry.own.epochs} epochs" + ", distilled" * entry.own.training.distilled


def draw(results: Path = Path("results")) -> Any:
    """Left: nets that were trained with each K. Right: nets that were trained with K = 5, run with another.

    Our own runs are those in the folder `results`; a warning says if it has none of these nets.
    """
    figure = new_figure(9.0, 3.7)
    left, right = figure.subplots(1, 2)
    entries = build_table(6, results=results if results.is_dir() else None).entries
    if all(e.accuracy is None for e in entries):
        warnings.warn(
            f"figure: steps: {results} has no runs of these nets, so ours are missing; name their folder by --results.",
            stacklevel=2,
        )
    for dataset, colour in (("CIFAR-10", BLUE), ("CIFAR-100", GREY)):
        rows = [(int(e.row.name.split()[-1]), e) for e in entries if e.row.dataset == dataset]
        left.plot(
            *zip(*((K, e.row.accuracy) for K, e in rows), strict=True), "o-", color=colour, label=f"{dataset}, printed"
        )
        own = [(K, e.accuracy, length(e)) for K, e in rows if e.accuracy is not None]
        if own:
            label = f"{dataset}, ours ({', '.join(dict.fromkeys(epochs for *_, epochs in own))})"
            left.plot([K for K, *_ in own], [a for _, a, _ in own], "s", color=RED, label=label)
    left.set_xticks([int(e.row.name.split()[-1]) for e in entries if e.row.dataset == "CIFAR-10"])
    left.set(xlabel="K, in training and at inference", ylabel="accuracy, %", title="ResNet-Global")
    for name, data in TRAINED.items():
        model = timm.create_model(name, pretrained=True).eval()
        sample = load_sample(data)
        mean, std = (torch.tensor(model.pretrained_cfg[key]).view(-1, 1, 1) for key in ("mean", "std"))
        x, found = (sample.x / 255 - mean) / std, []
        for K in STEPS:
            model.set_steps(K)
            with torch.no_grad():
                found.append(100 * (model(x).argmax(1) == sample.y).double().mean().item())
        right.plot(STEPS, found, "o-", label=f"{name.partition('.')[0]}, {len(sample)} images")
    right.axvline(5, color=INK, linewidth=0.8, linestyle=":")
    right.set(xlabel="K at inference", title="trained with K = 5")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        axes.title.set_fontsize(10)
    return figure
