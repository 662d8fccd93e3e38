import json

import pytest
from typer.testing import CliRunner

from pdecnn.cli import app

run = CliRunner().invoke


def test_prints_a_table_with_three_labelled_counts_and_what_was_not_counted():
    result = run(app, ["profile", "resnet18", "--input", "3,32,32"])
    assert result.exit_code == 0
    for words in ("MACs exact", "MACs conv+fc", "MACs thop 0.0.31", "11,689,512", "not counted", "batch_norm"):
        assert words in result.output


def test_json_and_csv(tmp_path):
    result = run(
        app,
        [
            "profile",
            "resnet18",
            "--input",
            "3,32,32",
            "--num-classes",
            "10",
            "--json",
            "--csv",
            str(tmp_path / "c.csv"),
        ],
    )
    report = json.loads(result.output)
    assert report["params"] == 11_689_512 - 513_000 + 5_130
    assert report["input_shapes"] == [[1, 3, 32, 32]]
    assert (tmp_path / "c.csv").read_text().startswith("name,type,calls,params")


def test_input_size_is_the_models_own_by_default():
    report = json.loads(run(app, ["profile", "mobilenetv3_small_050", "--json"]).output)
    assert report["input_shapes"] == [[1, 3, 224, 224]]


def test_an_unknown_model_is_told_with_those_that_are_close():
    result = run(app, ["profile", "resnet81"])
    assert result.exit_code == 1
    assert "no model named 'resnet81'. Close: 'resnet" in result.output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["resnet18", "--input", "3,x"], "expected positive numbers such as 3,32,32, got '3,x'"),
        (["resnet18", "--input", "3,0,2"], "got '3,0,2'"),
    ],
)
def test_mistakes_are_named(arguments, message):
    result = run(app, ["profile", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_no_number_is_cut_in_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = run(app, ["profile", "densenet121"]).output
    table, _, summary = said.partition("parameters   ")
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= 80
    for words in ("7.98M", "2.83G", "2.87G", "136M"):
        assert words in table
    assert "7,978,856 unique" in summary
