"""`pdecnn condense` from the command line."""

import json
import sys
from importlib.util import find_spec

import pytest
import timm
import torch
from typer.testing import CliRunner

import pdecnn
from pdecnn.cli import app
from pdecnn.condensation import Plan
from pdecnn.condensation.replacements import _BUILDS
from pdecnn.condensation.search import CHOICES
from pdecnn.training import load_checkpoint

run = CliRunner().invoke


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    result = run(app, ["condense", "timm:cifar_resnet32", "--dry-run", "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "stages.0.0-4" in result.output
    assert not (tmp_path / "out").exists()


def test_dry_run_as_json_is_a_plan():
    result = run(app, ["condense", "torchvision:mobilenet_v2", "--input", "3,64,64", "--dry-run", "--json", "--K", "2"])
    assert result.exit_code == 0, result.output
    plan = Plan.from_dict(json.loads(result.stdout))
    assert {r.K for r in plan.runs} == {2}
    assert plan.base == {"builder": "torchvision", "name": "mobilenet_v2", "kwargs": {"num_classes": 1000}}


def test_dry_run_of_a_job_reads_no_images_and_writes_nothing(tmp_path):
    args = ["condense", "timm:cifar_resnet32", "--data", str(tmp_path / "none"), "--dry-run"]
    result = run(app, [*args, "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "stages.0.0-4" in result.output
    assert not (tmp_path / "out").exists()


def test_dry_run_of_the_example_is_the_plan_of_its_job():
    result = run(app, ["condense", "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    assert {(r.keep, r.K) for r in Plan.from_dict(json.loads(result.stdout)).runs} == {(2, 1)}


def test_a_job_that_is_not_finished_is_not_overwritten(tmp_path):
    (tmp_path / "job.json").write_text("{}")
    result = run(app, ["condense", "timm:cifar_resnet32", "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds a job that was not finished. Continue it with --resume" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_a_defect_keeps_its_traceback(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise TypeError("a defect")

    monkeypatch.setattr("pdecnn.condensation.plan", broken)
    result = run(app, ["condense", "timm:cifar_resnet32", "--dry-run"])
    assert isinstance(result.exception, TypeError)


def test_a_model_is_condensed_and_written(tmp_path):
    args = ["condense", "timm:cifar_resnet32", "--budget", "params=60%", "--output", str(tmp_path), "--json"]
    result = run(app, args)
    assert result.exit_code == 0, result.output
    after = json.loads(result.stdout)["after"]["params"]
    assert after <= 0.6 * 466_906
    model = load_checkpoint(tmp_path / "student").model
    assert sum(p.numel() for p in model.parameters()) == after
    assert Plan.load(tmp_path / "plan.json").runs


def test_a_function_of_the_user_is_taken(tmp_path, monkeypatch):
    (tmp_path / "mynets.py").write_text(
        "from timm import create_model\ndef make():\n    return create_model('cifar_resnet32', in_chans=1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run(app, ["condense", "mynets:make", "--input", "1,28,28", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "1x1x28x28" in result.output


def test_a_module_in_the_current_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "nets_here.py").write_text("from timm import create_model\nnet = create_model('cifar_resnet32')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    result = run(app, ["condense", "nets_here:net", "--input", "3,32,32", "--dry-run"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "name, message",
    [("needs", "does not work without arguments"), ("pair", "gave a tuple, expected a torch.nn.Module")],
)
def test_functions_that_give_no_model_are_told(name, message, tmp_path, monkeypatch):
    (tmp_path / "nets_bad.py").write_text("def needs(depth): pass\ndef pair(): return 1, 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run(app, ["condense", f"nets_bad:{name}", "--dry-run"])
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "args, message",
    [
        (["timm:resnet5O"], "no model named 'resnet5O'. Close:"),
        (["nowhere:make"], "cannot import 'nowhere'"),
        (["torchvision:vgg99"], "torchvision has no model named 'vgg99'. Close: 'vgg"),
        (["torchvision:resnet18", "--pretrained"], "only timm models come pretrained"),
        (["mynets:make", "--pretrained"], "--pretrained is for models of timm"),
        (["timm:cifar_resnet32", "--input", "1,32,32"], "does not run on example_inputs"),
        (["timm:cifar_resnet32", "--budget", "params=1%"], "cannot be met"),
    ],
)
def test_errors_are_one_line(args, message, tmp_path):
    result = run(app, ["condense", *args, "--output", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "args, message",
    [
        (["--input", "3,64,64"], "--input: is for a MODEL"),
        (["--pretrained"], "--pretrained: is for a MODEL"),
        (["timm:cifar_resnet32", "--train-teacher"], "--train-teacher: is for the embedded example"),
        (["timm:cifar_resnet32", "--runtime", "onnx"], "--runtime: is for jobs with --data; without, latency_ms"),
        (["timm:cifar_resnet32", "--latency-table", "x.json"], "--latency-table: is for jobs with --data"),
        (["timm:cifar_resnet32", "--null"], "--null: is for jobs with --data"),
        (["timm:cifar_resnet32", "--dry-run", "--budget", "accuracy=-0.5"], "--budget: accuracy=... needs --data"),
        (["--dry-run", "--budget", "params=50%"], "--dry-run: cannot say what a budget leads to"),
        (
            ["resnet18", "--data", "photos", "--dry-run", "--budget", "params=50%"],
            "--dry-run: cannot say what a budget",
        ),
    ],
)
def test_options_of_the_other_use_are_refused(args, message):
    result = run(app, ["condense", *args])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_a_malformed_budget_is_a_usage_error():
    result = run(app, ["condense", "timm:cifar_resnet32", "--budget", "half"])
    assert result.exit_code == 2
    assert "expected such as params=50%" in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.slow
def test_the_main_job_writes_all_it_promises(tmp_path, monkeypatch):
    from pdecnn.condensation import example
    from pdecnn.training import load_dataset

    small = load_dataset("fashion-mini").limit(256, 100)
    monkeypatch.setattr(example, "load_dataset", lambda name: small)
    result = run(app, ["condense", "--epochs", "1", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {"plan.json", "teacher", "student", "result.json", "report.html"} <= {p.name for p in tmp_path.iterdir()}
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["before"]["params"] == 117_474
    assert found["accuracies"]["teacher"] > 80
    page = (tmp_path / "report.html").read_text()
    assert "condensed</h1>" in page
    assert page.count("<svg") == 4
    onnx = found["onnx"]
    assert onnx["after"]["bytes"] == (tmp_path / "student.onnx").stat().st_size < onnx["before"]["bytes"]
    assert onnx["after"]["top1"] == onnx["fused"]["top1"] == 1.0
    for text in (page, result.output):
        assert "ONNX Runtime, batch 1, ms" in text
        assert "ONNX Runtime, fused, batch 64, ms" in text
        assert "top-1 agreement 100.0 %" in text
    assert not list(tmp_path.glob(".*"))
    load_checkpoint(tmp_path / "student")


def test_milliseconds_of_another_device_are_a_file(tmp_path):
    folder, file = tmp_path / "planned", tmp_path / "device.json"
    planned = run(app, ["condense", "timm:cifar_resnet_tiny", "--output", str(folder)])
    assert planned.exit_code == 0, planned.output
    args = ["bench", "timm:cifar_resnet_tiny", "--sites", str(folder / "plan.json"), "--runtime", "eager"]
    shown = run(app, [*args, "--rounds", "3", "--output", str(file)])
    assert shown.exit_code == 0, shown.output
    table = json.loads(file.read_text())
    plan = json.loads((folder / "plan.json").read_text())
    assert table["format"] == "pdecnn-latency/1"
    assert len(table["sites"]) == len(plan["runs"])
    assert all({"nothing", "pde", "paper"} <= set(site["layers"]) for site in table["sites"].values())
    other = run(app, ["bench", "timm:cifar_resnet32", *args[2:]])
    assert other.exit_code == 1
    assert "Make a new one with pdecnn.plan" in other.output
    two = run(app, [*args, "--runtime", "eager,onnx"])
    assert two.exit_code == 2
    assert "one model and one --runtime" in " ".join(two.output.split())


def test_sites_are_timed_in_one_runtime_with_what_the_plan_names(tmp_path):
    @pdecnn.register_replacement("blur")
    def blur(run):
        return torch.nn.AvgPool2d(3, 1, 1)

    file, table = tmp_path / "plan.json", tmp_path / "device.json"
    try:
        net = timm.create_model("cifar_resnet_tiny")
        plan = pdecnn.plan(net, torch.zeros(1, 3, 32, 32), replacement="blur")
        first, *others = plan.runs
        plan.edit(first.path, keep=len(first.units)).save(file)
        args = ["bench", "timm:cifar_resnet_tiny", "--sites", str(file), "--rounds", "3", "--output", str(table)]
        result = run(app, args)
    finally:
        del _BUILDS["blur"]
    assert result.exit_code == 0, result.output
    name = "onnx" if find_spec("onnxruntime") else "eager"
    assert f"Timing in {name}; --runtime names another." in result.stderr
    found = json.loads(table.read_text())
    assert found["runtime"] == name
    assert set(found["sites"]) == {run.path for run in others}
    assert all({"blur", *CHOICES} == set(site["layers"]) for site in found["sites"].values())


def test_an_unknown_replacement_is_refused(tmp_path):
    result = run(app, ["condense", "timm:cifar_resnet32", "--replacement", "pd", "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert "Close: 'pde'" in result.output
