"""Fitting Global layers to feature maps, and distillation."""

import copy

import pytest
import timm
import torch
from planted_networks import Residual
from torch import nn

import pdecnn
from pdecnn.condensation.compare import comparison_rows, figures
from pdecnn.condensation.distill import matched_modules
from pdecnn.condensation.fit import fit_layer, fit_layers
from pdecnn.layers.global_layer import GlobalLayer
from pdecnn.training import load_dataset, load_recipe


def test_a_layer_recovers_a_layer_of_its_kind():
    torch.manual_seed(0)
    truth, layer = (GlobalLayer(4, K=3).eval() for _ in range(2))
    x = torch.rand(64, 4, 8, 8)
    with torch.no_grad():
        y = truth(x)
    found = fit_layer(layer, x, y, steps=150, lr=1e-2, batch_size=32, seed=0)
    assert found.after < 0.1 * found.skipped
    assert found.after <= found.before


def test_fitting_explains_more_than_leaving_the_blocks_out():
    torch.manual_seed(0)
    teacher = timm.create_model("cifar_resnet32", in_chans=1).eval()
    state = copy.deepcopy(teacher.state_dict())
    x = torch.randn(1, 1, 28, 28)
    plan = pdecnn.plan(teacher, x)
    student = plan.apply(teacher)
    fitted = fit_layers(student, teacher, plan, [(torch.randn(32, 1, 28, 28), None)], steps=10)
    assert [f.site for f in fitted] == [run.site for run in plan.runs]
    assert all(f.after < f.skipped and f.after <= f.before for f in fitted)
    assert all(torch.equal(v, state[k]) for k, v in teacher.state_dict().items())
    kept = student.stages[0][0].conv1.weight
    assert torch.equal(kept, teacher.stages[0][0].conv1.weight)
    with pytest.raises(ValueError, match="data gave no batch"):
        fit_layers(student, teacher, plan, [])


def test_fitting_leaves_the_block_of_the_first_guess_alone():
    teacher = nn.Sequential(nn.Conv2d(3, 16, 3), *(Residual(16, 16, 1, False, True) for _ in range(4))).train()
    small, report = pdecnn.condense(
        teacher, x := torch.randn(4, 3, 9, 9), init="block", data=[x], fit={"steps": 1}, options={"kernel_size": 1}
    )
    guess = small.get_submodule(report.plan.runs[0].site).init.state_dict()
    assert all(torch.equal(v, guess[k]) for k, v in teacher[2].state_dict().items())


def test_a_recipe_may_not_say_what_the_arguments_say():
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="recipe may not set data, epochs; the arguments of distill do"):
        pdecnn.distill(net, net, None, recipe={"epochs": 3, "data": {}, "evaluate_every": 1})


def test_a_recipe_changes_what_it_names_and_leaves_the_rest(tmp_path):
    teacher, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.randn(8, 1, 2, 2)
    changes = {"precision": "bf16", "optimizer": {"weight_decay": 0.25}}
    images = [(x, torch.arange(8) % 3)]
    pdecnn.distill(copy.deepcopy(teacher), teacher, images, epochs=1, recipe=changes, run_dir=tmp_path)
    kept = load_recipe(tmp_path / "recipe.yaml")
    assert kept.precision == "bf16"
    assert kept.optimizer.weight_decay == 0.25
    assert (kept.optimizer.name, kept.optimizer.lr) == ("sgd", 0.005)


def test_distillation_matches_each_site_and_learns():
    torch.manual_seed(0)
    data = load_dataset("fashion-mini").limit(256, 64)
    teacher = timm.create_model("fashion_resnet32.fashion_mini", pretrained=True).eval()
    small, _ = pdecnn.condense(teacher, torch.zeros(1, 1, 28, 28))
    assert matched_modules(small) == {f"stages.{i}.4": f"stages.{i}.4" for i in range(3)}
    result = pdecnn.distill(small, teacher, data, epochs=3, batch_size=32)
    losses = [row["train_loss"] for row in result.history]
    assert result.status == "finished"
    assert losses[-1] < 0.8 * losses[0]


def test_the_comparison_tells_both_models_apart(tmp_path):
    teacher = timm.create_model("fashion_resnet32").eval()
    small, _ = pdecnn.condense(teacher, image := torch.zeros(1, 1, 28, 28))
    files = {name: tmp_path / name for name in ("before", "after")}
    for file in files.values():
        file.write_bytes(b"12345")
    found, speedups = figures(
        {"before": teacher, "after": small}, image, {"before": 90.0, "after": 89.5}, files, rounds=3
    )
    assert found["before"].params > 5 * found["after"].params
    assert found["before"].macs > 4 * found["after"].macs
    assert set(speedups) == {"batch_1", "batch_64"}
    rows = {label: change for label, _, _, change in comparison_rows(found["before"], found["after"], {"batch_1": 0.5})}
    assert rows["accuracy, %"] == "-0.50"
    assert rows["parameters"] == "5.44 x less"
    assert rows["latency, batch 1, ms"] == "2.00 x more"
