"""Recipes: validation that names the key, overrides, files, and the recipes of the package."""

import math

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from training_toys import recipe

from pdecnn.training import Recipe, RecipeError, build_model, list_recipes, load_recipe

MINIMAL = {"model": {"name": "test_resnet"}, "data": {"name": "fashion-mini"}, "epochs": 2}


@pytest.mark.parametrize(
    "assignment, message",
    [
        ("optimizer.learning_rate=1", r"no setting 'optimizer\.learning_rate'\. .*There are name, lr, momentum"),
        ("optimizer.lr=-1", r"optimizer\.lr: Input should be greater than 0, got -1"),
        ("optimizer.lr=.inf", r"optimizer\.lr is inf; a finite number is expected"),
        ("optimizer.lr=.nan", r"optimizer\.lr is nan; a finite number is expected"),
        ("epochs=0", r"epochs: Input should be greater than or equal to 1, got 0"),
        ("epochs=many", r"epochs: .*integer.*'many'"),
        ("data.batch_size=0", r"data\.batch_size: "),
        ("data.augment.flip=1.5", r"data\.augment\.flip: .*less than or equal to 1"),
        ("loss.label_smoothing=1", r"loss\.label_smoothing: .*less than 1"),
        ("schedule.name=zigzag", r"schedule\.name: .*'cosine'.*got 'zigzag'"),
        ("schedule.name=multistep", r"schedule: .*milestones"),
        ("schedule={name: multistep, milestones: [3, 2]}", r"schedule: .*must rise"),
        ("schedule.warmup_epochs=2", r"warmup_epochs=2 must be below epochs=2"),
        ("ema_decay=1", r"ema_decay: "),
        ("precision=int4", r"precision: "),
        ("epochs.more=1", r"epochs\.more: 'epochs' is a value and has no parts"),
        ("epochs", r"expected key=value such as optimizer\.lr=0\.05, got 'epochs'"),
        ("=3", r"expected key=value"),
        ("model={name: [", r"-o model=\{name: \[ is not valid YAML"),
    ],
)
def test_wrong_settings_are_named(assignment, message):
    with pytest.raises(RecipeError, match=message):
        Recipe.parse(MINIMAL).override([assignment])


def test_overrides_reach_any_depth_and_leave_the_original():
    base = Recipe.parse(MINIMAL)
    new = base.override(
        ["optimizer.lr=1e-3", "data.augment.scale=[0.8, 1.2]", "model.kwargs.num_classes=7", "distill.weight=0.5"]
    )
    assert new.optimizer.lr == 1e-3
    assert new.data.augment.scale == (0.8, 1.2)
    assert new.model.kwargs == {"num_classes": 7}
    assert new.distill is not None
    assert new.distill.weight == 0.5
    assert base.optimizer.lr == 0.1


@settings(deadline=None)  # machines may be busy
@given(
    lr=st.floats(1e-6, 10),
    epochs=st.integers(1, 1000),
    batch=st.integers(1, 4096),
    flip=st.floats(0, 1),
    ema=st.none() | st.floats(0.5, 0.9999),
    kwargs=st.dictionaries(st.text(st.characters(categories=["Ll"]), min_size=1), st.integers() | st.booleans()),
)
def test_yaml_round_trip_is_exact(tmp_path_factory, lr, epochs, batch, flip, ema, kwargs):
    values = {**MINIMAL, "model": {"name": "net", "kwargs": kwargs}, "epochs": epochs, "ema_decay": ema}
    values["optimizer"] = {"lr": lr}
    values["data"] = {"name": "x", "batch_size": batch, "augment": {"flip": flip}}
    first = Recipe.parse(values)
    file = tmp_path_factory.mktemp("recipe") / "r.yaml"
    file.write_text(first.to_yaml())
    assert load_recipe(file) == first


@settings(deadline=None)  # machines may be busy
@given(key=st.text(min_size=1), value=st.integers() | st.text() | st.none())
def test_unknown_keys_never_pass(key, value):
    if key in Recipe.model_fields:
        return
    with pytest.raises(RecipeError, match="there is no setting"):
        Recipe.parse({**MINIMAL, key: value})


@settings(deadline=None)  # machines may be busy
@given(text=st.text(max_size=60))
def test_any_text_is_a_recipe_or_a_clear_error(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("recipe") / "r.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RecipeError, match="recipe: "):
        load_recipe(file)


def test_code_in_a_recipe_is_refused(tmp_path):
    file = tmp_path / "evil.yaml"
    file.write_text("model: !!python/object/apply:os.system ['touch /tmp/owned']\nepochs: 1\n")
    with pytest.raises(RecipeError, match=r"a value of the kind 'os\.system' is not allowed"):
        load_recipe(file)


@pytest.mark.parametrize("base", ["../../../etc/passwd", "/etc/passwd", "quick/../quick/fashion-mini", "nothing", "3"])
def test_extends_cannot_leave_the_package(tmp_path, base):
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump({"extends": base, "epochs": 1}))
    with pytest.raises(RecipeError, match="extends must name a recipe of the package"):
        load_recipe(file)


def test_extends_merges_part_by_part(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("extends: quick/fashion-mini\noptimizer: {lr: 0.25}\n")
    base, new = load_recipe("quick/fashion-mini"), load_recipe(file)
    assert new.optimizer.lr == 0.25
    assert new.optimizer.weight_decay == base.optimizer.weight_decay
    assert new.data == base.data


def test_unknown_recipe_gives_close_names():
    with pytest.raises(RecipeError, match=r"no recipe named 'quick/fashion'\. Close: 'quick/fashion-mini'"):
        load_recipe("quick/fashion")


def test_every_recipe_of_the_package_is_valid_and_names_a_model():
    from pdecnn.models.build import check_model_name

    found = list_recipes()
    assert len(found) >= 5
    for name, header in found.items():
        chosen = load_recipe(name)
        check_model_name(chosen.model.name)
        assert len(header) > 20, name
        assert header.endswith("."), name


def test_schedules_at_known_steps():
    from training_toys import tiny_net

    from pdecnn.training.optim import make_optimizer, make_schedule

    def lrs(schedule, epochs=10, steps=10):
        chosen = recipe(schedule=schedule, epochs=epochs, optimizer={"lr": 1.0})
        optimizer = make_optimizer(tiny_net(), chosen)
        timetable = make_schedule(optimizer, chosen, steps)
        values = []
        for step in range(epochs * steps):
            timetable.step_update(step)
            values.append(optimizer.param_groups[0]["lr"])
        return values

    assert set(lrs({"name": "constant"})) == {1.0}
    steps = lrs({"name": "multistep", "milestones": [5, 8], "decay_rate": 0.1})
    assert steps[48] == 1.0
    assert steps[50] == pytest.approx(0.1)
    assert steps[80] == pytest.approx(0.01)
    cosine = lrs({"name": "cosine"})
    assert cosine[25] == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert cosine[50] == pytest.approx(0.5)
    warm = lrs({"name": "cosine", "warmup_epochs": 2, "warmup_lr": 0.0})
    assert warm[10] == pytest.approx(0.5)
    halved = lrs({"name": "step", "decay_epochs": 2, "decay_rate": 0.5})
    assert halved[19:21] == [1.0, 0.5]


def test_a_shorter_run_has_a_shorter_warm_up():
    recipe = Recipe.parse({**MINIMAL, "epochs": 10, "schedule": {"warmup_epochs": 2}})
    assert recipe.override(["epochs=1"]).schedule.warmup_epochs == pytest.approx(0.2)
    assert recipe.override(["epochs=5"]).schedule.warmup_epochs == 2
    with pytest.raises(RecipeError, match="must be below epochs"):
        recipe.override(["epochs=1", "schedule.warmup_epochs=2"])


def test_an_unknown_setting_is_told_with_the_close_one():
    with pytest.raises(RecipeError, match=r"no setting 'data\.batchsize'\. Close: 'batch_size'"):
        Recipe.parse(MINIMAL).override(["data.batchsize=3"])


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("paper/darts")])
def test_darts_recipes_build_the_auxiliary_head_that_they_weigh(name):
    settings = load_recipe(name)
    model = build_model(settings.model.model_dump())
    assert settings.loss.aux_weight == 0.4
    assert model.aux is not None
    outputs = model.train()(torch.randn(2, 3, 32, 32))
    assert [q.shape[1] for q in outputs] == [model.num_classes] * 2
