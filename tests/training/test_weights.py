"""Weights in the package: every file loads by its tag, offline, and is the model its result describes."""

import json
import re
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file, save_file

import pdecnn.models._weights as weights_module
from pdecnn.models._base import cifar_cfg
from pdecnn.models._weights import WEIGHTS, shipped
from pdecnn.training.datasets import load_sample
from tools import make_cards

FILES = sorted(WEIGHTS.glob("*.safetensors"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_pretrained_weights_load_by_their_tag(file):
    model = timm.create_model(file.stem, pretrained=True)
    for key, value in load_file(file).items():
        assert torch.equal(model.state_dict()[key], value), key
    assert file.stat().st_size < 2_000_000  # the teacher of CIFAR-10, with 467K parameters, is the largest


# of the images that ship: right answers, images, mean cross entropy
ON_THE_SAMPLE = {
    "cifar_resnet32.cifar10": (92, 100, 0.26848),
    "cifar_resnet32_global.cifar10": (92, 100, 0.33815),
    "cifar_resnet_tiny.cifar10": (80, 100, 0.49691),
    "cifar_resnet_tiny_global.cifar10": (80, 100, 0.52187),
    "fashion_hyperbolic_cp.fashion_mini": (836, 1000, 0.44073),
    "fashion_resnet32.fashion_mini": (877, 1000, 0.33406),
    "mnist_micro_global.mnist": (199, 200, 0.01431),
    "mnist_toy_conv.mnist": (188, 200, 0.18307),
    "mnist_toy_global.mnist": (193, 200, 0.10819),
    "mnist_toy_residual.mnist": (189, 200, 0.18569),
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_weights_answer_as_they_did_when_they_were_measured(file):
    """The accuracies in results/ and README are those of these very weights, in a network that is built as then."""
    right, total, loss = ON_THE_SAMPLE[file.stem]
    model = timm.create_model(file.stem, pretrained=True).eval()
    sample = load_sample(file.stem.partition(".")[2].replace("_", "-"))
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        logits = model((sample.x / 255 - mean) / std)
    assert len(sample) == total
    assert abs(int((logits.argmax(1) == sample.y).sum()) - right) <= total // 200  # a tie may fall the other way
    assert torch.nn.functional.cross_entropy(logits, sample.y).item() == pytest.approx(loss, abs=2e-4)


@pytest.mark.parametrize("file", [f for f in FILES if f.stem.endswith((".mnist", ".cifar10"))], ids=lambda f: f.stem)
def test_weights_of_published_nets_have_a_result(file):
    name, _, dataset = file.stem.partition(".")
    records = [json.loads(path.read_text()) for path in (Path(__file__).parents[2] / "results").glob("*.json")]
    mine = [r for r in records if isinstance(r, dict) and (r.get("model"), r.get("dataset")) == (name, dataset)]
    mine = [r for r in mine if not r["recipe"]["model"]["kwargs"].get("no_global")]  # a null has no weights
    assert len(mine) == 1
    assert 50 < mine[0]["accuracy"] <= 100
    assert len(mine[0]["note"]) > 20


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_card_says_what_results_and_the_model_say(file):
    """All of it but the milliseconds, which are of another machine."""
    text, time = make_cards.split_time(file.with_suffix(".md").read_text(encoding="utf-8"))
    assert text == make_cards.card(file.stem, timed=False), "write it again: python tools/make_cards.py --keep-times"
    assert re.fullmatch(r"\| time \| [\d.]+ ms \(batch 1, one thread of .+, torch [\d.]+.*\) \|\n", time)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_weights_have_a_card(file):
    card = file.with_suffix(".md").read_text(encoding="utf-8")
    model = timm.create_model(file.stem)
    assert f"| parameters | {sum(p.numel() for p in model.parameters()):,} |" in card
    assert re.search(r"\| multiply-adds, exact \| [\d,]+, steps of PDEs included", card)
    assert re.search(r"\| seed \| \d+ \|", card)
    assert f'timm.create_model("{file.stem}", pretrained=True)' in card
    assert "Licence of the weights: apache-2.0. Data: " in card
    front = yaml.safe_load(card.split("---")[1])
    (result,) = front["model-index"][0]["results"]
    right, total, _ = ON_THE_SAMPLE[file.stem]
    sample = right / total  # of a part of the test images, or of all
    assert result["metrics"][0]["value"] == pytest.approx(sample, abs=0 if total == 1000 else 0.06)


def test_an_entry_exists_if_and_only_if_its_file_does(tmp_path, monkeypatch):
    monkeypatch.setattr(weights_module, "WEIGHTS", tmp_path)
    assert shipped("net.data", cifar_cfg(4)) == {}
    save_file({"w": torch.zeros(1)}, tmp_path / "net.data.safetensors")
    entry = shipped("net.data", cifar_cfg(4))
    assert entry["net.data"]["file"] == str(tmp_path / "net.data.safetensors")
    assert entry["net.data"]["num_classes"] == 10
