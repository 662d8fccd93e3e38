"""Inner channels where nothing repeats, and where a user wants something left alone."""

import json

import pytest
import torch
from planted_networks import Hidden, with_hidden
from torch import nn

import pdecnn

pytest.importorskip("torch_pruning", reason="the extra `prune` is not installed")

X = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 4


def job(folder, **wishes):
    return {"train": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True, "output": folder, **wishes}


def test_a_network_without_repeated_blocks_meets_a_budget_by_its_inner_channels(tmp_path):
    teacher = with_hidden(32, 3, count=1)
    with pytest.raises(ValueError, match=r"no run to condense.* leave out channels by inner=0\.5"):
        pdecnn.plan(teacher, X[:1])
    small, report = pdecnn.condense(teacher, X[:1], **job(tmp_path, budget={"macs": "70%"}))
    assert report.plan.runs == ()
    (one,) = report.plan.inner
    assert one.keep < one.channels
    assert report.plan.before.macs == sum(pdecnn.profile(teacher, X[:1]).macs.values())
    assert sum(pdecnn.profile(small, X[:1]).macs.values()) == report.plan.after.macs <= 0.7 * report.plan.before.macs
    again = pdecnn.load(tmp_path / "student", factory=lambda: with_hidden(32, 3, count=1))
    assert torch.equal(again(X), small.eval()(X))


def test_its_milliseconds_are_met_too(tmp_path):
    teacher = with_hidden(64, 3, count=1)
    _, report = pdecnn.condense(teacher, X[:1], **job(tmp_path, budget={"latency_ms": "95%"}, runtime="eager"))
    (found,) = json.loads((tmp_path / "search.json").read_text())["candidates"]
    assert found["runs"] == {}
    assert report.plan.inner


def test_a_network_with_neither_is_refused_before_anything_is_trained(tmp_path):
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    with pytest.raises(ValueError, match="no run to condense in Sequential: 1 convolutions"):
        pdecnn.condense(teacher, X[:1], **job(tmp_path, budget={"params": "50%"}))


@pytest.mark.parametrize("ignore", ["1", "1.project", r"1\..*"], ids=["block", "layer", "expression"])
def test_a_block_that_is_ignored_keeps_its_inner_channels(ignore):
    made = pdecnn.plan(with_hidden(), X[:1], inner=0.5, ignore=ignore)
    assert [one.last for one in made.inner] == ["2.project"]


@pytest.mark.parametrize("ignore", ["1-2", Hidden, r"[12]"], ids=["run", "class", "expression"])
def test_where_all_is_ignored_nothing_is_left_to_plan(ignore):
    with pytest.raises(ValueError, match=r"inner=0\.5, but .* no channels that .* or ignore and only leave"):
        pdecnn.plan(with_hidden(), X[:1], inner=0.5, ignore=ignore)


@pytest.mark.parametrize("only, stay", [("2", ["2.project"]), ("1-3", ["1.project", "2.project", "3.project"])])
def test_only_what_is_named_loses_inner_channels(only, stay):
    made = pdecnn.plan(with_hidden(count=3), X[:1], inner=0.5, only=only)
    assert [one.last for one in made.inner] == stay


def test_a_search_leaves_alone_what_is_ignored(tmp_path):
    teacher = with_hidden(32, 3, count=4)
    wishes = {"budget": {"macs": "90%"}, "replacement": "nothing", "ignore": ["1", "2"]}
    _, report = pdecnn.condense(teacher, X[:1], **job(tmp_path, **wishes))
    assert {one.last for one in report.plan.inner} <= {"3.project", "4.project"}
    assert not report.plan.runs  # the run holds what is ignored
