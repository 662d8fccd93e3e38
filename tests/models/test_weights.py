"""Weights that others saved."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pdecnn.models.weights import WeightsError, load_weights


def net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, classes))


def prefixed(state, prefix):
    return {f"{prefix}{key}": value for key, value in state.items()}


@pytest.mark.parametrize(
    "wrap, said",
    [
        (lambda s: s, "9 tensors of best.pth"),
        (
            lambda s: {"state_dict": prefixed(s, "module."), "epoch": 3},
            "its 'state_dict', without the prefix 'module.'",
        ),
        (lambda s: {"model": s, "optimizer": {"state": {}, "lr": 0.1}}, "its 'model'"),
        (lambda s: prefixed(s, "module._orig_mod."), "without the prefix 'module._orig_mod.'"),
        (lambda s: {**prefixed(s, "module."), "n_averaged": torch.tensor(4)}, "without the prefix 'module.'"),
        (lambda s: {"state_dict": {k: v + 1 for k, v in s.items()}, "state_dict_ema": s}, "its 'state_dict_ema'"),
        (lambda s: {"state_dict": {"model": prefixed(s, "model.")}}, "its 'state_dict', its 'model'"),
        (lambda s: {k: v for k, v in s.items() if "num_batches" not in k}, "8 tensors"),
    ],
)
def test_the_usual_wrappers_come_off(wrap, said, tmp_path):
    source, target = net(), net()
    torch.save(wrap(source.state_dict()), tmp_path / "best.pth")
    assert said in load_weights(target, tmp_path / "best.pth")
    assert all(torch.equal(value, target.state_dict()[key]) for key, value in source.state_dict().items())


def test_safetensors(tmp_path):
    source, target = net(), net()
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    load_weights(target, tmp_path / "w.safetensors")
    assert torch.equal(source[3].weight, target[3].weight)


def test_what_does_not_fit_is_listed_and_nothing_is_loaded(tmp_path):
    target = net()
    before = target[0].weight.clone()
    state = net().state_dict()
    state["extra.weight"] = state.pop("0.bias")
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError) as error:
        load_weights(target, tmp_path / "w.pth")
    assert "missing (1): 0.bias" in str(error.value)
    assert "not in the model (1): extra.weight" in str(error.value)
    assert torch.equal(target[0].weight, before)


def test_another_number_of_classes_is_told_with_the_option(tmp_path):
    torch.save(net(5).state_dict(), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"3.weight \(5, 8\) for \(3, 8\)") as error:
        load_weights(net(3), tmp_path / "w.pth")
    assert "give --num-classes 5" in str(error.value)


def test_code_in_a_file_is_not_run(tmp_path):
    torch.save(net(), tmp_path / "whole.pth")
    with pytest.raises(WeightsError, match="holds more than tensors"):
        load_weights(net(), tmp_path / "whole.pth")
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(WeightsError):
        load_weights(net(), tmp_path / "text.pth")
    with pytest.raises(WeightsError, match="no file"):
        load_weights(net(), tmp_path / "none.pth")
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    with pytest.raises(WeightsError, match=r"no state dict in .*epoch"):
        load_weights(net(), tmp_path / "empty.pth")
