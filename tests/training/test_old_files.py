"""What version 0.1 wrote is still read: a plan, a condensed model, a run that was not finished."""

import json
import shutil
from pathlib import Path

import pytest
import timm
import torch
from training_toys import recipe, tiny_data, tiny_net, weights

from pdecnn.condensation.plan import Plan
from pdecnn.training import fit, load_checkpoint

OLD = Path(__file__).parent.parent / "fixtures" / "v0.1"
IMAGE = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)


def test_a_condensed_model():
    model = load_checkpoint(OLD / "condensed").model
    with torch.no_grad():
        logits = model(IMAGE)[0]
    torch.testing.assert_close(logits, torch.tensor(json.loads((OLD / "logits.json").read_text())))


def test_a_plan():
    made = Plan.load(OLD / "plan.json")
    assert [run.path for run in made.runs][:1] == ["stages.0.0-2"]
    small = made.apply(timm.create_model("cifar_resnet_tiny", num_classes=2))
    state = load_checkpoint(OLD / "condensed").model.state_dict()
    assert {k: v.shape for k, v in small.state_dict().items()} == {k: v.shape for k, v in state.items()}


def test_a_run_is_continued(tmp_path):
    shutil.copytree(OLD / "run", tmp_path / "run")
    result = fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path / "run", resume=True)
    assert (result.status, result.step) == ("finished", 24)
    fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path / "whole")
    whole = weights(tmp_path / "whole")
    for key, value in weights(tmp_path / "run").items():
        torch.testing.assert_close(value, whole[key], rtol=1e-3, atol=1e-4, msg=key)


def test_the_old_files_are_as_they_were_written():
    with pytest.raises(KeyError):
        json.loads((OLD / "plan.json").read_text())["runs"][0]["kernels"]
