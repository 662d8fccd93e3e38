"""How a run computes: measured where the recipe leaves it open, kept, obeyed."""

import copy

import pytest
import torch
from torch import nn
from training_toys import recipe, tiny_data, tiny_net

from pdecnn.layers import GlobalLayer
from pdecnn.layers.depthwise import depthwise_convs, use_native
from pdecnn.training import choice, fit, load_recipe
from pdecnn.training.choice import Way, settle
from pdecnn.training.progress import Reporter

PLANES, LAST, OURS = Way(False, "torch", False), Way(True, "torch", False), Way(False, "native", False)


class Said(Reporter):
    def __init__(self):
        self.texts = []

    def message(self, text):
        self.texts.append(text)


def depthwise_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 5, padding=2, groups=4, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


@pytest.fixture
def times(monkeypatch):
    """Times of the ways instead of measured ones; a short run is worth them."""
    given, asked = {}, []

    def measure(model, x, ways, **options):
        asked.append((x.shape, list(ways)))
        return {way: given.get(way, 1.0) for way in ways}

    monkeypatch.setattr(choice, "measure", measure)
    monkeypatch.setattr(choice, "LEAST_STEPS", 1)
    given["asked"] = asked
    return given


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def strided_net(channels=6):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.Conv2d(channels, 8, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip


@pytest.mark.parametrize("given", [True, "auto"])
def test_channels_last_is_left_where_onednn_would_write_beyond_its_memory(times, given):
    """A process may die of it, so what is tested is that it is not even tried."""
    times[LAST] = 0.1
    said = []
    asked = recipe(channels_last=given)
    settled = settle(asked, strided_net(), (1, 8, 8), 1000, say=said.append)
    assert settled.channels_last is False
    assert not times["asked"] or LAST not in times["asked"][0][1]
    assert any("1.weight" in text for text in said) == (given is True)
    assert settle(asked, strided_net(16), (1, 8, 8), 1000).channels_last is True
    assert settle(recipe(channels_last=True, onednn=False), strided_net(), (1, 8, 8), 1000).channels_last is True


def test_a_run_that_must_not_have_channels_last_resumes_by_the_recipe_that_asked_for_it(tmp_path):
    asked = recipe(channels_last=True, epochs=2)
    fit(strided_net(), tiny_data(), asked, run_dir=tmp_path)
    again = fit(strided_net(), tiny_data(), asked, run_dir=tmp_path, resume=True)
    assert again.status == "finished"
    assert load_recipe(tmp_path / "recipe.yaml").channels_last is False


@pytest.mark.parametrize("fastest", [PLANES, LAST, OURS])
def test_the_fastest_is_taken_said_and_kept(tmp_path, times, fastest):
    times[fastest] = 0.5
    said = Said()
    fit(depthwise_net(), tiny_data(), recipe(epochs=2), run_dir=tmp_path, reporter=said)
    shape, ways = times["asked"][0]
    assert shape == (10, 1, 8, 8)
    assert ways == [PLANES, OURS, LAST]
    assert sum(text.startswith(f"computes in {fastest} (") and "500 ms" in text for text in said.texts) == 1
    kept = load_recipe(tmp_path / "recipe.yaml")
    assert (kept.channels_last, kept.depthwise, kept.compile) == fastest


def test_little_gain_is_no_reason(times):
    times[LAST] = 0.97
    assert settle(recipe(), depthwise_net(), (1, 8, 8), 100).channels_last is False
    times[LAST] = 0.9
    assert settle(recipe(), depthwise_net(), (1, 8, 8), 100).channels_last is True


def test_a_resumed_run_takes_the_kept_way_and_gives_the_bits_of_one_that_was_not_stopped(tmp_path, times, monkeypatch):
    times[OURS] = 0.5
    whole = depthwise_net()
    fit(whole, tiny_data(), recipe(), run_dir=tmp_path / "whole")

    def stop(step, loss, lr):
        if step == 7:
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        fit(depthwise_net(), tiny_data(), recipe(), run_dir=tmp_path / "run", on_step=stop)
    times[OURS], times[LAST] = 1.0, 0.5  # another answer, should anyone ask
    asked = len(times["asked"])
    resumed = depthwise_net()
    fit(resumed, tiny_data(), recipe(), run_dir=tmp_path / "run", resume=True)
    assert len(times["asked"]) == asked
    assert load_recipe(tmp_path / "run/recipe.yaml").depthwise == "native"
    assert same(resumed, whole)
    again = depthwise_net()
    fit(again, tiny_data(), load_recipe(tmp_path / "run/recipe.yaml"))  # the file alone gives these bits anew
    assert len(times["asked"]) == asked
    assert same(again, whole)


def test_a_recipe_that_names_the_way_is_obeyed(tmp_path, times):
    times[LAST] = 0.5
    named = recipe(channels_last=False, depthwise="native", epochs=2)
    fit(depthwise_net(), tiny_data(), named, run_dir=tmp_path)
    assert not times["asked"]
    with pytest.raises(ValueError, match=r"another recipe .*depthwise: 'native' -> 'torch'"):
        fit(depthwise_net(), tiny_data(), recipe(depthwise="torch", epochs=2), run_dir=tmp_path, resume=True)


def test_a_run_from_before_there_was_a_choice_goes_on_as_it_was(tmp_path, times):
    fit(depthwise_net(), tiny_data(), recipe(channels_last=False, depthwise="torch", epochs=2), run_dir=tmp_path)
    file = tmp_path / "recipe.yaml"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("depthwise")))
    times[OURS] = 0.5
    fit(depthwise_net(), tiny_data(), recipe(channels_last=False, epochs=2), run_dir=tmp_path, resume=True)
    assert not times["asked"]


def test_short_runs_are_not_measured_and_large_images_are_channels_last():
    assert settle(recipe(), depthwise_net(), (3, 32, 32), 10).channels_last is False
    settled = settle(recipe(), depthwise_net(), (3, 64, 64), 10)
    assert (settled.channels_last, settled.depthwise, settled.compile) == (True, "torch", False)


def test_the_compiler_is_tried_only_where_the_recipe_allows_it(times):
    settle(recipe(), tiny_net(), (1, 8, 8), 10)
    settle(recipe(compile="auto"), tiny_net(), (1, 8, 8), 10)
    (_, never), (_, allowed) = times["asked"]
    assert not any(way.compile for way in never)
    assert {way.compile for way in allowed} == {True, False}


@pytest.mark.parametrize("compiled", [True, "auto"])
def test_nets_whose_feature_maps_are_read_are_not_compiled(times, compiled):
    learning = {"weight": 0.5, "features": {"0": "0"}, "feature_weight": 1.0}
    settled = settle(recipe(compile=compiled, distill=learning), tiny_net(), (1, 8, 8), 10)
    assert settled.compile is False
    (_, asked), *_ = times["asked"] or [((), ())]
    assert not any(way.compile for way in asked)


def test_measuring_changes_nothing_and_leaves_out_what_fails():
    net, x = depthwise_net(), torch.rand(4, 1, 8, 8)
    before, state = copy.deepcopy(net), torch.get_rng_state()
    seconds = choice.measure(net, x, [PLANES, LAST, OURS])
    assert set(seconds) == {PLANES, LAST, OURS}
    assert min(seconds.values()) > 0
    assert same(net, before)
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in net.parameters())
    assert choice.measure(net, torch.rand(4, 2, 8, 8), [PLANES]) == {}


def test_our_kernel_trains_as_torchs_does():
    net, x = depthwise_net(), torch.rand(4, 1, 8, 8)
    twin = use_native(copy.deepcopy(net))
    assert [type(conv) is nn.Conv2d for conv in depthwise_convs(twin)] == [False, False]
    for model in (net, twin):
        model(x).square().sum().backward()
    torch.testing.assert_close(twin(x), net(x), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(twin.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert all(type(conv) is nn.Conv2d for conv in depthwise_convs(use_native(twin, wanted=False)))


def test_only_plain_stencils_are_taken():
    others = [
        nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1, groups=4), nn.Conv2d(4, 4, 3, groups=4),
        nn.Conv2d(4, 4, 3, 2, padding=1, groups=4), nn.Conv2d(4, 4, 2, padding=1, groups=4),
        nn.Conv2d(4, 4, 3, padding=1, groups=4, padding_mode="circular"),
        nn.Conv2d(4, 4, 3, padding="same", groups=4), nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4),
        GlobalLayer(4),
    ]  # fmt: skip
    assert list(depthwise_convs(nn.Sequential(*others))) == []
    assert len(list(depthwise_convs(depthwise_net()))) == 2


def test_the_model_has_torchs_convolutions_after_training():
    net = depthwise_net()
    fit(net, tiny_data(), recipe(depthwise="native", epochs=2))
    assert all(type(conv) is nn.Conv2d for conv in depthwise_convs(net))
