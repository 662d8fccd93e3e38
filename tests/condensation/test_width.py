"""Width in a plan: narrower models by Torch-Pruning, planned, saved, loaded, searched for."""

import json
import subprocess
import sys

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pdecnn
from pdecnn.condensation import fastest as ladder
from pdecnn.condensation import fit_layers
from pdecnn.condensation.propose import BudgetError
from pdecnn.condensation.search import Proposal
from pdecnn.condensation.width import narrow
from pdecnn.layers.transport import Transport
from pdecnn.shared.reading import FileError
from pdecnn.training.progress import Reporter

X = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 4


class Chain(nn.Sequential):
    """Residual blocks between a stem and a head."""

    def __init__(self, channels: int = 8, blocks: int = 3) -> None:
        stem = nn.Sequential(nn.Conv2d(3, channels, 3, 2), nn.BatchNorm2d(channels), nn.ReLU())
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4))
        super().__init__(stem, nn.Sequential(*(Block(channels) for _ in range(blocks))), head)


class Block(nn.Module):
    """`relu(x + norm(conv(x)))`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


def shapes(model):
    return [(name, t.shape) for name, t in model.state_dict().items()]


@pytest.mark.parametrize("name", ["cifar_resnet32", "cifar_resnet_tiny_global", "mobilenetv2_100"])
def test_half_the_channels_whatever_the_weights(name):
    torch.manual_seed(0)
    model, other = (timm.create_model(name, num_classes=10) for _ in range(2))
    model.eval()
    before = {k: t.clone() for k, t in model.state_dict().items()}
    small = narrow(model, (X[:1],), 0.5)
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())
    assert not small.training
    assert shapes(small) == shapes(narrow(other, (X[:1],), 0.5))
    assert sum(p.numel() for p in small.parameters()) < 0.35 * sum(p.numel() for p in model.parameters())
    small.train()(X).sum().backward()  # training, and inference, go on with these channels
    with torch.no_grad():
        assert small.eval()(X).shape == (8, 10)


def test_the_channels_with_the_largest_weights_stay():
    torch.manual_seed(0)
    model = Chain(8, 2)
    with torch.no_grad():
        for p in (p for p in model.parameters() if p.shape[:1] == (8,)):
            p[::2] *= 100
    small = narrow(model, (X[:1],), 0.5)
    torch.testing.assert_close(small[0][0].weight, model[0][0].weight[::2])
    torch.testing.assert_close(small[2][2].weight, model[2][2].weight[:, ::2])


@given(st.integers(1, 3), st.sampled_from([4, 8, 12]), st.integers(0, 5))
@settings(deadline=None, max_examples=8)
def test_dead_channels_are_not_missed(K, channels, seed):
    """With as many channels again that are zero everywhere, the narrower net answers as the wide one, transport too."""
    torch.manual_seed(seed)
    conv, transport = nn.Conv2d(3, 2 * channels, 3), Transport(2 * channels, K=K)
    head = nn.Conv2d(2 * channels, 5, 1)
    with torch.no_grad():
        for p in (conv.weight, conv.bias):
            p[channels:] = 0
        head.weight[:, channels:] = 0
        for p in (transport.velocity, transport.diffusion):
            p[:, channels:] = 0
    model = nn.Sequential(conv, transport, head).eval()
    small = narrow(model, (X[:1],), 0.5)
    assert (small[0].out_channels, small[1].channels) == (channels, channels)
    torch.testing.assert_close(small(X), model(X), atol=1e-5, rtol=1e-5)


def test_channels_that_share_coefficients_are_not_torn_apart():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Transport(8, share=4), nn.Conv2d(8, 5, 1))
    with pytest.raises(ValueError, match="channels that share coefficients go together"):
        narrow(model, (X[:1],), 0.5)


@pytest.mark.parametrize("width", [0, 1.5, True, "half", float("nan")])
def test_a_width_is_a_share(width):
    with pytest.raises(ValueError, match="share of channels that stay, above 0 and at most 1; got"):
        pdecnn.plan(Chain(), X[:1], width=width)


def test_a_model_that_cannot_be_narrowed_is_named():
    class Fixed(Chain):
        def forward(self, x):
            return self[2](self[1](self[0](x)) * torch.ones(8, 1, 1))

    with pytest.raises(ValueError, match="Torch-Pruning cannot narrow Fixed"):
        narrow(Fixed(), (X[:1],), 0.5)


def test_the_plan_counts_what_it_makes_and_says_so(tmp_path):
    model = timm.create_model("cifar_resnet32").eval()
    made = pdecnn.plan(model, X[:1], width=0.5)
    student = made.apply(model)
    assert sum(p.numel() for p in student.parameters()) == made.after.params
    assert made.before.params == sum(p.numel() for p in model.parameters()) > made.narrowed.params > made.after.params
    assert "width 0.5" in str(made)
    assert pdecnn.Plan.load(made.save(tmp_path / "plan.json")) == made
    with pytest.raises(FileError, match="above 0 and at most 1; got 2"):
        pdecnn.Plan.from_dict({**made.to_dict(), "width": 2.0})
    half = pdecnn.plan(model, X[:1], width=0.5, budget={"params": "20%"})
    assert half.after.params <= 0.2 * made.before.params
    assert any(run.keep > 1 for run in half.runs)


def test_a_narrow_student_is_distilled_saved_and_loaded_elsewhere(tmp_path):
    torch.manual_seed(0)
    teacher = timm.create_model("cifar_resnet32", num_classes=4).eval()
    made = pdecnn.plan(teacher, X[:1], width=0.75)
    student = made.apply(teacher)
    fitted = fit_layers(student, teacher, made, [X], steps=1)
    assert len(fitted) == len(made.runs)
    pdecnn.distill(student, teacher, [(X, Y)], epochs=1, reporter=Reporter())
    pdecnn.save(student, tmp_path / "student")
    with torch.no_grad():
        torch.save(student.eval()(X), tmp_path / "answer.pt")
    torch.save(X, tmp_path / "x.pt")
    code = (
        "import torch, pdecnn; model = pdecnn.load('student').eval()\n"
        "with torch.no_grad(): torch.testing.assert_close(model(torch.load('x.pt')), torch.load('answer.pt'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_search_tries_several_widths(tmp_path):
    torch.manual_seed(0)
    teacher = Chain(16, 4).eval()
    arguments = {"train": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True, "output": tmp_path}
    _, report = pdecnn.condense(teacher, X[:1], **arguments, budget={"params": "60%"})
    searched = json.loads((tmp_path / "search.json").read_text())
    assert {row["width"] for row in searched["candidates"]} == {1.0, 0.75, 0.5}
    assert report.plan.width == searched["candidates"][searched["chosen"]]["width"]
    assert all(row["distance_after_trial"] >= 0 for row in searched["candidates"])
    assert report.plan.after.params <= 0.6 * report.plan.before.params


def proposal(model, share):
    made = pdecnn.plan(model, X[:1])
    return Proposal(made, harm=0.0, predicted_ms=share, ms=share)


@pytest.mark.parametrize("first_that_holds", [*ladder.RUNGS, None])
def test_the_fastest_that_loses_no_more_is_found(tmp_path, first_that_holds):
    model, tried = Chain(), []

    def candidates(bounds, file):
        share = int(bounds["latency_ms"].rstrip("%"))
        if share < 20:
            raise BudgetError("no plan is that fast")
        return [proposal(model, share)]

    def attempt(name, candidate, epochs):
        assert (name, epochs) == (f"trial-{candidate.ms}", 7)
        tried.append(candidate.ms)
        (tmp_path / name).mkdir()
        return candidate.ms

    def accuracy(share):
        return 90.0 if first_that_holds is not None and share >= first_that_holds else 88.0

    def search():
        return ladder.fastest(tmp_path, 90.4, -0.5, candidates, attempt, accuracy, 7)

    if first_that_holds is None:
        with pytest.raises(ValueError, match=r"no plan that was tried reaches 89.90; the best has 88.00 after 7"):
            search()
    else:
        assert search().ms == max(20, first_that_holds)
    assert len(tried) <= 4
    assert not list(tmp_path.glob("trial-*"))
    assert [row["ms"] for row in json.loads((tmp_path / "search.json").read_text())["tried"]] == tried


@pytest.mark.parametrize("first_that_holds", [30, None])
def test_of_an_error_more_may_be_had(tmp_path, first_that_holds):
    def candidates(bounds, file):
        return [proposal(Chain(), int(bounds["latency_ms"].rstrip("%")))]

    def error(share):
        return 0.34 if first_that_holds is not None and share >= first_that_holds else 0.5

    def search():
        attempt = lambda name, candidate, epochs: candidate.ms  # noqa: E731
        return ladder.fastest(tmp_path, 0.3, -0.05, candidates, attempt, error, 1, higher_is_better=False)

    if first_that_holds is None:
        with pytest.raises(ValueError, match=r"reaches 0.35; the best has 0.50"):
            search()
    else:
        assert search().ms == first_that_holds


def test_a_job_with_a_budget_of_accuracy(tmp_path):
    torch.manual_seed(0)
    teacher = Chain(8, 4).eval()
    arguments = {"train": [(X, Y)], "val": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True}
    arguments |= {"runtime": "eager", "output": tmp_path}
    _, report = pdecnn.condense(teacher, X[:1], **arguments, budget={"accuracy": -100}, width=1.0)
    assert min(int(row["latency"][:-1]) for row in json.loads((tmp_path / "search.json").read_text())["tried"]) <= 90
    assert any(run.condenses for run in report.plan.runs)
    wrongs = ({"accuracy": "much"}, "in points, such as -0.5"), ({"accuracy": -1, "params": 9}, "stands alone")
    for i, (wrong, message) in enumerate(wrongs):
        with pytest.raises(ValueError, match=message):
            pdecnn.condense(teacher, X[:1], **{**arguments, "output": tmp_path / str(i)}, budget=wrong, width=1.0)
