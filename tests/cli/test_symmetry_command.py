import json
import re

import timm
from typer.testing import CliRunner

from pdecnn.cli import app
from pdecnn.training import load_checkpoint


def run(*arguments):
    return CliRunner().invoke(app, ["symmetry", *arguments], env={"COLUMNS": "200"})


def load(folder):
    return load_checkpoint(folder).model


def test_prints_the_group_and_the_reason_of_each_stage():
    result = run("cifar_hyperbolic_cp")
    assert result.exit_code == 0
    for part in ("positive monomial(16)", "O(32)", "O(64)", "2016", "ReLU 'stem.act'", "HardBall 'stages.1.0.act'"):
        assert part in result.output


def test_lifts_and_verifies():
    result = run("cifar_hyperbolic_eq3", "--lift", "--verify", "--size", "16")
    assert result.exit_code == 0, result.output
    assert "O(64)" in result.output
    exact, single = (float(e) for e in re.findall(r"relative output error (\S+)", result.output))
    assert exact < 1e-10
    assert single < 1e-4


def test_sparsifies_to_the_generic_bound():
    result = run("cifar_hyperbolic_cp", "--sparsify", "--size", "16")
    assert result.exit_code == 0, result.output
    assert "exactly zero 2512 (2.3%); generic bound 2512" in result.output


def test_says_what_it_cannot_do():
    assert "no stage has a symmetry that can create zeros" in run("cifar_hyperbolic_eq3", "--sparsify").output.replace(
        "\n", " "
    )
    assert "are understood, got ResNet" in run("resnet18").output
    assert "no model named 'hyperbolic_51'" in run("hyperbolic_51").output


def test_a_trained_net_is_turned_and_saved_and_is_the_same_net(tmp_path):
    """The weights that ship, not random ones: turned, saved, opened again by name of the folder, and as accurate."""
    folder = tmp_path / "turned"
    trained = "fashion_hyperbolic_cp.fashion_mini"
    result = run(trained, "--transform", "--data", "fashion-mini", "--output", str(folder))
    assert result.exit_code == 0, result.output
    assert "weights: random" not in result.output
    before, after = re.findall(r"accuracy \w+: (\S+) %", result.output)
    assert float(before) > 70
    assert abs(float(before) - float(after)) <= 0.1
    again = run(str(folder), "--verify")
    assert again.exit_code == 0, again.output
    assert all(float(e) < 1e-4 for e in re.findall(r"relative output error (\S+)", again.output))
    report = CliRunner().invoke(app, ["validate", str(folder), "--data", "fashion-mini", "--json"])
    assert report.exit_code == 0, report.output
    assert json.loads(report.stdout)["accuracy"] == float(after)
    original = timm.create_model(trained, pretrained=True)
    first, second = (net.stages[1][0].mix.weight for net in (original, load(folder)))
    assert (first - second).abs().max() > 0.01  # other weights indeed


def test_a_trained_net_is_sparsified_and_saved(tmp_path):
    folder = tmp_path / "sparse"
    result = run("fashion_hyperbolic_cp.fashion_mini", "--sparsify", "--data", "fashion-mini", "--output", str(folder))
    assert result.exit_code == 0, result.output
    bound = int(re.search(r"generic bound (\d+)", result.output)[1])
    assert bound == 16 * 15 // 2 + 32 * 31 // 2
    zeros = sum((p == 0).sum().item() for p in load(folder).parameters())
    assert zeros >= bound
    before, after = re.findall(r"accuracy \w+: (\S+) %", result.output)
    assert abs(float(before) - float(after)) <= 0.1


def test_a_lifted_net_is_saved(tmp_path):
    result = run("cifar_hyperbolic_eq3", "--lift", "--transform", "--size", "16", "--output", str(tmp_path / "lifted"))
    assert result.exit_code == 0, result.output
    assert type(load(tmp_path / "lifted").blocks()[0]).__name__ == "LiftedBlock"


def test_there_is_something_to_save():
    assert "only with --transform or --sparsify" in " ".join(run("cifar_hyperbolic_cp", "--output", "x").output.split())
