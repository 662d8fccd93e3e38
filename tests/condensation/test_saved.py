"""`pdecnn.save` and `pdecnn.load`."""

import json

import pytest
import timm
import torch
from planted_networks import Residual
from torch import nn

import pdecnn
from pdecnn.layers.steps import serve_steps
from pdecnn.shared.environment import cpu_name
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


@pytest.mark.parametrize("safe", [True, False])
def test_timm_saves_a_condensed_model_that_timm_opens(safe, tmp_path):
    small, _ = pdecnn.condense(timm.create_model("cifar_resnet_tiny"), X[:1], quiet=True)
    small.reset_classifier(3)
    timm.models.save_for_hf(small, tmp_path / "net", safe_serialization=safe)
    again = timm.create_model(f"local-dir:{tmp_path / 'net'}", pretrained=True)
    assert same(small, again.eval())
    assert same(small, pdecnn.load(pdecnn.save(again, tmp_path / "ours", card=False)))
    assert timm.create_model(f"local-dir:{tmp_path / 'net'}", pretrained=True, num_classes=5).eval()(X).shape == (2, 5)


def test_timm_does_not_save_what_only_code_of_the_users_own_builds(tmp_path):
    net = timm.create_model("cifar_resnet_tiny")
    net.stages[0].insert(0, nn.Identity())
    small, _ = pdecnn.condense(net, X[:1], quiet=True)
    with pytest.raises(KeyError, match="architecture"):
        timm.models.save_for_hf(small, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_a_condensed_model_and_one_for_every_K_open_in_timm(tmp_path):
    condensed, _ = pdecnn.condense(timm.create_model("cifar_resnet_tiny"), X[:1], quiet=True)
    served = serve_steps(timm.create_model("cifar_resnet_tiny_global"), 1, 4)
    for net in (condensed, served):
        folder = pdecnn.save(net, tmp_path / "net", card=False)
        assert same(net, timm.create_model(f"local-dir:{folder}", pretrained=True).eval())
        assert same(net, pdecnn.load(folder))


def test_the_name_for_timm_is_not_listed_and_says_what_it_is():
    assert "pdecnn_model" not in timm.list_models()
    with pytest.raises(ValueError, match="stands for models that pdecnn describes in a folder"):
        timm.create_model("pdecnn_model")


def test_a_saved_model_has_a_card(tmp_path):
    small, _ = pdecnn.condense(timm.create_model("cifar_resnet_tiny"), X[:1], quiet=True, replacement="paper", K=2)
    notes = {"accuracy": 71.5, "data": "cifar10", "seeds": [4], "license": "mit", "classes": list("abcdefghij")}
    folder = pdecnn.save(small, tmp_path / "net", example=X[:1], **notes)
    card = (folder / "README.md").read_text()
    cost = pdecnn.profile(small, X[:1])
    assert cost.macs["pde"] > 0
    for text in (
        f"| parameters | {cost.params:,} |",
        f"| multiply-adds, exact | {cost.exact:,}, steps of PDEs included ({cost.macs['pde']:,} in solvers) |",
        f"one thread of {cpu_name()}",
        "| accuracy | 71.50 % on cifar10 |",
        "| seed | 4 |",
        "license: mit",
        "| paper | 2 |",
        'pdecnn.from_pretrained("OWNER/net")',
    ):
        assert text in card
    (folder / "README.md").write_text(card + "More by hand.")
    assert same(small, pdecnn.load(folder))  # a card may be edited
    pdecnn.save(small, folder, card=False)  # and is replaced with its folder
    assert not (folder / "README.md").exists()
    (folder / "README.md").write_text("Notes of my own.")
    with pytest.raises(FileExistsError, match=r"README\.md"):
        pdecnn.save(small, folder)


def test_a_card_says_why_there_are_no_counts(tmp_path):
    card = (pdecnn.save(Own(), tmp_path / "own") / "README.md").read_text()
    assert "not counted: no input was given" in card
    assert "factory=make" in card
    with pytest.raises(RuntimeError):
        pdecnn.save(Own(), tmp_path / "own", example=X[:, :1])
