"""Weights in the package: every file loads by its tag, offline, and is the model its result describes."""

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import pdecnn.models._weights as weights_module
from pdecnn.models._base import cifar_cfg
from pdecnn.models._weights import WEIGHTS, shipped

FILES = sorted(WEIGHTS.glob("*.safetensors"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_pretrained_weights_load_by_their_tag(file):
    model = timm.create_model(file.stem, pretrained=True)
    for key, value in load_file(file).items():
        assert torch.equal(model.state_dict()[key], value), key
    assert file.stat().st_size < 1_000_000


@pytest.mark.parametrize("file", [f for f in FILES if f.stem.endswith((".mnist", ".cifar10"))], ids=lambda f: f.stem)
def test_weights_of_published_nets_have_a_result(file):
    name, _, dataset = file.stem.partition(".")
    records = [json.loads(path.read_text()) for path in (Path(__file__).parents[2] / "results").glob("*.json")]
    mine = [r for r in records if isinstance(r, dict) and (r.get("model"), r.get("dataset")) == (name, dataset)]
    assert len(mine) == 1
    assert 50 < mine[0]["accuracy"] <= 100
    assert len(mine[0]["note"]) > 20


def test_an_entry_exists_if_and_only_if_its_file_does(tmp_path, monkeypatch):
    monkeypatch.setattr(weights_module, "WEIGHTS", tmp_path)
    assert shipped("net.data", cifar_cfg(4)) == {}
    save_file({"w": torch.zeros(1)}, tmp_path / "net.data.safetensors")
    entry = shipped("net.data", cifar_cfg(4))
    assert entry["net.data"]["file"] == str(tmp_path / "net.data.safetensors")
    assert entry["net.data"]["num_classes"] == 10
