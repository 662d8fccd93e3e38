"""`pdecnn replace`: convolutions are swapped from the shell, the result is saved, opened and trained."""

import json

import pytest
import timm
import torch
from typer.testing import CliRunner

from pdecnn.cli import app
from pdecnn.condensation import replace_convs
from pdecnn.training import build_model, load_checkpoint

run = CliRunner().invoke


def test_swaps_saves_and_opens_again(tmp_path):
    folder = tmp_path / "mixed"
    arguments = ["replace", "fashion_resnet32.fashion_mini", "--output", str(folder), "--json"]
    result = run(app, arguments)
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["after"]["params"] < 0.5 * content["before"]["params"]
    assert content["after"]["macs"] < 0.5 * content["before"]["macs"]
    reasons = {row["name"]: row["reason"] for row in content["convolutions"] if not row["swapped"]}
    assert reasons["stem.conv"] == "1 channels in but 8 out"
    original = timm.create_model("fashion_resnet32.fashion_mini", pretrained=True).eval()
    expected, _ = replace_convs(original)
    x = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(load_checkpoint(folder).model.eval()(x), expected(x))
    profiled = run(app, ["profile", str(folder), "--input", "1,28,28", "--json"])
    assert json.loads(profiled.stdout)["params"] == content["after"]["params"]


def test_a_swapped_net_is_trained(tmp_path):
    folder = tmp_path / "mixed"
    swapped = run(app, ["replace", "fashion_resnet32", "--only", r"stages\.0\.", "--random", "--output", str(folder)])
    assert swapped.exit_code == 0, swapped.output
    assert "stages.1.1.conv1: kept: not chosen" in swapped.output
    settings = ["epochs=1", "data.train_limit=128", "data.test_limit=100", "schedule.warmup_epochs=0"]
    arguments = ["train", "quick/fashion-mini", "--model", str(folder), "--output", str(tmp_path / "run")]
    result = run(app, [*arguments, *(f"-o{s}" for s in settings)])
    assert result.exit_code == 0, result.output
    trained = load_checkpoint(tmp_path / "run" / "last").model
    assert type(trained.stages[0][0].conv1).__name__ == "LinearMixConv2d"


def said(*arguments):
    return " ".join(run(app, ["replace", *arguments]).output.replace("│", " ").split())


def test_mistakes_are_named():
    assert "linearmix, depthwise, got 'circulant'" in said("resnet18", "--kind", "circulant")
    assert "not a regular expression" in said("resnet18", "--only", "[")
    with pytest.raises(ValueError, match="the base of a 'replaced' model cannot be one"):
        build_model({"builder": "replaced", "base": {"builder": "replaced"}, "kind": "linearmix", "swapped": []})
    with pytest.raises(ValueError, match="not those of its base"):
        build_model({"builder": "replaced", "base": {"name": "resnet18"}, "kind": "linearmix", "swapped": ["conv9"]})
