"""Table 1 of the hyperbolic paper: twelve rows, each count to its printed precision, and own runs by activation."""

import json

from typer.testing import CliRunner

from pdecnn.analysis.hyperbolic_tables import ROWS, build_tables
from pdecnn.analysis.published import rounds_to
from pdecnn.cli import app


def test_every_count_rounds_to_the_printed_figure(tmp_path):
    run = {"model": "hyperbolic50_eq3", "dataset": "imagenet100", "accuracy": 60.0}
    run["recipe"] = {"model": {"kwargs": {"num_classes": 100, "activation": "hardball", "activation_at": "ds"}}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (table,) = build_tables(results=tmp_path)
    assert len(table.rows) == len(ROWS) == 12
    for row in table.rows:
        assert rounds_to(row["params"], row["params_published"]), row
    assert [row["accuracy_published"] for row in table.rows] == [
        84.52, 82.91, 82.06, 82.34, 83.50, 83.66, 84.24, 84.58, 81.88, 78.64, 82.52, 84.96,
    ]  # fmt: skip
    activations = ["", "", "relu@all", "hardtanh@ds", "hardball@ds", *["softball@ds"] * 7]
    assert [row["activation"] for row in table.rows] == activations
    assert [row["accuracy"] for row in table.rows if row["accuracy"] is not None] == [60.0]
    assert table.rows[4]["accuracy"] == 60.0  # the one with the hard ball


def test_the_command_prints_it(tmp_path):
    result = CliRunner().invoke(app, ["tables", "hyperbolic", "--results", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for words in ("hyperbolic50_eq7_nows_x6", "softball@ds", "84.96", "8.95M"):
        assert words in result.output
