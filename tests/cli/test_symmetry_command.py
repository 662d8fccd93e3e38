import re

from typer.testing import CliRunner

from pdecnn.cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["symmetry", *arguments], env={"COLUMNS": "200"})


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
