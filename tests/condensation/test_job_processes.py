"""The whole job in two processes, as torchrun starts them: one plan, one writer, the same bits after a kill."""

import json
import os
import socket
from pathlib import Path

import pytest
import torch
from planted_networks import Residual
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_toys import single_thread, start

import pdecnn
from pdecnn.condensation import job as whole_job
from pdecnn.condensation.stages import digest
from pdecnn.training.stream import StreamLoader
from pdecnn.training.trainer import Trainer

LEFT = {"plan.json", "teacher", "student", "result.json", "report.html", "job.json"}
KILLED = 9


def small_net() -> nn.Module:
    blocks = [Residual(8, 8, 1, False, True) for _ in range(4)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


def job(rank, world, port, folder, dies=False):
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}  # what torchrun sets
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in ranks.items()}})
    single_thread()
    whole_job.deploy = lambda *_, **options: (None, [])  # ONNX files have tests of their own and take longest
    if dies:
        ends = Trainer.end_epoch
        Trainer.end_epoch = lambda self, epoch: (ends(self, epoch), os._exit(KILLED))
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(25, 3, 10, 10, generator=g), torch.randint(0, 3, (25,), generator=g)
    train = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)  # the last batch has one image
    torch.manual_seed(rank)  # each process draws other weights; those of the first count
    small, report = pdecnn.condense(
        small_net(), x[:1], train=train, val=[(x[:8], y[:8]), (x[8:], y[8:])], epochs=2, output=folder, resume=True,
        fit={"steps": 2}, quiet=True,
    )  # fmt: skip
    found = report.job.to_dict()
    told = {name: found[name] for name in ("plan", "accuracies", "fitted")}
    losses = [(row["train_loss"], row["eval_loss"]) for row in found["history"]]
    Path(f"{folder}-{rank}.json").write_text(json.dumps({**told, "losses": losses, "weights": digest(small)}))
    if world > 1:
        torch.distributed.destroy_process_group()


def run(folder, world, dies=False):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [start(job, rank, world, port, str(folder), dies) for rank in range(world)]
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [KILLED if dies else 0] * world
    return [] if dies else [json.loads(Path(f"{folder}-{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def two(home):
    return run(home / "two", 2)


def test_all_processes_hold_one_student_and_the_first_alone_writes(home, two):
    a, b = two
    assert a == b
    assert {path.name for path in (home / "two").iterdir()} == LEFT
    assert set(a["accuracies"]) == {"teacher", "new layers untrained", "fitted, no labels", "distilled"}


def test_all_but_the_distillation_is_that_of_one_process(home, two):
    (one,) = run(home / "one", 1)
    a = two[0]
    assert a["plan"] == one["plan"]
    assert a["fitted"] == one["fitted"]
    for stage in ("teacher", "new layers untrained", "fitted, no labels"):
        assert a["accuracies"][stage] == one["accuracies"][stage]
    for mine, theirs in zip(a["losses"], one["losses"], strict=True):  # batch norms see half of each batch
        assert mine == pytest.approx(theirs, rel=0.2)


def test_a_job_killed_between_epochs_continues_to_the_same_bits(home, two):
    run(home / "killed", 2, dies=True)
    assert not (home / "killed" / "result.json").exists()
    assert run(home / "killed", 2) == two
    weights = [(home / name / "student" / "model.safetensors").read_bytes() for name in ("two", "killed")]
    assert weights[0] == weights[1]
    assert run(home / "killed", 2) == two  # it is finished: all are told so


def test_a_batch_that_does_not_divide_is_an_error_and_not_a_deadlock():
    with pytest.raises(ValueError, match="a batch of 10 does not divide among 4 processes"):
        StreamLoader(list(range(40)), 10, 0, 0, rank=0, world_size=4)
