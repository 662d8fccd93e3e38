"""Trains every row of the hyperbolic paper's table as a small net on the data that ships, all alike.

    python benchmarks/hyperbolic_ablation.py [--output FOLDER] [--results FILE]

All have the same short budget: two epochs of the 5,000 images. What has finished is kept before the next net begins,
and the same command again goes on where it was stopped. `pdecnn tables hyperbolic` prints what is kept.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from pdecnn.analysis.hyperbolic_tables import ABLATION
from pdecnn.cli.sweep import keep, open_sweep, report, runner
from pdecnn.training.recipe import Recipe

RECIPE = "quick/fashion-hyperbolic-ablation"


def main() -> None:
    """Runs what is left of the sweep, prints it, and writes the runs that finished into one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/hyperbolic-ablation"))
    parser.add_argument("--results", type=Path, default=Path("results/fashion-hyperbolic-ablation.json"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    kinds = ",".join(json.dumps(row.options) for row in ABLATION)
    sweep, name = open_sweep(RECIPE, None, [f"model.kwargs={kinds}"], "grid", len(ABLATION), args.output)
    train = runner(None, False, args.threads, False)

    def keep_and_train(recipe: Recipe, folder: Path) -> Any:
        keep(sweep, args.results)
        return train(recipe, folder)

    sweep.work(keep_and_train)
    report(sweep, name, False)
    keep(sweep, args.results)


if __name__ == "__main__":
    main()
