"""What a report says of what did not get better, as lines, as HTML and as data."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import timm
import torch

import pdecnn
from pdecnn.condensation.deployed import OnnxComparison
from pdecnn.condensation.worse import what_got_worse


@pytest.fixture(scope="module")
def report():
    torch.manual_seed(0)
    return pdecnn.condense(
        timm.create_model("resnet18").eval(), torch.zeros(1, 3, 32, 32), replacement="paper", quiet=True
    )[1]


def test_depth_and_activations_of_a_resnet18(report):
    assert report.before.depth == report.after.depth == 18
    depth, written, alive = report.worse
    assert depth.startswith("depth 18 -> 18, no less: a Global layer is at least two layers")
    assert written.startswith("bytes of activations written ")
    ratio = report.after.activation_bytes / report.before.activation_bytes
    assert f"{ratio:.2f} x more: a Global layer writes maps of its four coefficients" in written
    assert report.before.peak_bytes == report.after.peak_bytes
    assert "at a place that stayed as it was" in alive


def test_it_is_shown_everywhere(report):
    text = " ".join(str(report).split())
    assert "What did not get better: depth 18 -> 18, no less" in text
    assert json.loads(json.dumps(report.to_dict()))["worse"] == report.worse
    page, part = report.to_html(), report._repr_html_()
    assert page.startswith("<!doctype html>")
    for html in (page, part):
        assert "<h2>What did not get better</h2><ul><li>depth 18 -&gt; 18, no less" in html
        assert ">11,689,512</td>" in html
        assert "layer1.0-1" in html
    assert "<body" not in part  # a notebook keeps its own style
    style = part.split("<style>")[1].split("</style>")[0].strip()
    assert all(line.startswith((".pdecnn ", "@media (max-width: 40rem) { .pdecnn ")) for line in style.split("\n"))


def test_nothing_is_said_if_all_got_better(report):
    before, after = (
        SimpleNamespace(depth=9, peak_bytes=9, accuracy=90.0),
        SimpleNamespace(depth=8, peak_bytes=8, accuracy=90.5),
    )
    assert what_got_worse(before, after, report.plan, {"batch_1": 1.1}) == []


def test_accuracy_and_times_are_told(report):
    before, after = SimpleNamespace(accuracy=90.0), SimpleNamespace(accuracy=89.0)
    onnx = OnnxComparison("student.onnx", None, None, None, {"batch_1": 0.8, "fused_batch_1": 1.5})
    lines = what_got_worse(before, after, report.plan, {"batch_1": 0.5, "batch_64": 2.0}, onnx)
    accuracy, torch_time, onnx_time = lines
    assert accuracy.startswith("accuracy, % 90 -> 89:")
    assert torch_time.startswith("time in PyTorch, batch 1, 2.00 x more: the new layers take longer")
    assert onnx_time.startswith("time in ONNX Runtime, portable operators, batch 1, 1.25 x more: each step")


def test_a_metric_of_which_less_is_better(report):
    low, high = SimpleNamespace(accuracy=0.25), SimpleNamespace(accuracy=0.5)
    options = {"metric": "error", "higher_is_better": False}
    assert what_got_worse(high, low, report.plan, **options) == []
    assert what_got_worse(low, high, report.plan, **options)[0].startswith("error 0.25 -> 0.5: ")


def test_no_reason_is_made_up_where_there_is_no_global_layer(report):
    kept = replace(report.plan, runs=())
    assert what_got_worse(report.before, report.after, kept)[0] == "depth 18 -> 18, no less."
