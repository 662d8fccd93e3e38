"""Our own runs: those that were trained alike are one figure, those that were not stand beside each other."""

import json
from itertools import product

import pytest
from rich.console import Console

from pdecnn.analysis import hyperbolic_tables, lowcost_tables, published
from pdecnn.analysis.own_runs import OwnRuns, find_runs, read_results
from pdecnn.analysis.tables import TAUGHT, build_table, how_long
from pdecnn.training import load_recipe
from pdecnn.training.recipe import list_recipes

PAPER = [name for name in list_recipes() if name.startswith("paper/")]
ROWS = [
    *((row.model, row.dataset, row.options) for row in published.ROWS if row.model),
    *((row.model, hyperbolic_tables.OWN_DATASET, row.options) for row in hyperbolic_tables.ROWS),
    *(
        (f"lowcost_{step}_{size}", dataset, {})
        for step, (dataset, size) in product(lowcost_tables.ACCURACIES, lowcost_tables.COLUMNS)
    ),
]


def result_of(name, *settings):
    """What a run of a recipe leaves, with an accuracy of 50 %."""
    recipe = load_recipe(name).override(list(settings))
    run = {"model": recipe.model.name, "dataset": recipe.data.name, "accuracy": 50.0, "epochs": recipe.epochs}
    return {**run, "recipe": recipe.model_dump(mode="json")}


def rows_of(folder, run):
    """The rows of the tables in which a run appears."""
    (folder / "run.json").write_text(json.dumps(run))
    found = read_results(folder)
    return [row for row in ROWS if find_runs(found, *row).accuracies]


def run_of(accuracies, optimizer, epochs=30, limit=None, **kwargs):
    recipe = {"model": {"kwargs": kwargs}, "optimizer": {"name": optimizer}, "data": {"train_limit": limit}}
    return {"model": "mnist_toy_global", "dataset": "mnist", "accuracy": accuracies, "epochs": epochs, "recipe": recipe}


def test_runs_that_were_trained_otherwise_are_not_averaged(tmp_path):
    runs = [run_of([90.0, 92.0], "sgd"), run_of([94.0], "kron"), run_of([96.0], "kron"), run_of(80.0, "sgd", 5, 1000)]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    own = find_runs(read_results(tmp_path), "mnist_toy_global", "MNIST")
    assert (own.mean, own.accuracies, own.training.epochs) == (95.0, (94.0, 96.0), 30)
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


def test_runs_of_other_rates_or_schedules_are_not_averaged_and_newer_files_are_no_others(tmp_path):
    slow, fast, constant, newer = (run_of(accuracy, "sgd") for accuracy in (90.0, 92.0, 88.0, 94.0))
    for run, lr in ((slow, 0.01), (fast, 0.05), (constant, 0.05), (newer, 0.05)):
        run["recipe"]["optimizer"]["lr"] = lr
    constant["recipe"]["schedule"] = {"name": "constant"}
    newer["recipe"] |= {"seed": 3, "compile": True, "frozen_norms": False, "data": {"augment": {"shrink": 0}}}
    (tmp_path / "runs.json").write_text(json.dumps([slow, fast, constant, newer]))
    own = find_runs(read_results(tmp_path), "mnist_toy_global", "MNIST")
    assert (own.accuracies, own.describe()) == ((92.0, 94.0), "30 epochs, 2 seeds, sgd at 0.05")
    assert [(o.mean, o.describe()) for o in own.others] == [
        (90.0, "30 epochs, 1 seed, sgd at 0.01"),
        (88.0, "30 epochs, 1 seed, sgd at 0.05"),
    ]


def test_the_null_of_our_smallest_net_stands_beside_it(tmp_path):
    runs = [{**run_of(98.0, "muon", no_global=False), "model": "mnist_micro_global"}]
    runs.append({**run_of(70.0, "muon", no_global=True), "model": "mnist_micro_global"})
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    entry = next(e for e in build_table(2, results=tmp_path).entries if e.row.model == "mnist_micro_global")
    assert (entry.params, entry.accuracy, entry.own_null.mean) == (694, 98.0, 70.0)
    assert "without its Global layers: 70.00 %, 30 epochs, 1 seed, muon" in how_long(entry)


def test_no_runs_have_no_mean():
    assert (OwnRuns().mean, OwnRuns().epochs) == (None, "")


def test_a_run_with_a_teacher_says_so(tmp_path):
    alone, taught = run_of(90.0, "sgd"), run_of(91.0, "sgd")
    taught["recipe"]["distill"] = {"weight": 0.9}
    (tmp_path / "runs.json").write_text(json.dumps([alone, taught]))
    own = find_runs(read_results(tmp_path), "mnist_toy_global", "MNIST")
    assert own.note() == "ours: 30 epochs, 1 seed, sgd, distilled; otherwise 90.00 %, 30 epochs, 1 seed, sgd"


@pytest.mark.parametrize("name", PAPER)
def test_a_run_of_every_recipe_of_a_paper_has_its_row(name, tmp_path):
    run = result_of(name)
    rows = rows_of(tmp_path, run)
    assert rows
    assert {model for model, _, _ in rows} == {run["model"]}
    assert len({dataset for _, dataset, _ in rows}) == 1


def test_all_recipes_of_the_papers_are_tried():
    assert len(PAPER) > 50


@pytest.mark.parametrize(
    "name, setting, same",
    [
        ("paper/lowcost-explicit", "h=0.1", True),
        ("paper/lowcost-explicit", "kernel_size=3", True),
        ("paper/lowcost-explicit", "steps=4", True),
        ("paper/lowcost-explicit", "kernel_size=5", False),
        ("paper/lowcost-circulant", "guard=true", False),
        ("paper/hyperbolic-eq3", "activation=softball", True),
        ("paper/hyperbolic-eq3", "widths=[64,128,256,512]", True),
        ("paper/hyperbolic-eq3", "shared=false", False),
        ("paper/efficientnet-b0-global", "layout=counts", True),
        ("paper/efficientnet-b0-global", "layout=code", False),
        ("paper/resnet32-global", "K=5", True),
        ("paper/resnet32-global", "no_global=true", False),
    ],
)
def test_a_keyword_with_the_value_it_has_anyway_is_no_other_network(name, setting, same, tmp_path):
    assert bool(rows_of(tmp_path, result_of(name, f"model.kwargs.{setting}"))) == same


def test_the_f_of_another_equation_is_not_the_default(tmp_path):
    """The CP net has two stencils, which is its default; that of Equation (3) has four, which is another default."""
    runs = [{"model": hyperbolic_tables.SMALL, "dataset": "fashion-mini", "accuracy": a} for a in (50.0, 60.0)]
    for run, options in zip(runs, ({"equation": "eq3", "f": 2}, {"equation": "eq3"}), strict=True):
        run["recipe"] = {"model": {"kwargs": options}}
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    assert find_runs(read_results(tmp_path), hyperbolic_tables.SMALL, "fashion-mini", {"equation": "eq3"}).mean == 60.0


@pytest.mark.parametrize(
    "settings", [["data.stream.num_classes=37"], ["data.stream.image_size=64"], ["data.name=hfds/food101"]]
)
def test_any_other_folder_is_not_imagenet(settings, tmp_path):
    assert rows_of(tmp_path, result_of("paper/hyperbolic-eq3", *settings)) == []


def test_a_model_that_nobody_knows_has_no_defaults(tmp_path):
    run = {"model": "mine", "dataset": "cifar10", "accuracy": 50.0, "recipe": {"model": {"kwargs": {"h": 0.1}}}}
    (tmp_path / "run.json").write_text(json.dumps([run, {**run, "model": "pdecnn_model"}]))
    found = read_results(tmp_path)
    for model in ("mine", "pdecnn_model"):
        assert find_runs(found, model, "CIFAR-10", {"h": 0.1}).mean == 50.0
        assert find_runs(found, model, "CIFAR-10").mean is None


def test_a_figure_with_a_teacher_has_a_star_in_its_cell(tmp_path):
    alone = run_of(90.0, "sgd")
    taught = {**run_of(91.0, "sgd"), "model": "mnist_toy_conv"}
    taught["recipe"]["distill"] = {"weight": 0.9}
    (tmp_path / "runs.json").write_text(json.dumps([alone, taught]))
    with (console := Console(width=100)).capture() as capture:
        console.print(build_table(2, results=tmp_path))
    lines = capture.get().splitlines()
    assert any(line.startswith("toy CNN") and "91.00* " in line for line in lines)
    assert any(line.startswith("toy PDE") and "90.00 " in line for line in lines)
    assert any(TAUGHT[:30] in line for line in lines)
