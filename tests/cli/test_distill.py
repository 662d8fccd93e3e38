"""What `pdecnn distill` refuses before the first step, and what it starts from."""

import sys

import timm
import torch
from own_network import network
from typer.testing import CliRunner

import pdecnn
from pdecnn.cli import app

QUICK = ("quick/fashion-mini", "-o", "epochs=1", "-o", "data.train_limit=64", "-o", "data.test_limit=32")


def distill(*arguments):
    sys.argv = ["pdecnn", "distill", *QUICK, *map(str, arguments)]
    return CliRunner().invoke(app, sys.argv[1:])


def test_a_teacher_of_other_classes_or_images_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    few = pdecnn.save(timm.create_model("fashion_resnet32", num_classes=3), tmp_path / "few")
    result = distill("--teacher", few, "--output", tmp_path / "run")
    assert result.exit_code == 1
    assert "distill: the student answers with 10 classes, the teacher with 3. Name a teacher" in result.stderr
    result = distill("--teacher", "torchvision:resnet18", "--output", tmp_path / "run")
    assert "Error: distill: the teacher does not run on images of (1, 28, 28): " in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_teacher_made_by_the_users_code_is_asked_for_by_its_own_option(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "teacher_nets.py").write_text(network(10))
    import teacher_nets

    torch.manual_seed(0)
    folder = pdecnn.save(teacher_nets.make(), tmp_path / "own", base={"builder": "custom", "name": "teacher_nets:make"})
    result = distill("--teacher", folder, "--output", tmp_path / "run")
    assert result.exit_code == 1
    assert "unless you name it: --teacher-model teacher_nets:make on the command line" in result.stderr
    assert result.stderr.splitlines()[-1].endswith("--teacher-model teacher_nets:make")
    assert " --model" not in result.stderr


def test_a_student_starts_from_the_weights_of_another_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    torch.manual_seed(0)
    net = timm.create_model("fashion_resnet32")
    start = pdecnn.save(net, tmp_path / "start")
    result = distill(
        "--teacher", "fashion_resnet32.fashion_mini", "--init", start, "--output", tmp_path / "run", "--model",
        "fashion_resnet32", "-o", "optimizer.lr=1e-12", "-o", "schedule.warmup_epochs=0",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    after = pdecnn.load(tmp_path / "run")
    for name, p in net.named_parameters():
        torch.testing.assert_close(after.get_parameter(name), p, atol=1e-8, rtol=1e-6, msg=name)
