"""One net for every K: what a step learns, that a resumed run is the same, and that no K collapses."""

import copy
import json

import pytest
import torch
from torch import nn
from training_toys import assert_same_weights, recipe, tiny_data

from pdecnn.layers import GlobalLayer, set_steps, with_steps
from pdecnn.layers.step_norm import StepNorm
from pdecnn.layers.steps import served_steps
from pdecnn.training import Recipe, RecipeError, evaluate, fit, load_dataset
from pdecnn.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from pdecnn.training.imitation import difference
from pdecnn.training.loaders import make_loaders
from pdecnn.training.objective import Classification
from pdecnn.training.recipe import LossRecipe
from pdecnn.training.sandwich import Sandwich
from pdecnn.training.seeding import seed_everything

STEPS = {"least": 1, "most": 5}


def net(K=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), GlobalLayer(4, K=K), nn.Dropout(0.1), nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip


def test_the_others_learn_from_the_largest_and_gradients_add_up():
    model = net()
    settings = recipe(steps=STEPS, loss={"mixup": 0.4})
    sandwich = Sandwich(model, settings)
    twin = copy.deepcopy(model)
    x, y = next(make_loaders(tiny_data(), settings).train.batches(0))
    objective, seen = Classification(LossRecipe(mixup=0.4), 3), []
    handle = model.register_forward_pre_hook(lambda m, args: seen.append((args[0], m[3].K)))
    seed_everything(1)
    losses = []
    for loss, _ in sandwich.losses(objective, model, x.clone(), y, step=7):
        loss.backward()
        losses.append(loss.item())
    handle.remove()
    assert [K for _, K in seen] == sandwich.draw(7)
    assert model[3].K == 3
    mixed = seen[0][0]
    assert not torch.equal(mixed, x)
    assert all(torch.equal(given, mixed) for given, _ in seen)

    seed_everything(1)
    largest, middle, least = sandwich.draw(7)
    set_steps(twin, largest)
    first, wanted = objective(twin, x.clone(), y)
    first.backward()
    found = [first.item()]
    for K in (middle, least):
        set_steps(twin, K)
        loss = difference(twin(mixed), wanted.detach(), 1.0)
        loss.backward()
        found.append(loss.item())
    assert losses == found
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_the_K_between_is_a_function_of_seed_and_step():
    one, same, other = (Sandwich(net(), recipe(steps=STEPS, seed=seed)) for seed in (0, 0, 1))
    drawn = [one.draw(step) for step in range(60)]
    assert drawn == [same.draw(step) for step in range(60)] != [other.draw(step) for step in range(60)]
    assert {K for _, K, _ in drawn} == {2, 3, 4}
    assert {(a, c) for a, _, c in drawn} == {(5, 1)}
    assert Sandwich(net(1), recipe(steps={"least": 1, "most": 2})).draw(3) == [2, 1]


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    settings = recipe(steps=STEPS)

    class StopError(Exception):
        pass

    def stop_at(at, step):
        if step == at:
            raise StopError

    fit(net(), tiny_data(), settings, run_dir=tmp_path / "whole")
    for at in (5, 15):
        with pytest.raises(StopError):
            fit(
                net(),
                tiny_data(),
                settings,
                run_dir=tmp_path / "parts",
                resume=True,
                on_step=lambda step, *_, at=at: stop_at(at, step),
            )
    fit(net(), tiny_data(), settings, run_dir=tmp_path / "parts", resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_a_checkpoint_keeps_the_statistics_of_every_K(tmp_path):
    model = net()
    fit(model, tiny_data(), recipe(steps=STEPS, epochs=2), run_dir=tmp_path / "run")
    assert served_steps(model) == (1, 5)
    rows = model[3].norm.running_var
    assert all(not torch.equal(rows[i], rows[j]) for i in range(5) for j in range(i))
    config = json.loads((tmp_path / "run" / "last" / "config.json").read_text())
    assert config["model"]["steps"] == STEPS
    again = load_checkpoint(tmp_path / "run", model=net()).model
    x = torch.randn(3, 1, 8, 8)
    model.eval()
    for K in range(1, 6):
        with with_steps(model, K), with_steps(again, K), torch.no_grad():
            assert torch.equal(model(x), again(x))
    config["model"]["steps"] = {"least": 1, "most": 10**9}
    save_checkpoint(tmp_path / "odd", net(), config)
    with pytest.raises(CheckpointError, match=r"most=1000000000|from 1 to 10,000"):
        load_checkpoint(tmp_path / "odd", model=net())


def test_what_makes_no_sense_is_refused():
    with pytest.raises(RecipeError, match="least=3 must be below most=3"):
        recipe(steps={"least": 3, "most": 3})
    with pytest.raises(ValueError, match="has no layer with K time steps"):
        fit(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), tiny_data(), recipe(steps=STEPS))


def small_net(K=3):
    torch.manual_seed(0)
    parts = [nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), GlobalLayer(16, K=K)]
    parts += [nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(), GlobalLayer(24, K=K)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


def trained(images, tests, epochs, batch_size=64, **more):
    data = load_dataset("fashion-mini").limit(images, tests)
    settings = Recipe.parse(
        {
            "model": {"name": "small"}, "data": {"name": "fashion-mini", "batch_size": batch_size},
            "epochs": epochs, "evaluate_every": 0, "optimizer": {"lr": 0.1, "weight_decay": 5e-4},
            "schedule": {"warmup_epochs": 0.2}, "tensorboard": False, **more,
        }
    )  # fmt: skip
    model = small_net()
    fit(model, data, settings)
    tests = make_loaders(data, settings).evaluation
    found = {}
    for K in range(1, 11):
        with with_steps(model, K):
            found[K] = evaluate(model, tests).accuracy
    return model, found


def test_a_short_training_serves_every_K():
    model, found = trained(1000, 500, 2, 32, steps={"least": 1, "most": 10})
    assert all(isinstance(model[i].norm, StepNorm) for i in (3, 7))
    assert min(found.values()) > 40, found
    assert max(found.values()) - min(found.values()) < 10, found


@pytest.mark.slow
def test_no_K_collapses_in_a_real_training():
    _, alone = trained(5000, 1000, 3)
    _, found = trained(5000, 1000, 3, steps={"least": 1, "most": 10})
    assert min(found.values()) > 70, found
    assert max(found.values()) - min(found.values()) < 3, found
    assert min(alone.values()) < 60, alone  # what a net that was trained for one K does at the others
