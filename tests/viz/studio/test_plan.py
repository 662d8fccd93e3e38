"""Condense: the strip, the plan that a visitor edits, and what it costs."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pdecnn.condensation.plan import plan
from pdecnn.viz.studio import planning, strip


def test_the_strip_has_every_block_once_in_order_and_says_what_becomes_of_it(example):
    cells = example.cells
    assert [c.path for c in cells][:3] == ["stem.conv", "stages.0.0", "stages.0.1"]
    assert [(c.run, c.place) for c in cells[1:6]] == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]
    assert sum(c.params for c in cells) == example.plan.before.params
    html = strip.draw(cells, example.plan.runs)
    assert html.count("block gone") == 9
    assert html.count("block kept") == 6
    assert html.count("block new") == 3
    assert "<small>28x28</small>" in html
    assert "left alone" not in html


def test_what_was_left_alone_is_grey_with_its_reason():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(*(_block(8) for _ in range(3)))
            self.b = nn.Sequential(_block(8, 2), _block(8))

        def forward(self, x):
            return self.b(self.a(x)).mean((2, 3))

    net, x = Net().eval(), torch.zeros(1, 8, 16, 16)
    made = plan(net, x, ignore="b.0-1")
    cells = {c.path: c for c in strip.cells(net, x, made)}
    assert cells["a.1"].run == 0
    assert cells["b.0"].reason == cells["b.1"].reason == "ignored, as asked"
    html = strip.draw(list(cells.values()), made.runs)
    assert html.count("block alone") == 2
    assert "Left alone: ignored, as asked." in html
    assert "left alone: point at it for the reason" in html


def _block(channels, stride=1):
    convs = [
        nn.Conv2d(channels, channels, 3, stride, 1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
    ]
    return nn.Sequential(*convs)


def test_an_edit_changes_the_plan_and_its_costs(example):
    path = example.plan.runs[0].path
    fewer = planning.edit(example, path, keep=1, replacement="pde", K=1)
    more = planning.edit(example, path, keep=5, replacement="pde", K=1)
    assert fewer.plan.after.params < example.plan.after.params < more.plan.after.params
    assert not more.plan.runs[0].condenses
    paper = planning.edit(example, path, keep=1, replacement="paper", K=7).plan.runs[0]
    assert (paper.replacement, paper.K) == ("paper", 7)
    assert example.plan.runs[0].keep == 2
    for keep, K, says in ((1, 17, "at most 16 steps"), (6, 1, "keep must be from 1 to 5")):
        with pytest.raises(ValueError, match=says):
            planning.edit(example, path, keep=keep, replacement="pde", K=K)


def test_milliseconds_are_the_sum_of_parts():
    run = SimpleNamespace(path="a", condenses=True, units=("0", "1", "2"), removed=("1", "2"), replacement="pde", K=3)
    parts = planning.Parts(None, 10.0, {"a": (3.0, 2.0, 1.0)}, {"a": {"pde": 0.5, "pde K=1": 0.25, "nothing": 0.0}})
    assert planning.predict(SimpleNamespace(runs=[run]), parts) == pytest.approx(1 - (3 - 0.5) / 10)
    run.K = 1
    assert planning.predict(SimpleNamespace(runs=[run]), parts) == pytest.approx(1 - (3 - 0.25) / 10)
    run.replacement = "nothing"
    assert planning.predict(SimpleNamespace(runs=[run]), parts) == pytest.approx(0.7)
    run.condenses = False
    assert planning.predict(SimpleNamespace(runs=[run]), parts) == 1


def test_parts_are_measured_and_times_belong_to_their_plan(example):
    parts = planning.measure_parts(example)
    for run in example.plan.runs:
        assert len(parts.blocks[run.path]) == 5
        assert set(parts.layers[run.path]) == {*planning.choices(), "pde K=1", "paper K=1"}
    layers = {path: dict.fromkeys(names, 0.5) for path, names in parts.layers.items()}
    even = dataclasses.replace(parts, ms=10.0, blocks=dict.fromkeys(parts.blocks, [1.0] * 5), layers=layers)
    assert planning.predict(example.plan, even) == pytest.approx(1 - 3 * (3 - 0.5) / 10)  # two of five blocks stay
    assert planning.costs(example).count("being measured") == 2
    measured = planning.Measured(example.plan, 4.0, 2.0)
    assert "being measured" not in planning.costs(example, parts, measured)
    other = planning.edit(example, example.plan.runs[0].path, keep=1, replacement="pde", K=1)
    assert planning.costs(other, parts, measured).count("being measured") == 1
