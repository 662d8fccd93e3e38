"""Draws what the second layer of the three MNIST toys makes of some threes and fives, as in Figure 2 of the paper.

python tools/toy_feature_maps.py RUN_CONV RUN_RESIDUAL RUN_GLOBAL --data-dir DIR   # -> results/mnist-toy-features.png
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

from pdecnn.training import load_checkpoint, load_dataset
from pdecnn.training.augment import normalise
from pdecnn.training.objective import captured

TARGET = Path(__file__).parent.parent / "results/mnist-toy-features.png"
DIGITS, EACH = (3, 5), 3


def main() -> None:
    """One row per digit: the image, then the block's output in each of the nets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=3, type=Path)
    parser.add_argument("--data-dir", required=True, type=Path)
    arguments = parser.parse_args()

    data = load_dataset("mnist", arguments.data_dir)
    index = torch.cat([(data.test.y == digit).nonzero().flatten()[:EACH] for digit in DIGITS])
    x = normalise(data.test.x[index], data.mean, data.std)
    columns = [("image", data.test.x[index, 0], None)]
    for run in arguments.runs:
        checkpoint = load_checkpoint(run)
        with torch.no_grad(), captured(checkpoint.model, ["stages.1"]) as outputs:
            predicted = checkpoint.model(x).argmax(dim=1)
        name = checkpoint.config["model"]["name"].removeprefix("mnist_toy_")
        columns.append((name, outputs["stages.1"][:, 0], predicted))

    figure = Figure(figsize=(1.4 * len(columns), 1.4 * len(index)), layout="constrained")
    axes = figure.subplots(len(index), len(columns))
    for j, (name, maps, predicted) in enumerate(columns):
        for i, row in enumerate(axes[:, j]):
            row.imshow(maps[i].numpy(), cmap="gray")
            row.set_xticks([])
            row.set_yticks([])
            if predicted is not None:
                row.set_xlabel(f"taken for {predicted[i]}", size=7)
        axes[0, j].set_title(name, size=9)
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, dpi=120)
    print(TARGET)


if __name__ == "__main__":
    main()
