"""Table 1 of the hyperbolic paper: twelve rows, each count to its printed precision, and own runs by activation."""

import json

import timm
import torch
from typer.testing import CliRunner

from pdecnn.analysis import hyperbolic_tables
from pdecnn.analysis.hyperbolic_tables import ABLATION, ROWS, build_tables
from pdecnn.analysis.latency import Timing
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
    for words in ("(7) no ws x6", "softball@ds", "84.96", "8.95M"):
        assert words in result.output


def test_in_80_columns_every_row_is_one_line(tmp_path):
    run = {"model": "fashion_hyperbolic_cp", "dataset": "fashion-mini", "accuracy": 81.25, "epochs": 2}
    (tmp_path / "run.json").write_text(json.dumps(run))
    result = CliRunner().invoke(app, ["tables", "hyperbolic", "--results", str(tmp_path)], env={"COLUMNS": "80"})
    lines = result.output.splitlines()
    for row in (*ROWS, *ABLATION):
        assert any(line.startswith(row.name) and row.activation in line for line in lines), row.name
    assert sum("81.25" in line for line in lines) == 1


def test_the_small_nets_are_the_rows_by_options():
    """The same options of the paper's size give the networks of the rows, parameter by parameter."""
    assert len(ABLATION) == 10 + 2 + 1 + 2
    for row, small in zip(ROWS[2:], ABLATION, strict=False):
        with torch.device("meta"):
            named = timm.create_model(row.model, num_classes=100, **row.options)
            built = timm.create_model("hyperbolic50_eq3", num_classes=100, **small.options)
        shapes = [{k: v.shape for k, v in net.state_dict().items()} for net in (named, built)]
        assert shapes[0] == shapes[1], row.name


def test_no_small_net_was_trained_no_table(tmp_path):
    assert len(build_tables(results=tmp_path)) == 1


def test_each_row_has_the_time_of_its_own_activation(monkeypatch):
    made = []

    class Net:
        def __init__(self, name, options):
            self.options = (name, options.get("activation"), options.get("activation_at"))

        def eval(self):
            return self

        def __call__(self, x):
            made.append(self.options)

    def time_them(calls, **options):
        for call in calls.values():
            call()
        return {name: Timing(name, (float(made.index(made[i])),)) for i, name in enumerate(calls)}

    nets = lambda name, num_classes=0, **options: Net(name, options)  # noqa: E731
    monkeypatch.setattr(hyperbolic_tables.latency, "measure", time_them)
    monkeypatch.setattr(hyperbolic_tables.timm, "create_model", nets)
    timings = hyperbolic_tables._latencies(None)
    assert len(timings) == len(set(timings.values())) == len(set(made)) == 12
