"""`pdecnn.save` and `pdecnn.load`."""

import json

import pytest
import timm
import torch
from planted_networks import Residual
from torch import nn

import pdecnn
from pdecnn.training.build import open_model

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Own(nn.Module):
    """A network of no registry."""

    def __init__(self, num_classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), *(Residual(16, 16, 1, False, True) for _ in range(4)))
        self.head = nn.Linear(16, num_classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def same(a: nn.Module, b: nn.Module) -> bool:
    with torch.no_grad():
        return torch.equal(a.eval()(X), b(X))


def test_a_registered_model_comes_back_and_opens_in_timm(tmp_path):
    net = timm.create_model("cifar_resnet32", num_classes=7).eval()
    folder = pdecnn.save(net, tmp_path / "net", classes=list("abcdefg"))
    assert same(net, pdecnn.load(folder))
    assert same(net, timm.create_model(f"local-dir:{folder}", pretrained=True).eval())
    assert json.loads((folder / "config.json").read_text())["classes"] == list("abcdefg")


def test_a_condensed_model_comes_back(tmp_path):
    net = timm.create_model("cifar_resnet32").eval()
    small, _ = pdecnn.condense(net, X[:1], quiet=True)
    assert same(small, pdecnn.load(pdecnn.save(small, tmp_path / "small")))


@pytest.mark.parametrize("condensed", [False, True])
def test_code_of_the_users_own_is_asked_for_and_never_imported(condensed, tmp_path):
    net = Own(num_classes=6)
    net = pdecnn.condense(net, X[:1], quiet=True)[0] if condensed else net
    folder = pdecnn.save(net, tmp_path / "own")
    with pytest.raises(ValueError, match=rf"pdecnn.load\('{folder}', factory=Own\)"):
        pdecnn.load(folder)
    with pytest.raises(ValueError, match=f"--model {Own.__module__}:Own"):
        open_model(str(folder))
    assert same(net, pdecnn.load(folder, factory=lambda: Own(6)))
    with pytest.raises(ValueError, match="are not those of Own"):
        pdecnn.load(folder, factory=Own)


def test_a_file_cannot_have_code_run(tmp_path):
    folder = pdecnn.save(Own(), tmp_path / "own")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["model"] = {"builder": "custom", "name": "os:getcwd", "factory": "os:getcwd", "kwargs": {}}
    (folder / "manifest.json").unlink()
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="os:getcwd, which is not run unless you name it"):
        pdecnn.load(folder)


def test_mistakes_are_told(tmp_path):
    with pytest.raises(ValueError, match=r"no config.json in .*nowhere"):
        pdecnn.load(tmp_path / "nowhere")
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got str. save\(model, folder\)"):
        pdecnn.save("folder", Own())
