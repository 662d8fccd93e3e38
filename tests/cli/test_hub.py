"""Models of a hub: one that answers, on this machine, and one that does not."""

import json
import os
import subprocess
import sys

import pytest
import timm
import torch
from hub_stand_in import Hub
from test_own_data import photos

import pdecnn

SCRIPT = 'import sys; sys.argv[0] = "pdecnn"; from pdecnn.cli import main; main()'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    home = tmp_path_factory.mktemp("hub")
    return pdecnn.save(timm.create_model("test_resnet", num_classes=3), home / "net")


@pytest.fixture
def hub(folder):
    """The folder as the repository me/net of a hub."""
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    with Hub({"me/net": files}).serving() as hub:
        yield hub.address


def run(endpoint, home, *arguments):
    return python(SCRIPT, endpoint, home, *arguments)


def python(code, endpoint, home, *arguments):
    """Runs code that talks to the hub at `endpoint`, with a cache of its own; uploads go over plain HTTP."""
    further = {"HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "of-nobody", "no_proxy": "127.0.0.1"}
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), **further}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=home)


def profile(name, endpoint, home):
    return run(endpoint, home, "profile", name, "--input", "3,32,32", "--json")


def test_a_model_of_a_hub(hub, folder, tmp_path):
    done = profile("hf-hub:me/net", hub, tmp_path)
    assert done.returncode == 0, done.stderr
    expected = sum(p.numel() for p in pdecnn.load(folder).parameters())
    assert json.loads(done.stdout)["params"] == expected


def test_one_that_is_not_there_is_one_sentence(hub, tmp_path):
    done = profile("hf-hub:me/other", hub, tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("Error: model: cannot fetch hf-hub:me/other (")
    assert line.endswith("name timm:NAME --weights FILE.")


@pytest.mark.slow  # the client of the hub tries again for half a minute
def test_weights_that_cannot_be_fetched_are_one_sentence(tmp_path):
    done = profile("resnet18.a1_in1k", "http://127.0.0.1:9", tmp_path)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "Error" in line)
    assert line.startswith("Error: model: cannot fetch the weights of resnet18.a1_in1k (")
    assert line.endswith("give it as --weights FILE, or --teacher-weights for a teacher.")


def test_one_is_trained_and_goes_on_without_the_hub(hub, folder, tmp_path):
    photos(tmp_path / "photos")
    recipe = {
        "model": {"name": "test_resnet"},
        "data": {"name": "folder", "batch_size": 6, "stream": {"num_classes": 3, "image_size": 32, "workers": 0}},
        "epochs": 1,
        "optimizer": {"lr": 1e-9},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    data = ("--data-dir", "photos", "--output", "run", "--threads", "1")
    done = run(hub, tmp_path, "train", "--config", "recipe.yaml", "--model", "hf-hub:me/net", *data)
    assert done.returncode == 0, done.stderr
    trained = pdecnn.load(tmp_path / "run")
    for p, q in zip(trained.parameters(), pdecnn.load(folder).parameters(), strict=True):
        torch.testing.assert_close(p, q)
    again = run("http://127.0.0.1:9", tmp_path / "photos", "train", "../run", "--resume", "--data-dir", ".")
    assert again.returncode == 0, again.stderr


def test_a_folder_of_a_registered_model_opens_in_timm(folder):
    net = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(net(x), pdecnn.load(folder)(x))


SHARE = """
import json, timm, torch, pdecnn

torch.manual_seed(0)
x = torch.randn(2, 3, 32, 32)
net = timm.create_model("cifar_resnet_tiny", num_classes=4).eval()
small, _ = pdecnn.condense(net, x[:1], quiet=True)
small.eval()
addresses = [pdecnn.push_to_hub(small, "me/small", classes=list("abcd"), data="cifar10", license="mit", seeds=[3])]
pdecnn.save(net, "folder", card=False)
addresses.append(pdecnn.push_to_hub("folder", "me/plain"))
timm.models.push_to_hf_hub(small, "me/of-timm")
with torch.no_grad():
    same = {
        "from_pretrained": torch.equal(pdecnn.from_pretrained("me/small")(x), small(x)),
        "again": torch.equal(pdecnn.from_pretrained("me/small@main")(x), small(x)),
        "plain": torch.equal(pdecnn.from_pretrained("me/plain")(x), net(x)),
    }
    for name, like in (("me/small", small), ("me/plain", net), ("me/of-timm", small)):
        same[name] = torch.equal(timm.create_model(f"hf-hub:{name}", pretrained=True).eval()(x), like(x))
errors = []
for name in ("me/nothing", "me/of-timm"):
    try:
        pdecnn.from_pretrained(name)
    except pdecnn.condensation.HubError as error:
        errors.append(str(error))
print(json.dumps({"addresses": addresses, "same": same, "errors": errors}))
"""


def test_models_are_pushed_and_come_back(tmp_path):
    with Hub().serving() as hub:
        done = python(SHARE, hub.address, tmp_path)
        command = profile("hf-hub:me/small", hub.address, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["addresses"] == [f"{hub.address}/me/small", f"{hub.address}/me/plain"]
    assert found["same"] == dict.fromkeys(found["same"], True)
    nothing, of_timm = found["errors"]
    assert nothing.startswith("from_pretrained: the hub does not give or take me/nothing: there is none, or")
    assert "timm.create_model('hf-hub:me/of-timm', pretrained=True)" in of_timm
    assert set(hub.repositories["me/small"]) == {"config.json", "model.safetensors", "manifest.json", "README.md"}
    for name in ("me/small", "me/plain"):
        card = hub.repositories[name]["README.md"].decode()
        assert f'pdecnn.from_pretrained("{name}")' in card
    assert "config.json has the plan." in hub.repositories["me/small"]["README.md"].decode()  # nothing was left alone
    assert command.returncode == 0, command.stderr
    params = json.loads(command.stdout)["params"]
    assert f"| parameters | {params:,} |" in hub.repositories["me/small"]["README.md"].decode()


@pytest.mark.parametrize("name", ["net", "a/b/c", "/net", "me/"])
def test_a_repository_has_an_owner_and_a_name(name):
    with pytest.raises(ValueError, match="expected a repository as 'owner/name'"):
        pdecnn.from_pretrained(name)
    with pytest.raises(ValueError, match="expected a repository as 'owner/name'"):
        pdecnn.push_to_hub("folder", name)
