"""Any task: networks that give maps, pyramids, dicts or boxes are planned, fitted, distilled, saved and exported."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from task_networks import MAKERS, Signals, inputs, make
from torch import nn
from torch.nn import functional

import pdecnn
from pdecnn.condensation.compare import Figures
from pdecnn.condensation.job import JobResult
from pdecnn.deploy.api import session
from pdecnn.layers import GlobalLayer1d, GlobalLayer3d
from pdecnn.shared.modules import tensors_in
from pdecnn.shared.trees import arguments, named_tensors
from pdecnn.training.imitation import Imitation, relative
from pdecnn.training.progress import Reporter
from pdecnn.training.recipe import DistillRecipe


def boxes(n: int) -> list[dict[str, torch.Tensor]]:
    return [{"boxes": torch.tensor([[5.0, 5.0, 30.0, 40.0]]), "labels": torch.tensor([1])} for _ in range(n)]


def condensed(name: str) -> tuple[nn.Module, nn.Module, object]:
    """Signals by the default, the others by the published layer, which does not start as the identity."""
    teacher, x = make(name), inputs(name)
    plan = pdecnn.plan(teacher, x, K=2, replacement="pde" if name == "signal" else "paper")
    student = plan.apply(teacher)
    pdecnn.condensation.fit_layers(student, teacher, plan, [(x, None)], steps=2)
    return student, teacher, x


def away(student: nn.Module, teacher: nn.Module, x: object, features: tuple[str, ...] = ()) -> float:
    judge = Imitation(teacher, DistillRecipe(features={f: f for f in features}, feature_weight=1.0))
    return judge.evaluate(student, [(x, torch.full((6,), -1))]).accuracy


@pytest.mark.parametrize("name", MAKERS)
def test_a_few_steps_bring_the_student_nearer_to_its_teacher(name):
    student, teacher, x = condensed(name)
    features = ("backbone",) if name == "detector" else ()
    before = away(student, teacher, x, features)
    options = {"features": features, "feature_weight": 1.0} if features else {}
    result = pdecnn.distill(student, teacher, [(x, None)] * 8, epochs=3, lr=0.003, reporter=Reporter(), **options)
    assert result.status == "finished"
    assert 0 < away(student, teacher, x, features) < before


def test_signals_and_volumes_get_layers_of_their_dimension():
    for name, kind in (("signal", GlobalLayer1d), ("volume", GlobalLayer3d)):
        plan = pdecnn.plan(make(name), inputs(name), replacement="paper")
        assert [(run.path, len(run.units)) for run in plan.runs] == [("1.0-2", 3)]
        assert plan.after.params < plan.before.params
        student = plan.apply(make(name))
        assert isinstance(student.get_submodule("1.2"), kind)
        assert pdecnn.Plan.from_dict(plan.to_dict()) == plan
        with pytest.raises(ValueError, match="convolutions, 1 has none"):
            plan.apply(Signals(2))
        with pytest.raises(ValueError, match="-D maps has no option 'upwind'"):
            pdecnn.plan(make(name), inputs(name), options={"upwind": True}).apply(make(name))


def test_channels_of_attention_are_not_taken_for_signals():
    class Eca(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.weigh = nn.Conv2d(8, 8, 3, padding=1), nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, x):
            h = self.conv(x)
            return torch.relu(h * self.weigh(h.mean((2, 3))[:, None]).transpose(1, 2)[..., None] + x)

    net = nn.Sequential(nn.Conv2d(3, 8, 3), *(Eca() for _ in range(4)))
    (run,) = pdecnn.plan(net, torch.zeros(1, 3, 12, 12)).runs
    assert run.shape == (8, 10, 10)
    assert len(run.units) == 5  # with the first convolution, which has the same kernel


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """All condensed networks in folders, with the answers of each, read again by one fresh process."""
    home = tmp_path_factory.mktemp("saved")
    for name in MAKERS:
        teacher, x = make(name), inputs(name)
        student = pdecnn.plan(teacher, x, K=2).apply(teacher).eval()
        pdecnn.save(student, home / name)
        with torch.no_grad():
            torch.save([q.clone() for q in tensors_in(student(*arguments(student, x)))], home / f"{name}.pt")
    code = (
        "import sys, torch, pdecnn\n"
        "from task_networks import MAKERS, inputs\n"
        "from pdecnn.shared.modules import tensors_in\n"
        "from pdecnn.shared.trees import arguments\n"
        "for name, factory in MAKERS.items():\n"
        "    model = pdecnn.load(f'{sys.argv[1]}/{name}', factory=factory)\n"
        "    with torch.no_grad():\n"
        "        found = tensors_in(model(*arguments(model, inputs(name))))\n"
        "    wanted = torch.load(f'{sys.argv[1]}/{name}.pt')\n"
        "    same = len(found) == len(wanted) and all(torch.equal(a, b) for a, b in zip(found, wanted))\n"
        "    print(name, 'same' if same else 'other')\n"
    )
    run = [sys.executable, "-c", code, str(home)]
    done = subprocess.run(run, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (home / "said").write_text(done.stdout)
    return home


def test_a_fresh_process_loads_them_and_answers_alike(saved):
    assert (saved / "said").read_text().split("\n")[:-1] == [f"{name} same" for name in MAKERS]


@pytest.mark.parametrize(
    "name, outputs",
    [
        ("signal", ["logits"]),
        ("volume", ["logits"]),
        ("unet", ["output"]),
        ("deeplab", ["out", "aux"]),
        ("features", ["output_0", "output_1"]),
        ("two", ["mask", "boxes_0"]),
        ("detector", ["0", "1"]),
    ],
)
def test_onnx_files_agree_at_two_sizes_and_have_the_names(name, outputs, tmp_path):
    teacher, x = make(name), inputs(name)
    model = pdecnn.plan(teacher, x, K=1).apply(teacher).eval()
    if name == "detector":  # what it does after depends on the values
        model, x = model.backbone, torch.stack([q[:, :48, :48] for q in x])
    report = pdecnn.export(model, tmp_path / "net.onnx", x, dynamic="size")
    assert report.agreement.max_error < 1e-4
    file = session(tmp_path / "net.onnx")
    assert [q.name for q in file.get_outputs()] == outputs
    assert [q.name for q in file.get_inputs()] == (["depth", "image"] if name == "two" else ["input"])
    assert all(isinstance(size, str) for size in file.get_inputs()[0].shape[2:])


def test_own_loss_metric_and_distance_are_used():
    student, teacher, x = condensed("unet")
    y = torch.randint(0, 3, (6, 16, 24))
    seen = []

    def l1(answer, wanted):
        seen.append("distance")
        assert answer.shape == wanted.shape
        return functional.l1_loss(answer, wanted)

    def cross_entropy(answer, labels):
        seen.append("loss")
        assert labels.shape == (6, 16, 24)
        return functional.cross_entropy(answer, labels)

    def pixel_error(answer, labels):
        seen.append("metric")
        return (answer.argmax(1) != labels).float().mean()

    pixel_error.higher_is_better = False
    result = pdecnn.distill(
        student, teacher, [(x, y)], val=[(x, y)], epochs=1, loss=cross_entropy, distance=l1, metric=pixel_error,
        reporter=Reporter(),
    )  # fmt: skip
    assert seen == ["distance", "loss", "metric"]
    expected = (student.eval()(x).argmax(1) != y).float().mean().item()
    assert result.accuracy == pytest.approx(expected)
    assert result.history[-1]["metric"] == "pixel error"
    assert not result.metrics.higher_is_better


def test_a_metric_that_sums_up_is_asked_for_its_value_at_the_end():
    class MeanIoU:
        higher_is_better = True

        def reset(self):
            self.hits, self.calls = 0, 0

        def update(self, answer, labels):
            self.hits, self.calls = self.hits + int((answer.argmax(1) == labels).sum()), self.calls + 1

        def compute(self):
            return torch.tensor(self.hits / 10 + self.calls)

    teacher, x = make("unet"), inputs("unet")
    labels = teacher(x).argmax(1)
    judge = Imitation(teacher, DistillRecipe(), metric=MeanIoU())
    score = judge.evaluate(teacher, [(x[:4], labels[:4]), (x[4:], labels[4:])])
    assert score.accuracy == pytest.approx(labels.numel() / 10 + 2)
    assert judge.metric_name == "MeanIoU"


def test_a_classifier_with_a_metric_keeps_its_loss():
    teacher, x, y = make("signal"), inputs("signal"), torch.tensor([0, 1, 2, 3, 0, 1])
    objective = Imitation(teacher, DistillRecipe(weight=0.25), metric=lambda a, b: 0.0)
    other = make("signal")
    nn.init.zeros_(other[4].weight)
    loss, logits = objective(other, x, y)
    answer, wanted = other(x), teacher(x)
    T = 4.0
    kl = functional.kl_div(
        functional.log_softmax(answer / T, 1), functional.softmax(wanted / T, 1), reduction="batchmean"
    )
    torch.testing.assert_close(loss, 0.25 * T**2 * kl + 0.75 * functional.cross_entropy(answer, y))
    assert logits is None


def test_a_detector_learns_from_its_own_losses_and_from_feature_maps():
    student, teacher, x = condensed("detector")
    objective = Imitation(teacher, DistillRecipe(weight=0.5, features={"backbone": "backbone"}, feature_weight=2.0))
    student.train()
    torch.manual_seed(0)
    loss, _ = objective(student, x, boxes(6))
    torch.manual_seed(0)
    own = sum(student(x, boxes(6)).values())
    images = teacher.transform(x)[0].tensors
    maps = relative(student.backbone(images), teacher.backbone(images))
    torch.testing.assert_close(loss, 0.5 * own + 2.0 * maps, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_learnt_is_said_before_anything_is_trained():
    student, teacher, x = condensed("unet")
    with pytest.raises(ValueError, match="loss= is given the labels y, but the batches have none"):
        pdecnn.distill(student, teacher, [x], loss=functional.cross_entropy)
    with pytest.raises(ValueError, match=r"features names 'midle'.*Close: 'middle'"):
        pdecnn.distill(student, teacher, [x], features=["midle"])
    net, images = make("detector"), inputs("detector")
    with pytest.raises(ValueError, match=r'give batches \(images, targets\) or features=\["backbone"\]'):
        pdecnn.distill(make("detector"), net, [(images, None)])
    with pytest.raises(ValueError, match=r"the teacher's answer 'aux' has shape .* the student has only 'out'"):
        relative({"out": torch.zeros(1, 2)}, {"out": torch.zeros(1, 2), "aux": torch.zeros(2)})
    assert list(named_tensors((torch.zeros(1), [torch.zeros(1)]))) == ["0", "1.0"]


def figures(value: float) -> Figures:
    return Figures(value, 10, 10, 10, 10, 2, 1.0, None, 10, 10)


def test_the_metric_is_in_the_table_in_place_of_accuracy():
    plan = pdecnn.plan(make("signal"), inputs("signal"))
    both = figures(0.25), figures(0.5)
    result = JobResult(
        Path(), plan, *both, {"batch_1": 1.5}, {}, (), (), 0, 1.0, metric="error", higher_is_better=False
    )
    assert result.rows()[0] == ("error (less is better)", "0.25", "0.5", "+0.25")
    assert "latency, batch 64, ms" not in [row[0] for row in result.rows()]
    assert JobResult.from_dict(json.loads(json.dumps(result.to_dict())), Path()).rows() == result.rows()


@pytest.mark.slow
def test_the_whole_job_of_a_network_that_is_no_classifier(tmp_path):
    teacher, x, y = make("unet"), inputs("unet"), torch.randint(0, 3, (6, 16, 24))

    def pixel_accuracy(answer, labels):
        return (answer.argmax(1) == labels).float().mean()

    small, report = pdecnn.condense(
        teacher, x[:1], train=[(x, y)], val=[(x, y)], loss=functional.cross_entropy, metric=pixel_accuracy, epochs=1,
        K=2, fit={"steps": 2}, output=tmp_path / "job", quiet=True,
    )  # fmt: skip
    assert set(report.accuracies) == {"teacher", "new layers untrained", "fitted, no labels", "distilled"}
    assert report.accuracies["teacher"] == pytest.approx(pixel_accuracy(teacher(x), y).item())
    assert report.job.rows()[0][0] == "pixel accuracy"
    assert "pixel accuracy" in (tmp_path / "job/report.html").read_text()
    assert (tmp_path / "job/student.onnx").is_file()
    again = pdecnn.load(tmp_path / "job", factory=MAKERS["unet"])
    torch.testing.assert_close(again(x), small(x))


@pytest.mark.parametrize("name", ["signal", "unet"])
def test_a_condensed_network_can_be_traced_and_exported_by_torch_itself(name, tmp_path):
    teacher, x = make(name), inputs(name)
    small = pdecnn.plan(teacher, x, K=2).apply(teacher).eval()
    traced = torch.jit.trace(small, x)
    torch.testing.assert_close(traced(2 * x), small(2 * x), rtol=1e-4, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about the older exporter
        torch.onnx.export(small, (x,), tmp_path / "net.onnx", dynamo=name == "unet")
    file = session(tmp_path / "net.onnx")
    (found,) = file.run(None, {file.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), small(x).detach(), rtol=1e-4, atol=1e-4)
