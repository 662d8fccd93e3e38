"""A network and images of the user's own, from the command line."""

import json
import sys

import pytest
import timm
import torch
from own_network import network
from PIL import Image
from typer.testing import CliRunner

import pdecnn
from pdecnn.cli import app

pytest.importorskip("onnxruntime")

NETS = network(2)


def run(*args):
    args = [str(arg) for arg in args]
    sys.argv = ["pdecnn", *args]
    return CliRunner().invoke(app, args)


def photos(folder, labels=("cat", "dog", "fox")):
    g = torch.Generator().manual_seed(0)
    for split, count in (("train", 6), ("val", 2)):
        for label in labels:
            home = folder / split / label
            home.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = torch.randint(0, 256, (14, 15, 3), dtype=torch.uint8, generator=g)
                Image.fromarray(pixels.numpy()).save(home / f"{label}{i}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_nets.py").write_text(NETS)
    sys.path.insert(0, str(folder))
    import own_nets

    torch.manual_seed(0)
    state = own_nets.make(3).state_dict()
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, folder / "best.pth")
    photos(folder / "photos")
    argv = sys.argv
    yield folder
    sys.argv = argv
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def job(place):
    output = place / "job"
    shared = ("--weights", place / "best.pth", "--num-classes", 3, "--data", place / "photos", "--input", "3,12,12")
    result = run("condense", "own_nets:make", *shared, "--epochs", 1, "--batch-size", 6, "--output", output)
    return output, result


def test_one_command_does_the_whole_job(job):
    output, result = job
    assert result.exit_code == 0, result.output
    assert "its 'state_dict', without the prefix 'module.'" in result.output
    left = {p.name for p in output.iterdir()}
    assert left == {"plan.json", "teacher", "student", "student.onnx", "result.json", "report.html", "job.json"}
    for row in ("accuracy, %", "latency, batch 1, ms", "ONNX Runtime, batch 1, ms"):
        assert row in result.output
    config = json.loads((output / "student/config.json").read_text())
    assert config["classes"] == ["cat", "dog", "fox"]
    assert config["input"]["shape"] == [3, 12, 12]
    card = (output / "student/README.md").read_text()
    assert config["data"] == "photos"  # the folder's name, not its place on this machine
    assert "datasets:\n- photos" in card
    assert str(output.parent) not in card
    assert config["model"]["base"] == {"builder": "custom", "name": "own_nets:make", "kwargs": {"num_classes": 3}}
    assert json.loads((output / "result.json").read_text())["onnx"]["after"]["top1"] == 1.0


def test_its_folder_opens_in_every_command_that_is_told_the_code(job, place):
    output, _ = job
    for command, options in (
        ("validate", ("--data", place / "photos")),
        ("profile", ()),
        ("bench", ("--batch", 1, "--rounds", 3)),
        ("export", ("--output", place / "net.onnx", "--batch", "", "--data", place / "photos", "--samples", 4)),
    ):
        refused = run(command, output, *options)
        assert refused.exit_code == 1
        line = refused.output.splitlines()[-1]
        assert line.startswith(f"Run: pdecnn {command} {output}")
        assert line.endswith("--model own_nets:make")
        opened = run(command, output, *options, "--model", "own_nets:make")
        assert opened.exit_code == 0, opened.output
    accuracy = json.loads((output / "result.json").read_text())["accuracies"]["distilled"]
    report = run("validate", output, "--data", place / "photos", "--model", "own_nets:make", "--json")
    assert json.loads(report.stdout)["accuracy"] == accuracy
    import own_nets

    assert pdecnn.load(output, factory=own_nets.make)(torch.zeros(1, 3, 12, 12)).shape == (1, 3)


def test_resume_alone_asks_for_code_by_name(job):
    output, _ = job
    refused = run("condense", "--resume", "--output", output)
    assert refused.exit_code == 1
    assert f"Run: pdecnn condense own_nets:make --resume --output {output}" in refused.output


def test_mistakes_are_told_before_anything_is_trained(place, tmp_path):
    options = ("--data", place / "photos", "--input", "3,12,12", "--output", tmp_path / "out")
    two = run("condense", "own_nets:make", *options)
    assert two.exit_code == 1
    assert "have 3 classes (cat, dog, fox ...) but the model tells 2 apart. Give --num-classes 3" in two.output
    wrong = run("condense", "own_nets:make", *options, "--weights", place / "best.pth")
    assert wrong.exit_code == 1
    assert "give --num-classes 3" in wrong.output
    alone = run("condense", place / "best.pth", *options)
    assert "holds weights; name the model that they are for" in alone.output
    shared = ("condense", "own_nets:make", *options, "--weights", place / "best.pth", "--num-classes", 3)
    setting = run(*shared, "-o", "precison=bf16")
    assert setting.exit_code == 1
    assert "there is no setting 'precison'. Close: 'precision'" in setting.output
    taken = run(*shared, "-o", "epochs=3")
    assert "recipe may not set epochs; the arguments of distill do" in taken.output
    untrained = run("condense", "own_nets:make", "-o", "precision=bf16")
    assert "is for jobs with --data, which distil" in untrained.output
    nowhere = run("condense", "own_nets:make", "--data", "photo", "--output", tmp_path / "out")
    assert "no folder 'photo' and no dataset of that name" in nowhere.output
    assert not (tmp_path / "out").exists()


def test_the_version_is_printed():
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.strip() == f"pdecnn {pdecnn.__version__}"


def test_training_goes_on_by_the_recipe_in_its_folder(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "model: {name: test_resnet, kwargs: {in_chans: 1, num_classes: 10}}\n"
        "data: {name: fashion-mini, batch_size: 32, train_limit: 64, test_limit: 32}\n"
        "epochs: 1\ntensorboard: false\n"
    )
    first = run("train", "--config", recipe, "--output", tmp_path / "run", "-o", "seed=5", "--json")
    assert first.exit_code == 0, first.output
    assert timm.create_model(f"local-dir:{tmp_path / 'run/last'}", pretrained=True).num_classes == 10
    for line in (("train", "--resume", "--output", tmp_path / "run"), ("train", tmp_path / "run", "--resume")):
        again = run(*line, "--json")
        assert again.exit_code == 0, again.output
        accuracies = [json.loads(result.stdout.splitlines()[-1])["accuracy"] for result in (first, again)]
        assert accuracies[0] == accuracies[1]
