"""The loop against a plain one written out here, its options, distillation, and two processes against one."""

import copy
import json
import os
import socket
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf
from training_toys import recipe, single_thread, start, tiny_data, tiny_net

from pdecnn.training import Classification, Distillation, Metrics, evaluate, fit, make_loaders
from pdecnn.training.evaluation import part_of
from pdecnn.training.recipe import DistillRecipe, LossRecipe

PLAIN = {
    "ema_decay": None,
    "clip_grad": None,
    "schedule": {"name": "constant"},
    "data": {"name": "tiny", "batch_size": 10},
}


def test_the_loop_is_the_loop_one_would_write():
    settings = recipe(**PLAIN, optimizer={"name": "momentum", "lr": 0.05, "weight_decay": 1e-3})
    net, data = tiny_net(norm=False), tiny_data()
    twin = copy.deepcopy(net)
    result = fit(net, data, settings)

    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    losses = []
    for epoch in range(4):
        total = 0.0
        for x, y in make_loaders(data, settings).train.batches(epoch):
            optimizer.zero_grad()
            loss = nnf.cross_entropy(twin(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        losses.append(total / 60)
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert [row["train_loss"] for row in result.history] == pytest.approx(losses, rel=1e-6)
    normal = (data.test.x / 255 - 0.5) / 0.25
    right = (twin(normal).argmax(1) == data.test.y).sum().item()
    assert result.metrics is not None
    assert (result.metrics.correct, result.metrics.total) == (right, 30)


def test_it_learns():
    result = fit(tiny_net(), tiny_data(), recipe(epochs=12))
    assert result.accuracy is not None
    assert result.accuracy > 80
    assert result.history[-1]["train_loss"] < 0.6 * result.history[0]["train_loss"]


def test_same_seed_same_bits_other_seed_other_bits():
    nets = [tiny_net() for _ in range(3)]
    for net, seed in zip(nets, (7, 7, 8), strict=True):
        fit(net, tiny_data(), recipe(seed=seed, epochs=2))
    assert torch.equal(nets[0][0].weight, nets[1][0].weight)
    assert not torch.equal(nets[0][0].weight, nets[2][0].weight)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": {"mixup": 0.4, "cutmix": 1.0, "label_smoothing": 0.1}},
        {"precision": "bf16"},
        {"channels_last": True},
        {"onednn": False},
        {"optimizer": {"name": "adam", "lr": 0.01, "options": {"betas": [0.8, 0.95]}}},
        {"data": {"name": "tiny", "batch_size": 8, "hold_out": 10, "train_limit": 40}},
        {"evaluate_every": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_train_to_a_finite_loss(options):
    result = fit(tiny_net(), tiny_data(), recipe(**options))
    assert result.status == "finished"
    assert all(0 < row["train_loss"] < 3 for row in result.history)
    evaluated = [row["eval_accuracy"] is not None for row in result.history]
    assert evaluated == ([False] * 3 + [True] if "evaluate_every" in options else [True] * 4)


def test_the_moving_average_is_what_is_handed_back():
    raw, averaged = tiny_net(), tiny_net()
    fit(raw, tiny_data(), recipe(ema_decay=None))
    fit(averaged, tiny_data(), recipe(ema_decay=0.999))
    assert not torch.equal(raw[0].weight, averaged[0].weight)


def test_drop_path_rises_over_the_epochs():
    from timm.layers import DropPath

    net = nn.Sequential(*tiny_net(), DropPath(0.4))
    rates = []
    fit(net, tiny_data(), recipe(drop_path_ramp=True), on_step=lambda *_: rates.append(net[6].drop_prob))
    assert rates == pytest.approx([0.0] * 6 + [0.1] * 6 + [0.2] * 6 + [0.3] * 6)


def test_clipping_bounds_the_step():
    settings = recipe(
        **{**PLAIN, "clip_grad": 1e-3}, optimizer={"name": "momentum", "lr": 1.0, "momentum": 0.0}, epochs=1
    )
    net = tiny_net(norm=False)
    before = [p.detach().clone() for p in net.parameters()]
    fit(net, tiny_data(10), settings)  # one step
    length = torch.cat([(p - q).flatten() for p, q in zip(net.parameters(), before, strict=True)]).norm()
    assert length.item() == pytest.approx(1e-3, rel=1e-2)


def test_weight_decay_can_spare_biases():
    from pdecnn.training.optim import make_optimizer

    spared = make_optimizer(tiny_net(), recipe(optimizer={"weight_decay": 0.1, "decay_bias_and_norm": False}))
    decay = {len(g["params"]): g["weight_decay"] for g in spared.param_groups}
    assert decay == {4: 0.0, 2: 0.1}
    everything = make_optimizer(tiny_net(), recipe(optimizer={"weight_decay": 0.1}))
    assert {g["weight_decay"] for g in everything.param_groups if g["params"]} == {0.1}
    with pytest.raises(ValueError, match="optimizer 'nonsense'"):
        make_optimizer(tiny_net(), recipe(optimizer={"name": "nonsense"}))


class WithAux(nn.Module):
    def forward(self, x):
        return x, 2 * x


def test_auxiliary_logits_add_their_weighted_loss():
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    loss, logits = Classification(LossRecipe(aux_weight=0.4), 3)(WithAux(), x, y)
    torch.testing.assert_close(loss, nnf.cross_entropy(x, y) + 0.4 * nnf.cross_entropy(2 * x, y))
    assert torch.equal(logits, x)


def test_distillation_is_its_formula():
    torch.manual_seed(0)
    student, teacher = nn.Linear(4, 3), nn.Linear(4, 3)
    x, y, T, w = torch.randn(8, 4), torch.randint(0, 3, (8,)), 3.0, 0.7
    objective = Distillation(teacher, DistillRecipe(weight=w, temperature=T), Classification(LossRecipe(), 3))
    loss, _ = objective(student, x, y)
    p, q = (net(x).double().div(T).softmax(1) for net in (teacher, student))
    kl = (p * (p.log() - q.log())).sum(1).mean()
    expected = (1 - w) * nnf.cross_entropy(student(x), y).double() + w * T**2 * kl
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert student.weight.grad is not None
    assert teacher.weight.grad is None


def test_features_are_matched_by_name():
    def net(width):
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    task = Classification(LossRecipe(), 3)
    settings = DistillRecipe(weight=0.0, feature_weight=2.0, features={"0": "0"})
    student, teacher = net(5), net(5)
    loss, logits = Distillation(teacher, settings, task)(student, x, y)
    h, goal = student[0](x), teacher[0](x)
    expected = nnf.cross_entropy(logits, y) + 2 * (h - goal).square().mean() / goal.square().mean()
    torch.testing.assert_close(loss, expected)
    assert not student[0]._forward_hooks
    with pytest.raises(ValueError, match=r"student's '0' has shape \(8, 6\) but the teacher's '0' has \(8, 5\)"):
        Distillation(teacher, settings, task)(net(6), x, y)
    with pytest.raises(ValueError, match="the teacher Sequential has no module named '9'"):
        Distillation(teacher, DistillRecipe(feature_weight=1.0, features={"0": "9"}), task)
    with pytest.raises(ValueError, match="feature_weight needs features"):
        Distillation(teacher, DistillRecipe(feature_weight=1.0), task)


def test_a_teacher_is_compiled_where_its_student_is_and_neither_where_features_are_read(monkeypatch):
    taken, compiles = [], torch.compile

    def eagerly(model):
        taken.append(model)
        return compiles(model, backend="eager")

    monkeypatch.setattr(torch, "compile", eagerly)
    teacher, losses = tiny_net(norm=False), []

    def train(compiled, **learning):
        student = copy.deepcopy(teacher)
        nn.init.zeros_(student[5].weight)
        taken.clear()
        result = fit(
            student,
            tiny_data(),
            recipe(**PLAIN, compile=compiled, distill={"weight": 1.0, **learning}),
            teacher=teacher,
        )
        losses.append([row["train_loss"] for row in result.history])
        return [model is teacher for model in taken]

    assert sorted(train(True)) == [False, True]
    assert train(False) == []
    torch.testing.assert_close(losses[0], losses[1])
    assert train(True, features={"4": "4"}, feature_weight=1.0) == []


def test_a_student_comes_closer_to_its_teacher():
    teacher, data = tiny_net(), tiny_data()
    fit(teacher, data, recipe(epochs=12))
    torch.manual_seed(5)
    student = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    settings = recipe(epochs=12, distill={"weight": 1.0, "temperature": 2.0})
    before = _divergence(teacher, student, data)
    fit(student, data, settings, teacher=teacher)
    assert _divergence(teacher, student, data) < 0.3 * before


@torch.no_grad()
def _divergence(teacher, student, data):
    x = (data.test.x / 255 - 0.5) / 0.25
    p, q = (net.eval()(x).log_softmax(1) for net in (teacher, student))
    return nnf.kl_div(q, p, log_target=True, reduction="batchmean").item()


def test_an_objective_of_ones_own():
    net = tiny_net(norm=False)
    settings = recipe(**PLAIN)
    calls = []

    def objective(model, x, y):
        calls.append(len(y))
        logits = model(x)
        return nnf.mse_loss(logits, nnf.one_hot(y, 3).float()), logits

    result = fit(net, tiny_data(), settings, objective=objective)
    assert len(calls) == 24
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_evaluate_counts_and_restores_the_mode():
    net, data = tiny_net(), tiny_data()
    loader = make_loaders(data, recipe()).evaluation
    net.train()
    whole = evaluate(net, loader, num_classes=3)
    assert net.training
    halves = [evaluate(net, [batch], num_classes=3) for batch in loader]
    assert torch.equal(sum((h.confusion for h in halves[1:]), halves[0].confusion), whole.confusion)
    assert whole.correct == whole.confusion.diagonal().sum()
    assert whole.accuracy == pytest.approx(100 * whole.correct / 30)
    assert isinstance(whole, Metrics)
    with pytest.raises(ValueError, match="the loader gave no images"):
        evaluate(net, [])


def test_processes_read_their_own_evaluation_batches_only():
    read = []

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 7

        def __getitem__(self, i):
            read.append(i)
            return i

    ordered, shuffled = (torch.utils.data.DataLoader(Numbers(), batch_size=2, shuffle=s) for s in (False, True))
    assert [x.tolist() for x in part_of(ordered, 1, 2)] == [[2, 3], [6]]
    assert read == [2, 3, 6]
    assert [x.tolist() for x in part_of(ordered, 0, 1)] == [[0, 1], [2, 3], [4, 5], [6]]
    assert len(list(part_of(shuffled, 1, 2))) == 2
    assert [len(list(part_of(ordered, rank, 5))) for rank in range(5)] == [1, 1, 1, 1, 0]


def distributed(rank, world, port, folder):
    if world > 1:  # what torchrun sets
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
        os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in ranks.items()}})
    single_thread()
    losses = []
    settings = recipe(**{**PLAIN, "clip_grad": 1.0}, evaluate_every=2)
    net = tiny_net(norm=False)
    result = fit(net, tiny_data(), settings, run_dir=folder, on_step=lambda step, loss, lr: losses.append(loss))
    assert result.metrics is not None
    report = {"losses": losses, "correct": result.metrics.correct, "total": result.metrics.total}
    Path(f"{folder}-{rank}.json").write_text(json.dumps({**report, "weight": net[0].weight.flatten().tolist()}))
    if world > 1:
        torch.distributed.destroy_process_group()


def test_two_processes_give_the_loss_curve_of_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [start(distributed, rank, 2, port, str(tmp_path / "two")) for rank in range(2)]
    processes.append(start(distributed, 0, 1, port, str(tmp_path / "one")))
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    a, b, one = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("two-0", "two-1", "one-0"))
    assert len(one["losses"]) == 24
    assert a["losses"] == b["losses"]
    assert a["weight"] == b["weight"]
    assert a["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert a["weight"] == pytest.approx(one["weight"], rel=1e-3, abs=1e-5)
    assert (a["correct"], a["total"]) == (b["correct"], b["total"]) == (one["correct"], one["total"])


def test_the_run_folder_holds_everything(tmp_path):
    fit(tiny_net(), tiny_data(), recipe(tensorboard=True), run_dir=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["epochs"] == len(result["curve"]) == 4
    assert result["recipe"]["optimizer"]["lr"] == 0.05
    assert result["versions"]["torch"] == torch.__version__.split("+")[0]
    assert result["machine"]["threads"] == torch.get_num_threads()
    for figure in ("learning_curve.png", "confusion.png"):
        assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "confusion.csv").read_text().splitlines()
    assert table[0] == ",dark,grey,bright"
    assert sum(int(n) for line in table[1:] for n in line.split(",")[1:]) == 30
    assert list((tmp_path / "tensorboard").glob("events*"))
    steps = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    best = (tmp_path / "best").resolve().name
    assert set(steps) == {"step-000000020", "step-000000024", best}
    assert json.loads((tmp_path / "last/config.json").read_text())["metrics"]["accuracy"] == result["accuracy"]
