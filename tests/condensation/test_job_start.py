"""What a job refuses before it measures anything, and what it keeps when its last pages fail."""

import json

import pytest
import torch
from planted_networks import Residual
from torch import nn

import pdecnn
from pdecnn.condensation import job, within
from pdecnn.condensation.replacements import _BUILDS

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(24, 3, 10, 10, generator=G), torch.randint(0, 3, (24,), generator=G)
IMAGES = {"train": [(X, Y)], "val": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True}


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    blocks = [Residual(8, 8, 1, False, True) for _ in range(4)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    ).eval()


@pytest.mark.parametrize(
    "budget, message",
    [
        ({"foo": 1}, "budget has no 'foo'; there are params, macs, latency_ms, and accuracy in jobs with images"),
        ({"params": "abc"}, r"budget\['params'\] must be a positive number or such as \"50%\", got 'abc'"),
        ({"accuracy": "half"}, "in points, such as -0.5 where half a point may be lost; got 'half'"),
        ({"accuracy": 0.5}, "in points, such as -0.5 where half a point may be lost; got 0.5"),
        ({"accuracy": "-inf"}, "in points, .*; got '-inf'"),
        ({"accuracy": -1, "params": 9}, "a budget of accuracy stands alone"),
    ],
)
def test_a_budget_that_cannot_be_read_is_refused_first(net, tmp_path, budget, message):
    with pytest.raises(ValueError, match=message):
        pdecnn.condense(net, X[:1], **IMAGES, budget=budget, output=tmp_path / "job")
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    "wishes, message",
    [
        ({"val": None, "budget": {"accuracy": -1}}, "a budget of accuracy needs evaluation images"),
        ({"runtime": "onyx"}, "condense: runtime must be one of .*, got 'onyx'"),
        (
            {"replacement": "separable", "distill": {"steps": (1, 6)}},
            "replacement='separable' has none. Use paper or pde",
        ),
        ({"replacement": "nothing", "distill": {"steps": (1, 6)}}, "every K from 1 to 6 needs layers with time steps"),
    ],
)
def test_what_a_job_cannot_do_is_refused_first(net, tmp_path, wishes, message):
    with pytest.raises(ValueError, match=message):
        pdecnn.condense(net, X[:1], **{**IMAGES, **wishes}, output=tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_a_student_without_steps_is_refused_before_it_is_fitted(net, tmp_path):
    @pdecnn.register_replacement("blur")
    def blur(run):
        return nn.AvgPool2d(3, 1, 1)

    try:
        with pytest.raises(ValueError, match="has no layer with K time steps"):
            pdecnn.condense(
                net, X[:1], **IMAGES, replacement="blur", distill={"steps": (1, 6)}, output=tmp_path / "job"
            )
    finally:
        del _BUILDS["blur"]
    assert not (tmp_path / "job/fitted").exists()


def test_a_plan_reads_its_budget_before_it_runs_the_model(net):
    with pytest.raises(ValueError, match=r"budget has no 'accuracy'; .* and accuracy in jobs with images"):
        pdecnn.plan(net, X[:1, :1], budget={"accuracy": -1})


@pytest.mark.parametrize("better", [True, False])
def test_a_search_is_told_which_metric_is_better(net, tmp_path, monkeypatch, better):
    def metric(answer, y):
        return (answer.argmax(1) == y).float().mean()

    def noted(*args, higher_is_better):
        assert higher_is_better == better
        raise InterruptedError

    metric.higher_is_better = better
    monkeypatch.setattr(within, "fastest", noted)
    with pytest.raises(InterruptedError):
        pdecnn.condense(
            net, X[:1], **IMAGES, metric=metric, budget={"accuracy": -1}, runtime="eager", width=1.0, output=tmp_path
        )


def test_a_card_that_fails_loses_nothing_and_is_made_later(net, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise TypeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(job, "make_card", broken)
        with pytest.raises(TypeError, match="a defect"):
            pdecnn.condense(net, X[:1], **IMAGES, output=tmp_path)
    kept = json.loads((tmp_path / "result.json").read_text())
    assert "distilled" in kept["accuracies"]
    _, report = pdecnn.condense(net, X[:1], **IMAGES, output=tmp_path, resume=True)
    assert report.accuracies == kept["accuracies"]
    assert (tmp_path / "student/README.md").read_text().startswith("---")
