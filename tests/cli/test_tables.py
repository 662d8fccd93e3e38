import csv
import json

import pytest
from typer.testing import CliRunner

from pdecnn.cli import app

run = CliRunner().invoke


def test_one_table_as_json_and_csv(tmp_path):
    path = tmp_path / "table.csv"
    result = run(app, ["tables", "1", "--json", "--csv", str(path), "--results", str(tmp_path)])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)
    assert [row["params"] for row in rows] == [466_906, 1_113_850, 161_850]
    with path.open() as file:
        assert len(list(csv.DictReader(file))) == 3


def test_one_table_as_text(tmp_path):
    result = run(app, ["tables", "1", "--results", str(tmp_path)])
    assert result.exit_code == 0
    assert "Table 1" in result.output


def test_latency_is_measured_on_request(tmp_path):
    result = run(app, ["tables", "1", "--latency", "--json", "--results", str(tmp_path)])
    assert result.exit_code == 0, result.output
    milliseconds = [row["latency_ms"] for row in json.loads(result.output)]
    assert 0 < milliseconds[0] < 1000
    assert 0 < milliseconds[2] < 1000


@pytest.mark.parametrize("which", ["9", "0", "three"])
def test_mistakes_are_named(which):
    result = run(app, ["tables", which])
    assert result.exit_code == 2
    assert f"from 1 to 8, 'lowcost' or 'hyperbolic', got '{which}'" in " ".join(result.output.replace("│", " ").split())
