"""Sweeps: what varies, that processes share the points, that a killed one's point is taken again, and the command."""

import json
import os
import signal
from pathlib import Path

import pytest
from training_toys import assert_same_weights, recipe, single_thread, start, tiny_data, tiny_net
from typer.testing import CliRunner

from pdecnn.analysis.own_runs import find_runs, read_results
from pdecnn.analysis.sweep_table import sweep_rows
from pdecnn.cli import app
from pdecnn.training import RecipeError, fit
from pdecnn.training.space import parse_space
from pdecnn.training.sweep import Sweep

GRID = ["optimizer.lr=0.01,0.05", "seed=1,2,3"]


def open_sweep(folder, settings=GRID, sampler="grid", trials=20):
    return Sweep(recipe(), parse_space(settings), Path(folder), sampler, trials)


def train(settings, folder, on_step=None):
    data, net = tiny_data(), tiny_net()
    return fit(net, data, settings, run_dir=folder, resume=True, model_config={"name": "tiny"}, on_step=on_step)


def work(folder, kill_at=None):
    """What a process does: points until none is left; each is noted, and the first may be its last."""
    single_thread()

    def run(settings, home):
        with (Path(folder) / "taken.txt").open("a") as file:
            file.write(f"{os.getpid()} {home.name}\n")
        return train(settings, home, (lambda step, *_: step == kill_at and os.kill(os.getpid(), signal.SIGKILL)))

    open_sweep(folder).work(run)


def taken(folder):
    return [line.split(" ", 1) for line in (Path(folder) / "taken.txt").read_text().splitlines()]


def test_two_processes_share_the_points(tmp_path):
    both = [start(work, str(tmp_path)) for _ in range(2)]
    for process in both:
        process.join(400)
        assert process.exitcode == 0
    names = [name for _, name in taken(tmp_path)]
    assert len(names) == len(set(names)) == 6  # every point once
    points = open_sweep(tmp_path).points()
    assert [(p.params["optimizer.lr"], p.params["seed"]) for p in points] == [
        (lr, seed) for lr in ("0.01", "0.05") for seed in ("1", "2", "3")
    ]
    assert {p.status for p in points} == {"finished"}
    for row in sweep_rows(points):
        assert row.mean == pytest.approx(sum(row.accuracies) / 3)
        assert len(row.accuracies) == 3


def test_a_killed_process_leaves_its_point_to_the_next(tmp_path):
    folder = tmp_path / "killed"
    folder.mkdir()
    dead = start(work, str(folder), 10)
    dead.join(400)
    assert dead.exitcode == -signal.SIGKILL
    (_, name), *_ = taken(folder)
    sweep = open_sweep(folder)
    assert sorted(p.status for p in sweep.points()) == ["running"] + ["waiting"] * 5
    assert sweep.work(train)
    assert [p.status for p in sweep.points()] == ["finished"] * 6
    assert [row.to_dict()["runs"] for row in sweep_rows(sweep.points())] == [3, 3]
    params = next(p.params for p in sweep.points() if sweep.run_folder(p.params).name == name)
    settings = recipe().override(parse_space(GRID).overrides(params))
    train(settings, tmp_path / "whole")
    assert_same_weights(folder / name, tmp_path / "whole")  # it was resumed, to the bit
    assert open_sweep(folder).work(None)  # nothing is left to run


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_ranges_are_sampled(tmp_path, sampler):
    settings = ["optimizer.lr=1e-3..0.1", "data.batch_size=5..20", "epochs=2"]
    sweep = open_sweep(tmp_path, settings, sampler, 3)
    assert sweep.work(train)
    points = sweep.points()
    assert len(points) == 3
    for point in points:
        assert 1e-3 <= float(point.params["optimizer.lr"]) <= 0.1
        assert 5 <= int(point.params["data.batch_size"]) <= 20
        assert point.accuracy is not None
    assert open_sweep(tmp_path, settings, sampler, 3).work(None)
    with pytest.raises(RecipeError, match=r"sweep: optimizer\.lr is a range, of which there is no grid"):
        open_sweep(tmp_path / "grid", settings)


def test_a_failed_point_is_told_and_does_not_stop_the_others(tmp_path):
    sweep = open_sweep(tmp_path, ["optimizer.lr=1e30,0.05"])
    assert sweep.work(train)
    failed, finished = sweep.points()
    assert (failed.status, finished.status) == ("failed", "finished")
    assert "not finite" in failed.error or "nan" in failed.error
    (bad, good) = sweep_rows(sweep.points())
    assert (bad.failed, bad.mean, good.failed) == (1, None, 0)


@pytest.mark.parametrize(
    "error", [TypeError("no keyword 'epoch'"), KeyError("act"), ZeroDivisionError(), OSError("full")]
)
def test_whatever_ends_a_point_is_noted_and_the_others_go_on(tmp_path, error):
    def run(settings, folder):
        if settings.seed == 1:
            raise error
        return train(settings, folder)

    sweep = open_sweep(tmp_path, ["seed=1,2", "epochs=2"])
    assert sweep.work(run)
    failed, finished = sweep.points()
    assert (failed.status, finished.status) == ("failed", "finished")
    assert (str(error) or "ZeroDivisionError") in failed.error
    assert isinstance(error, OSError) or failed.error.startswith(type(error).__name__)


@pytest.mark.parametrize(
    "settings, sampler", [(["seed=1,2", "epochs=2"], "grid"), (["optimizer.lr=1e-3..0.1", "epochs=2"], "random")]
)
def test_failed_points_are_tried_again_when_asked_to(tmp_path, settings, sampler):
    tries = []

    def run(recipe, folder):
        tries.append(folder.name)
        if len(tries) in (1, 3):  # the first point, twice
            raise OSError("no route to host")
        return train(recipe, folder)

    sweep = open_sweep(tmp_path, settings, sampler, 2)
    assert sweep.work(run)
    sweep = open_sweep(tmp_path, settings, sampler, 2)
    assert sweep.work(None)  # the same command leaves it
    assert sorted(p.status for p in sweep.points()) == ["failed", "finished"]
    first = next(p.params for p in sweep.points() if p.status == "failed")
    for _ in range(2):
        assert sweep.retry() == 1
        assert [p.status for p in sweep.points() if p.params == first] == ["waiting"]
        assert sweep.work(run)
    assert tries[0] == tries[2] == tries[3] == sweep.run_folder(first).name
    assert len(tries) == 4
    assert [p.status for p in sweep.points()] == ["finished"] * 2
    assert sweep.retry() == 0
    assert sweep.work(None)


def test_a_check_sees_each_model_once_and_before_anything_is_made(tmp_path):
    seen = []
    space = parse_space(["K=1,2", "seed=1,2,3"])
    Sweep(recipe(), space, tmp_path / "good", check=lambda settings: seen.append(settings.model.kwargs["K"]))
    assert seen == [1, 2]

    def check(settings):
        if settings.model.kwargs["K"] == 2:
            raise TypeError("not 2")

    with pytest.raises(RecipeError, match="no run is possible with K=2, seed=1: not 2"):
        Sweep(recipe(), space, tmp_path / "bad", check=check)
    assert not (tmp_path / "bad").exists()


def test_another_sweep_in_the_folder_is_refused(tmp_path):
    open_sweep(tmp_path)
    with pytest.raises(ValueError, match="holds a sweep with another axes"):
        open_sweep(tmp_path, ["seed=1,2"])


@pytest.mark.parametrize(
    "settings, message",
    [
        ([], "nothing varies"),
        (["epochs=3"], "nothing varies"),
        (["seed"], r"expected key=a,b,c or key=low\.\.high, got 'seed'"),
        (["seed=1,,2"], "a value is missing between the commas of '1,,2'"),
        (["seed=1,1"], "a value stands twice in '1,1'"),
        (["seed=1,2", "seed=3,4"], "seed is given twice"),
        (["optimizer.lr=0.1..0.01"], "with low below high"),
        (["optimizer.rate=1,2"], r"there is no setting 'optimizer\.rate'"),
        (["epochs=1,none"], "epochs: Input should be a valid integer"),
    ],
)
def test_mistakes_are_named(tmp_path, settings, message):
    with pytest.raises(RecipeError, match=message):
        open_sweep(tmp_path, settings)


def test_the_command(tmp_path):
    varied = [f"-o{x}" for x in ("K=1,2", "seed=1,2", "epochs=1", "data.train_limit=128", "data.test_limit=100")]
    arguments = ["sweep", "quick/fashion-mini", *varied, "--output", str(tmp_path / "sweep"), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout.splitlines()[-1])
    assert [row["params"] for row in content["rows"]] == [{"K": "1"}, {"K": "2"}]
    assert all(row["runs"] == 2 and row["std"] is not None for row in content["rows"])
    assert content == json.loads((tmp_path / "sweep/sweep.json").read_text())
    assert (tmp_path / "sweep/sweep.png").read_bytes().startswith(b"\x89PNG")
    run = next((tmp_path / "sweep").glob("K=2-seed=1*"))
    kwargs = json.loads((run / "result.json").read_text())["recipe"]["model"]["kwargs"]
    assert kwargs["K"] == 2
    kept = ["--keep", str(tmp_path / "results/runs.json")]
    shown = CliRunner().invoke(app, [*arguments[:-1], "--show", *kept], env={"COLUMNS": "100"})
    assert shown.exit_code == 0
    own = find_runs(read_results(tmp_path / "results"), "cifar_resnet_tiny_global", "fashion-mini", {"K": 2})
    assert own.mean == pytest.approx(content["rows"][1]["mean"])
    assert own.describe() == "1 epoch of 128 images, 2 seeds, sgd at 0.1"
    assert f"{content['rows'][0]['mean']:.2f}" in shown.output
    wrong = CliRunner().invoke(app, ["sweep", "quick/fashion-mini", "-o", "seed=1,2", "--sampler", "best"])
    assert wrong.exit_code == 2
    assert "grid, random, tpe, got 'best'" in " ".join(wrong.output.replace("│", " ").split())


def said(result):
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    "settings, message",
    [
        (["K=1,x"], "no run is possible with K=x: GlobalLayer: K (number of time steps) must be an int"),
        (["epoch=1,2"], "cifar_resnet_tiny_global takes no 'epoch', got model.kwargs.epoch=1. Close: epochs."),
        (["lr=0.1..0.2", "--sampler", "random"], "takes no 'lr', got model.kwargs.lr=0.1. Close: optimizer.lr."),
        (["seed=1,2", "-o", "widths=7"], "cannot be built with model.kwargs.widths=7: TypeError: 'int' object is not"),
        (["seed=1,2", "-o", "model.name=resnet19"], "no model named 'resnet19'. Close: "),
    ],
)
def test_models_that_cannot_be_are_named_before_any_training(tmp_path, settings, message):
    folder = tmp_path / "sweep"
    result = CliRunner().invoke(app, ["sweep", "quick/fashion-mini", "--output", str(folder), "-o", *settings])
    assert result.exit_code == 2
    assert "Invalid value for -o" in said(result)
    assert message in said(result)
    assert not folder.exists()


def test_an_unknown_recipe_is_named(tmp_path):
    result = CliRunner().invoke(app, ["sweep", "quick/fashion-mni", "-o", "K=1,2"])
    assert result.exit_code == 2
    assert "Invalid value for RECIPE: recipe: no recipe named 'quick/fashion-mni'. Close: 'quick/fashion-mini'" in (
        said(result)
    )
    (tmp_path / "mine.yaml").write_text("epochs: none")
    result = CliRunner().invoke(app, ["sweep", "--config", str(tmp_path / "mine.yaml"), "-o", "K=1,2"])
    assert "Invalid value for --config" in said(result)


def test_the_command_tries_failed_points_again(tmp_path, monkeypatch):
    from pdecnn import training

    errors = [OSError("no space left")]

    def fail_once(*args, **kwargs):
        if errors:
            raise errors.pop()
        return fit(*args, **kwargs)

    monkeypatch.setattr(training, "fit", fail_once)
    varied = [f"-o{x}" for x in ("seed=1,2", "epochs=1", "data.train_limit=64", "data.test_limit=50")]
    arguments = ["sweep", "quick/fashion-mini", *varied, "--output", str(tmp_path)]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "1 failed: no space left" in said(first)
    assert "1 of 2 points failed; the same command with --retry tries them again." in said(first)
    assert CliRunner().invoke(app, [*arguments, "--show", "--retry"]).exit_code == 2
    again = CliRunner().invoke(app, [*arguments, "--retry"])
    assert again.exit_code == 0, again.output
    assert "1 point that failed: tried again." in said(again)
    assert "1 failed" not in said(again)
    assert [row["runs"] for row in json.loads((tmp_path / "sweep.json").read_text())["rows"]] == [2]
