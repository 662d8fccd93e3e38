"""Gathers finished runs of one recipe with several seeds into results/<name>.json.

    python tools/collect_results.py mnist-toy-global runs/mnist-toy-global-{1,2,3} --note "As published."

`--weights NAME` also copies the weights of the first run to src/pdecnn/weights/NAME.safetensors, and `--confusion A,B`
adds how often the classes A and B were taken for one another, per seed.
"""

import argparse
import csv
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from pdecnn.training.checkpoint import find_checkpoint

ROOT = Path(__file__).parent.parent


def confusions(run: Path, pair: str) -> int:
    """How often the two classes were taken for one another."""
    rows = {row[""]: row for row in csv.DictReader((run / "confusion.csv").open())}
    a, b = pair.split(",")
    return int(rows[a][b]) + int(rows[b][a])


def collect(runs: list[Path], note: str, pair: str | None) -> dict[str, Any]:
    """One record; `accuracy` is the mean over the seeds of the last epoch's accuracy."""
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    first = results[0]
    for result in results[1:]:
        same = {**result["recipe"], "seed": first["seed"]} == first["recipe"]
        if not same:
            raise SystemExit("collect_results: the runs differ in more than their seed.")
    accuracies = [result["accuracy"] for result in results]
    record = {
        "model": first["model"],
        "dataset": first["dataset"],
        "accuracy": round(statistics.mean(accuracies), 4),
        "accuracy_std": round(statistics.stdev(accuracies), 4) if len(accuracies) > 1 else None,
        "accuracies": accuracies,
        "seeds": [result["seed"] for result in results],
        "epochs": first["epochs"],
        "wall_time_s": [result["wall_time_s"] for result in results],
        "machine": first["machine"],
        "versions": first["versions"],
        "note": note,
        "recipe": first["recipe"],
        "curve": {str(result["seed"]): [_short(row) for row in result["curve"]] for result in results},
    }
    if pair:
        record[f"confusions_{pair.replace(',', '_')}"] = [confusions(run, pair) for run in runs]
    return record


def add_earlier_cycles(record: dict[str, Any], runs: list[Path]) -> None:
    """Adds the runs that each gave the next its first weights; `epochs` and `wall_time_s` become those of all."""
    record["earlier_cycles"] = [_cycle(run) for run in runs]
    for cycle in record["earlier_cycles"]:
        record["epochs"] += cycle["epochs"]
        record["wall_time_s"] = [seconds + cycle["wall_time_s"] for seconds in record["wall_time_s"]]


def _cycle(run: Path) -> dict[str, Any]:
    result = json.loads((run / "result.json").read_text())
    kept = {key: result[key] for key in ("accuracy", "seed", "epochs", "wall_time_s", "recipe")}
    return {**kept, "curve": [_short(row) for row in result["curve"]]}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items() if v is not None}


def main() -> None:
    """Reads the runs and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--note", required=True)
    parser.add_argument("--confusion")
    parser.add_argument("--weights")
    parser.add_argument("--after", nargs="+", type=Path, help="earlier runs, in order: each gave the next its weights")
    parser.add_argument("--before", nargs="+", type=Path, help="later runs from these weights, which are not counted")
    arguments = parser.parse_args()
    record = collect(arguments.runs, arguments.note, arguments.confusion)
    if arguments.after:
        add_earlier_cycles(record, arguments.after)
    if arguments.before:
        record["later_cycles"] = [_cycle(run) for run in arguments.before]
    target = ROOT / "results" / f"{arguments.name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{target}: {record['accuracy']} % over seeds {record['seeds']}")
    if arguments.weights:
        source = find_checkpoint(arguments.runs[0]) / "model.safetensors"
        shutil.copyfile(source, ROOT / f"src/pdecnn/weights/{arguments.weights}.safetensors")


if __name__ == "__main__":
    main()
