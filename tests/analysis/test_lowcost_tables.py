"""The tables of the low-cost paper: counted numbers by hand, and printed ones beside them."""

import json

from pdecnn.analysis import lowcost_tables
from pdecnn.analysis.latency import Timing
from pdecnn.analysis.lowcost_tables import KEYS, UNSTABLE, accuracy_table, complexity_table
from pdecnn.analysis.tables import to_csv


def test_complexity_is_counted():
    c, n, m = 16, 8 * 8, 3
    rows = {row["name"]: row for row in complexity_table(channels=c, side=8).rows}
    assert rows["fully coupled"]["params"] == m * m * c * c
    assert rows["fully coupled"]["macs"] == n * m * m * c * c
    for name in ("linearmix", "explicit", "implicit", "circulant"):
        assert rows[name]["params"] == m * m * c + c * c
    assert rows["linearmix"]["macs"] == n * (m * m * c + c * c)
    stencil = rows["explicit"]["macs"] - n * (25 * c + c * c)  # one 5x5 pass; the rest makes the stencil
    assert 0 <= stencil <= 25 * 25 * c + 25 * c


def test_table_1_prints_what_the_paper_prints():
    """Four rows [RD, Table 1], each cost as it stands there; what is ours says so."""
    rows = complexity_table(channels=8, side=4).rows
    printed = {row["name"]: row["macs_published"] for row in rows if row["macs_published"] is not None}
    assert printed == {
        "fully coupled": "n m^2 c^2",
        "explicit": "n (m^2 c + c^2)",
        "implicit": "n (c log n + c^2)",
        "circulant": "(n c) log(c n)",
    }
    remarks = {row["name"]: row["remark"] for row in rows if row["remark"]}
    assert remarks == {
        "circulant": "printed without the n c^2 of M, which we count",
        "linearmix": "not in the paper's table",
    }


def test_table_2_holds_printed_and_own_numbers(tmp_path):
    (tmp_path / "run.json").write_text(
        json.dumps({"model": "lowcost_implicit_a", "dataset": "cifar10", "accuracy": [80.0, 82.0]})
    )
    table = accuracy_table(results=tmp_path)
    assert len(table.rows) == 36
    rows = {(row["model"], row["dataset"]): row for row in table.rows}
    implicit = rows["lowcost_implicit_a", "CIFAR-10"]
    assert (implicit["params_published"], implicit["params"], implicit["accuracy_published"]) == ("101K", 101_066, 88.7)
    assert (implicit["accuracy"], implicit["runs"]) == (81.0, 2)
    assert rows["lowcost_resnet_c", "CIFAR-100"]["params"] == 6_324_900
    assert rows["lowcost_resnet_c", "CIFAR-100"]["accuracy"] is None
    assert "accuracy" in table.columns
    assert ("lowcost_resnet_c", "CIFAR-10") not in rows  # the paper has none, and nor have we
    assert to_csv([table]).splitlines()[0] == ",".join(KEYS)


def test_a_net_of_ours_that_the_paper_did_not_train_has_a_row(tmp_path):
    run = {"model": "lowcost_resnet_c", "dataset": "cifar10", "accuracy": [29.5]}
    (tmp_path / "run.json").write_text(json.dumps(run))
    table = accuracy_table(results=tmp_path)
    (row,) = (r for r in table.rows if (r["model"], r["dataset"]) == ("lowcost_resnet_c", "CIFAR-10"))
    assert len(table.rows) == 37
    assert (row["accuracy"], row["accuracy_published"], row["params_published"]) == (29.5, None, None)
    assert row["remark"] == "not in the paper's table"


def test_circulant_nets_of_the_short_budget_say_why_they_did_not_learn(tmp_path):
    recipe = {"optimizer": {"name": "adam"}, "data": {"train_limit": 10_000}}
    short = {"dataset": "cifar10", "accuracy": 13.0, "epochs": 1, "recipe": recipe}
    runs = [{**short, "model": f"lowcost_{step}_a"} for step in ("circulant", "explicit")]
    runs.append({**short, "model": "lowcost_circulant_b", "epochs": 300, "accuracy": 88.0})
    guarded = {**recipe, "model": {"kwargs": {"guard": True}}}
    runs.append({**short, "model": "lowcost_circulant_a", "accuracy": 36.0, "recipe": guarded})
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    trained = {row["model"]: row["trained"] for row in accuracy_table(results=tmp_path).rows if row["accuracy"]}
    assert trained["lowcost_circulant_a"] == f"ours: 1 epoch of 10,000 images, 1 seed, adam; {UNSTABLE}" + (
        "; with guard=True 36.00 %, 1 epoch of 10,000 images, 1 seed, adam"
    )
    assert UNSTABLE not in trained["lowcost_explicit_a"] + trained["lowcost_circulant_b"]


def test_a_row_has_the_time_of_its_own_image_size(monkeypatch):
    seen = {}

    class Net:
        def eval(self):
            return self

        def __call__(self, x):
            seen["side"] = x.shape[-1]

    def time_them(calls, **options):
        found = {}
        for name, call in calls.items():
            call()
            found[name] = Timing(name, (seen["side"] / 1000,))
        return found

    monkeypatch.setattr(lowcost_tables.timm, "create_model", lambda *args, **options: Net())
    monkeypatch.setattr(lowcost_tables, "_count", lambda model, classes, side: (0, 0))
    monkeypatch.setattr(lowcost_tables.latency, "measure", time_them)
    table = accuracy_table(measure_latency=True, results=None)
    assert {(row["dataset"], row["latency_ms"]) for row in table.rows} == {
        ("CIFAR-10", 32.0), ("CIFAR-100", 32.0), ("STL-10", 96.0)
    }  # fmt: skip
