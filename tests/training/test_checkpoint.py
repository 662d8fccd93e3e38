"""Checkpoints: round trips, checksums, and files that try to do harm."""

import json
import pickle
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from pdecnn.models.build import import_factory
from pdecnn.training import CheckpointError, build_model, load_checkpoint, register_builder, save_checkpoint
from pdecnn.training.build import open_model
from pdecnn.training.tensors import join_state, split_state

NET = {"name": "test_resnet", "kwargs": {"num_classes": 4}}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return build_model(NET)


def test_round_trip_gives_the_same_bits(tmp_path, net):
    save_checkpoint(tmp_path / "a/b", net, {"model": NET, "note": "kept"})
    loaded = load_checkpoint(tmp_path / "a/b")
    assert loaded.config["note"] == "kept"
    assert not loaded.model.training
    for key, value in net.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[key]), key


def test_saving_again_replaces(tmp_path, net):
    for number in (1, 2):
        save_checkpoint(tmp_path / "net", net, {"model": NET, "number": number})
    assert load_checkpoint(tmp_path / "net").config["number"] == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["net"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damage_is_named(tmp_path, net, name):
    folder = save_checkpoint(tmp_path / "net", net, {"model": NET})
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 4
    (folder / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: its SHA-256"):
        load_checkpoint(folder)


def test_weights_copied_by_hand_load_without_a_manifest(tmp_path, net):
    folder = save_checkpoint(tmp_path / "net", net, {"model": NET})
    (folder / "manifest.json").unlink()
    assert load_checkpoint(folder).model.num_classes == 4


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/b", "..", ""])
def test_paths_out_of_the_folder_are_refused(tmp_path, net, name):
    folder = save_checkpoint(tmp_path / "net", net, {"model": NET})
    (folder / "manifest.json").write_text(json.dumps({name: "0"}))
    with pytest.raises(CheckpointError, match="only plain file names are allowed"):
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match="only plain file names are allowed"):
        save_checkpoint(tmp_path / "other", net, {"model": NET}, extra={name: b""})


def test_a_pickle_is_not_read(tmp_path, net):
    class Harm:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'owned')!r}, 'w')",))

    folder = save_checkpoint(tmp_path / "net", net, {"model": NET})
    (folder / "manifest.json").unlink()
    (folder / "model.safetensors").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load_checkpoint(folder)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "description, message",
    [
        ({"name": "os:system"}, "no model named 'os:system'"),
        ({"name": "hf-hub:someone/net"}, "no model named 'hf-hub:someone/net'"),
        ({"name": "local-dir:/tmp"}, "no model named"),
        ({"name": ["resnet18"]}, "no model named"),
        ({"name": "test_resnett"}, "Close: 'test_resnet'"),
        ({"name": "test_resnet", "kwargs": {"checkpoint_path": "x.pth"}}, "may not contain 'checkpoint_path'"),
        ({"name": "test_resnet", "kwargs": {"pretrained_cfg_overlay": {}}}, "may not contain 'pretrained_cfg_overlay'"),
        (
            {"builder": "custom", "name": "os:system"},
            "os:system, which is not run unless you name it",
        ),
    ],
)
def test_a_description_can_only_name_registered_models(description, message):
    with pytest.raises(ValueError, match=message):
        build_model(description)


def test_other_builders_can_be_registered(tmp_path):
    register_builder("line", lambda description: nn.Linear(*description["size"]))
    folder = save_checkpoint(tmp_path / "net", nn.Linear(2, 3), {"model": {"builder": "line", "size": [2, 3]}})
    assert load_checkpoint(folder).model.weight.shape == (3, 2)
    with pytest.raises(ValueError, match="only timm models come pretrained"):
        build_model({"builder": "line", "size": [2, 3]}, pretrained=True)


def test_a_model_of_ones_own_is_passed_in(tmp_path):
    folder = save_checkpoint(tmp_path / "net", nn.Linear(2, 3), {"model": {"builder": "custom"}})
    with pytest.raises(ValueError, match="is made by your own code"):
        load_checkpoint(folder)
    assert torch.equal(load_checkpoint(folder, model=nn.Linear(2, 3)).model.bias, _bias(folder))
    with pytest.raises(CheckpointError, match=r"not those of Sequential: missing \['0.weight'"):
        load_checkpoint(folder, model=nn.Sequential(nn.Linear(2, 3)))


def _bias(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")["bias"]


def test_what_is_no_checkpoint_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json in"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"format": "other/3", "model": {}}')
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="has format 'other/3', expected 'pdecnn-checkpoint/1'"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="holds a list, expected an object"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not readable JSON"):
        load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match='config needs an entry "model"'):
        save_checkpoint(tmp_path / "x", nn.Linear(1, 1), {})


def test_optimiser_state_round_trip():
    weight = nn.Parameter(torch.randn(3))
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.8, 0.9))
    weight.grad = torch.randn(3)
    optimizer.step()
    tensors, values = split_state(optimizer.state_dict())
    assert sorted(tensors) == ["0.exp_avg", "0.exp_avg_sq", "0.step"]
    back = join_state(tensors, json.loads(json.dumps(values)))
    other = torch.optim.Adam([nn.Parameter(torch.zeros(3))])
    other.load_state_dict(back)
    assert other.param_groups[0]["betas"] == [0.8, 0.9]
    assert torch.equal(other.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    with pytest.raises(TypeError, match=r"keeps 0\.odd as set; only tensors, numbers and lists"):
        split_state({"state": {0: {"odd": {1}}}, "param_groups": []})


@given(
    st.recursive(
        st.one_of(st.booleans(), st.integers(), st.text(), st.none(), st.just(torch.arange(3.0))),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple)),
    )
)
def test_nested_optimiser_state_round_trip(value):
    state = {"state": {0: {"Q": value, "step": 3}, 2: {"Q": torch.ones(2)}}, "param_groups": [], "rng_state": value}
    tensors, values = split_state(state)
    assert same(join_state(tensors, json.loads(json.dumps(values))), state)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_factories_in_the_current_folder_are_found(tmp_path, monkeypatch):
    (tmp_path / "nets_of_this_folder.py").write_text("from torch import nn\n\ndef line():\n    return nn.Identity()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert isinstance(import_factory("nets_of_this_folder:line")(), nn.Identity)


def test_factories_and_teachers(tmp_path, net):
    assert import_factory("torch.nn:Identity") is nn.Identity
    with pytest.raises(ValueError, match="expected a registered model or module:function, got 'torch'"):
        import_factory("torch")
    with pytest.raises(ValueError, match="torch has no function named 'nothing'"):
        import_factory("torch:nothing")
    with pytest.raises(ValueError, match=r"no function named 'Identiti'. Close: 'Identity'"):
        import_factory("torch.nn:Identiti")
    folder = save_checkpoint(tmp_path / "net", net, {"model": NET})
    assert open_model(str(folder)).model.num_classes == 4
    with pytest.raises(ValueError, match="no model named 'no_such_teacher'"):
        open_model("no_such_teacher")
