"""One grammar for the names of models."""

import pytest
import torch
from torch import nn

from pdecnn.models.build import build_named, name_to_description
from pdecnn.training.build import open_model


@pytest.mark.parametrize(
    "name, builder, rest",
    [
        ("resnet18", "timm", "resnet18"),
        ("timm:resnet18", "timm", "resnet18"),
        ("torchvision:resnet18", "torchvision", "resnet18"),
        ("mynets:make", "custom", "mynets:make"),
        ("hf-hub:someone/net", "timm", "hf-hub:someone/net"),
    ],
)
def test_names_mean_descriptions(name, builder, rest):
    assert name_to_description(name, 7) == {"builder": builder, "name": rest, "kwargs": {"num_classes": 7}}


def test_a_function_is_given_the_arguments_that_it_declares(tmp_path, monkeypatch):
    (tmp_path / "nets_declared.py").write_text(
        "from torch import nn\n"
        "def none(): return nn.Linear(2, 3)\n"
        "def classes(num_classes=3): return nn.Linear(2, num_classes)\n"
        "def anything(**kwargs): return nn.Linear(2, kwargs['num_classes'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    widths = [build_named(f"nets_declared:{f}", num_classes=5).out_features for f in ("none", "classes", "anything")]
    assert widths == [3, 5, 5]


def test_a_tag_brings_weights_unless_a_file_does(tmp_path):
    trained = open_model("mnist_toy_conv.mnist")
    assert trained.weights
    assert not open_model("mnist_toy_conv").weights
    fresh = open_model("mnist_toy_conv").model
    torch.save(fresh.state_dict(), tmp_path / "w.pth")
    loaded = open_model("timm:mnist_toy_conv.mnist", weights=tmp_path / "w.pth")
    assert "w.pth" in loaded.weights
    assert all(torch.equal(v, loaded.model.state_dict()[k]) for k, v in fresh.state_dict().items())


def test_weights_alone_are_no_model(tmp_path):
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"holds weights; name the model that they are for: MODEL --weights"):
        open_model(str(tmp_path / "w.pth"))
