"""The whole job in Python, on batches of the user's own."""

import copy
import json

import pytest
import torch
from planted_networks import Residual
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pdecnn
from pdecnn.condensation.distill import sites
from pdecnn.condensation.fit import answer_distance, fit_layers
from pdecnn.training.optim import make_optimizer, make_schedule
from pdecnn.training.progress import Reporter
from pdecnn.training.recipe import Recipe

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(24, 3, 10, 10, generator=G), torch.randint(0, 3, (24,), generator=G)


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    blocks = [Residual(8, 8, 1, False, True) for _ in range(4)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


def test_the_whole_job_takes_loaders_and_leaves_everything_in_the_folder(net, tmp_path):
    before = copy.deepcopy(net.state_dict())
    train, val = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True), [(X[:8], Y[:8])]
    arguments = {"train": train, "val": val, "epochs": 1, "output": tmp_path, "fit": {"steps": 2}, "quiet": True}
    small, report = pdecnn.condense(net, X[:1], **arguments)
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in before.items())
    assert set(report.accuracies) == {"teacher", "new layers untrained", "fitted, no labels", "distilled"}
    assert set(report.speedups) == {"batch_1", "batch_64"}
    left = {p.name for p in tmp_path.iterdir()}
    assert {"plan.json", "teacher", "student", "student.onnx", "result.json", "report.html", "job.json"} == left
    assert report.to_html() == (tmp_path / "report.html").read_text()
    assert "accuracy, %" in str(report)
    loaded = pdecnn.load(tmp_path, factory=lambda: net)
    with torch.no_grad():
        assert torch.equal(loaded(X), small(X))
    again, second = pdecnn.condense(net, X[:1], **arguments, resume=True)
    assert second.job == report.job
    assert torch.equal(again.eval()(X), small(X))
    with pytest.raises(ValueError, match=r"started with other settings \(epochs: 1 -> 2\)"):
        pdecnn.condense(net, X[:1], **{**arguments, "epochs": 2}, resume=True)


def test_without_labels_the_table_shows_agreement_with_the_teacher(net, capsys):
    images = TensorDataset(X)
    _, report = pdecnn.condense(net, X[:1], train=images, val=[X], epochs=1, batch_size=8, fit={"steps": 1})
    shown = capsys.readouterr().err.splitlines()
    assert "Sequential: 1 epochs of 3 steps" in shown
    stages = ["evaluating", "fitting new layers", "timing batches of 64: 15 parts"]
    stages += ["writing and comparing ONNX files: 3 parts", "timing batches of 64 in ONNX Runtime: 15 parts"]
    assert [line for line in shown if line in stages] == [*stages[:1] * 2, stages[1], *stages[:1] * 2, *stages[2:]]
    assert report.accuracies["teacher"] == 100.0
    labels = [row[0] for row in report.job.rows()]
    assert labels[0] == "agreement with the teacher, %"
    assert "answers as the teacher does on" in report.to_html()
    json.dumps(report.to_dict())


def test_without_evaluation_images_there_is_no_accuracy(net):
    small = pdecnn.plan(net, X[:1]).apply(net)
    result = pdecnn.distill(small, net, TensorDataset(X, Y), epochs=1, batch_size=8, reporter=Reporter())
    assert result.accuracy is None
    assert result.step == 3


def test_accuracy_without_labels_is_agreement_with_the_teacher():
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(300, 3))
    student = copy.deepcopy(teacher)
    result = pdecnn.distill(student, teacher, [X], epochs=1, lr=1e-6, val=[X], reporter=Reporter())
    assert result.history[-1]["train_accuracy"] == 100
    assert result.accuracy == 100


def test_new_layers_learn_faster_than_kept_blocks(net):
    small = pdecnn.plan(net, X[:1]).apply(net)
    (site,) = sites(small)
    optimizer = {"lr": 0.1, "lr_scale": {site: 10.0}, "weight_decay": 0.01, "decay_bias_and_norm": False}
    recipe = Recipe.parse({"model": {"name": "x"}, "data": {"name": "x"}, "epochs": 2, "optimizer": optimizer})
    made = make_optimizer(small, recipe)
    rates = {id(p): group["lr"] for group in made.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in made.param_groups for p in group["params"]}
    assert len(rates) == len(list(small.parameters()))
    for name, parameter in small.named_parameters():
        assert rates[id(parameter)] == pytest.approx(1.0 if name.startswith(f"{site}.") else 0.1)
        assert decays[id(parameter)] == (0.01 if parameter.ndim > 1 else 0.0)
    schedule = make_schedule(made, recipe, 10)
    schedule.step_update(10)
    now = sorted({round(group["lr"], 6) for group in made.param_groups})
    assert now == pytest.approx([0.05, 0.5])


@pytest.mark.parametrize("size, last", [(10, False), (64, True)])
def test_large_images_are_distilled_in_channels_last(net, size, last):
    x = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    seen = []
    small = pdecnn.plan(net.eval(), x[:1]).apply(net)

    def hook(m, args, out):  # of a step of training, not of a look before it
        if m.training:
            seen.append(args[0].is_contiguous())

    small[0].register_forward_hook(hook)
    pdecnn.distill(small, net, [(x, Y[:4])], epochs=1, reporter=Reporter())
    assert seen == [not last]


def test_a_fit_that_does_not_help_is_undone(net, monkeypatch):
    plan = pdecnn.plan(net.eval(), X[:1])
    student = plan.apply(net).eval()
    start = copy.deepcopy(student.state_dict())
    with torch.no_grad():
        wanted = net(X[18:])

    def spoil(layer, x, y, held, **options):
        from pdecnn.condensation.fit import Fitted

        with torch.no_grad():
            for p in layer.parameters():
                p.add_(100.0)
        return Fitted(options["site"], 1.0, 1.0, 0.5)

    good = copy.deepcopy(student)
    (found,) = fit_layers(good, net, plan, [X[:18], X[18:]], steps=20)
    with torch.no_grad():
        assert answer_distance(good.eval()(X[18:]), wanted) <= answer_distance(student(X[18:]), wanted)
    monkeypatch.setattr("pdecnn.condensation.fit.fit_layer", spoil)
    (found,) = fit_layers(student, net, plan, [X[:18], X[18:]])
    assert not found.kept
    assert "undone" in str(found)
    assert all(torch.equal(value, start[key]) for key, value in student.state_dict().items())


def test_each_layer_is_undone_or_kept_on_its_own(monkeypatch):
    torch.manual_seed(0)
    runs = [nn.Sequential(*[Residual(8, 8, 1, False, True) for _ in range(3)]) for _ in range(2)]
    net = nn.Sequential(nn.Conv2d(3, 8, 3), *runs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)).eval()
    plan = pdecnn.plan(net, X[:1])
    student = plan.apply(net).eval()
    first, second = sites(student)
    start = copy.deepcopy(student.state_dict())
    from pdecnn.condensation import fit as room

    def spoil(layer, *given, site, **options):
        found = honest(layer, *given, site=site, **options)
        if site == second:
            with torch.no_grad():
                for p in layer.parameters():
                    p.add_(100.0)
        return found

    honest = room.fit_layer
    monkeypatch.setattr(room, "fit_layer", spoil)
    found = {f.site: f.kept for f in fit_layers(student, net, plan, [X[:18], X[18:]], steps=20)}
    assert found == {first: True, second: False}
    now = student.state_dict()
    assert all(torch.equal(now[key], start[key]) for key in now if key.startswith(f"{second}."))
    assert not all(torch.equal(now[key], start[key]) for key in now if key.startswith(f"{first}."))


def test_arguments_of_the_whole_job_need_images(net):
    with pytest.raises(ValueError, match="output= is for the whole job"):
        pdecnn.condense(net, X[:1], output="somewhere")
