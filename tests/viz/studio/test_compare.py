"""Compare: every run of every result file."""

import json
from pathlib import Path

import pytest

from pdecnn.viz.studio import runs, serving

ROOT = Path(__file__).parents[3]


def test_all_runs_of_the_checkout_are_read():
    entries, troubles = runs.read_runs([ROOT / "results", ROOT / "benchmarks/results"])
    assert troubles == []
    found = {(e.source, e.name): e for e in entries}
    example = found["frontier-fashion.json", "pde K=1, 2 blocks"]
    text = (ROOT / "benchmarks/results/frontier-fashion.json").read_text()
    nets = json.loads(text)["nets"]  # there are more now and then, and they are timed anew
    kept = nets["pde K=1, 2 blocks"]
    tests = [seed["test"] for seed in kept["seeds"].values()]
    mean, ms = sum(tests) / len(tests), kept["times"]["onnx"]["1"]["ms"]
    assert example.accuracy == pytest.approx(mean)
    assert example.times["onnx"] == ms
    assert found["cifar10-tiny-global.json", "cifar_resnet_tiny_global"].times == {}
    assert {"cifar10", "mnist", "fashion", "imagenette"} <= set(runs.datasets(entries))
    some = runs.chosen(entries, ["fashion"], "PDE")
    pdes = {name for name, net in nets.items() if "pde" in name and net["seeds"]}
    assert {e.name for e in some} == pdes >= {"pde", "pde, 2 blocks", "pde K=1, 2 blocks"}
    assert runs.picture(some, "onnx").count('class="point"') == len(pdes)
    lines = (
        f"pde K=1, 2 blocks on fashion: {mean:.2f} %, {ms:.3f} ms",
        f"46,018 parameters, 10 epochs, mean of {len(tests)} seeds",
    )
    assert "; ".join((*lines, "frontier-fashion.json")) in runs.picture(some, "onnx")
    assert runs.listing(some, "onnx").count("<tr>") == 1 + len(pdes)
    assert "nothing to draw yet" in runs.picture(runs.chosen(entries, ["mnist"], ""), "onnx")


def test_missing_and_damaged_results_are_told(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text('{"teacher": {"test": 1}, "nets": {"a": 3}}')
    (tmp_path / "other.json").write_text('[1, {"accuracy": 3}]')
    entries, troubles = runs.read_runs([tmp_path, tmp_path / "none"])
    assert entries == []
    assert [line.partition(" ")[0] for line in troubles] == ["bad.json", "odd.json", "There"]
    times = {"onnx": {"1": {"ms": 2}}}
    nets = {
        "later": {"seeds": {}, "times": times, "params": 3},
        "now": {"seeds": {"0": {"test": 80}}, "times": times, "params": 3},
    }
    nets["untimed"] = {"seeds": {"0": {"test": 70}}, "params": 3}
    run = {"teacher": {"test": 90, "times": times}, "nets": nets}
    (tmp_path / "frontier-some.json").write_text(json.dumps(run))
    nets["odd"] = 3
    (tmp_path / "odd.json").write_text(json.dumps(run))
    entries, troubles = runs.read_runs([tmp_path])
    assert [(e.name, e.accuracy, e.source) for e in entries] == [
        ("teacher", 90, "frontier-some.json"),
        ("now", 80, "frontier-some.json"),  # the other one is not trained yet
        ("untimed", 70, "frontier-some.json"),
    ]
    assert [line.partition(" ")[0] for line in troubles] == ["bad.json", "odd.json"]
    assert serving.default_results() == () or Path("results").is_dir()


def test_networks_without_times_are_timed_here():
    built = {"builder": "timm", "name": "mnist_toy_conv", "kwargs": {}}
    entries = [
        runs.Entry("toy", "mnist", 91.0, "a.json", {}, model=built),
        runs.Entry("mine", "mnist", 92.0, "b.json", {}, model={"builder": "custom", "name": "os:getcwd"}),
        runs.Entry("known", "mnist", 93.0, "c.json", {"onnx": 1.0}),
    ]
    timed, troubles = runs.measure_here(entries)
    assert timed[0].times[runs.HERE] > 0
    assert timed[0].params == 524
    assert timed[1].times == {}
    assert timed[2] is entries[2]
    assert len(troubles) == 1
    assert troubles[0].startswith("mine cannot be built here")
