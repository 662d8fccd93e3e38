"""Our own runs: those that were trained alike are one figure, those that were not stand beside each other."""

import json

from pdecnn.analysis.own_runs import OwnRuns, Training, find_runs, read_results
from pdecnn.analysis.tables import build_table, how_long


def run_of(accuracies, optimizer, epochs=30, limit=None, **kwargs):
    recipe = {"model": {"kwargs": kwargs}, "optimizer": {"name": optimizer}, "data": {"train_limit": limit}}
    return {"model": "mnist_toy_global", "dataset": "mnist", "accuracy": accuracies, "epochs": epochs, "recipe": recipe}


def test_runs_that_were_trained_otherwise_are_not_averaged(tmp_path):
    runs = [run_of([90.0, 92.0], "sgd"), run_of([94.0], "kron"), run_of([96.0], "kron"), run_of(80.0, "sgd", 5, 1000)]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    own = find_runs(read_results(tmp_path), "mnist_toy_global", "MNIST")
    assert (own.mean, own.accuracies, own.training) == (95.0, (94.0, 96.0), Training(30, "kron"))
    assert [(other.mean, other.describe()) for other in own.others] == [
        (91.0, "30 epochs, 2 seeds, sgd"),
        (80.0, "5 epochs of 1,000 images, 1 seed, sgd"),
    ]
    entry = next(e for e in build_table(2, results=tmp_path).entries if e.row.model == "mnist_toy_global")
    assert how_long(entry) == (
        "ours: 30 epochs, 2 seeds, kron; otherwise 91.00 %, 30 epochs, 2 seeds, sgd; "
        "otherwise 80.00 %, 5 epochs of 1,000 images, 1 seed, sgd"
    )
    assert entry.to_dict()["other_runs"].startswith("91.00 %")


def test_the_null_of_our_smallest_net_stands_beside_it(tmp_path):
    runs = [{**run_of(98.0, "muon", no_global=False), "model": "mnist_micro_global"}]
    runs.append({**run_of(70.0, "muon", no_global=True), "model": "mnist_micro_global"})
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    entry = next(e for e in build_table(2, results=tmp_path).entries if e.row.model == "mnist_micro_global")
    assert (entry.params, entry.accuracy, entry.own_null.mean) == (698, 98.0, 70.0)
    assert "without its Global layers: 70.00 %, 30 epochs, 1 seed, muon" in how_long(entry)


def test_no_runs_have_no_mean():
    assert (OwnRuns().mean, OwnRuns().epochs) == (None, "")


def test_a_run_with_a_teacher_says_so(tmp_path):
    alone, taught = run_of(90.0, "sgd"), run_of(91.0, "sgd")
    taught["recipe"]["distill"] = {"weight": 0.9}
    (tmp_path / "runs.json").write_text(json.dumps([alone, taught]))
    own = find_runs(read_results(tmp_path), "mnist_toy_global", "MNIST")
    assert own.note() == "ours: 30 epochs, 1 seed, sgd, distilled; otherwise 90.00 %, 30 epochs, 1 seed, sgd"
