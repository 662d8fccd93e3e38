"""Hostile files: every reader answers in time, with one kind of error that names the file."""

import json
import os
import socket
import struct
import time
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from pdecnn.analysis.own_runs import find_runs, read_results
from pdecnn.condensation.plan import Plan
from pdecnn.shared.reading import FileError, parse_json
from pdecnn.shared.yaml_files import dump_yaml, parse_yaml
from pdecnn.training import Recipe, load_checkpoint, load_recipe, save_checkpoint
from pdecnn.training.checkpoint import read_header, unpack, verify
from pdecnn.training.trainer import State

OLD = Path(__file__).parent.parent / "fixtures" / "v0.1"
MINIMAL = "model: {name: test_resnet}\ndata: {name: mnist}\nepochs: 2\n"


@pytest.fixture(autouse=True)
def in_time():
    """Nothing here takes long; a bomb takes minutes, or all memory."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 20


HOSTILE_YAML = {
    "bomb": "a: &a [x,x]\n"
    + "".join(f"{c}: &{c} [*{p},*{p}]\n" for p, c in zip("abcdefghi", "bcdefghij", strict=True)),
    "alias": MINIMAL.replace("2", "&n 2") + "seed: *n\n",
    "merge": "a: &a {x: 1}\nb: {<<: *a}\n",
    "deep": "a: " + "[" * 20_000 + "]" * 20_000,
    "deep blocks": "".join(f"{' ' * i}a:\n" for i in range(300)),
    "digits": MINIMAL + f"seed: {'9' * 5_000}\n",
    "twice": MINIMAL + "epochs: 3\n",
    "twice inside": MINIMAL.replace("name: mnist", "name: mnist, name: stl10"),
    "tag": MINIMAL + "x: !!python/object/apply:os.system [id]\n",
    "set": MINIMAL + "x: !!set {a}\n",
    "date": MINIMAL.replace("mnist", "2001-99-99"),
    "list": "- 1\n",
    "empty": "",
    "zeros": "\0" * 100,
    "large": "# " + "x" * 200_000,
    "misspelt": MINIMAL.replace("epochs", "epoch"),
    "nan": MINIMAL.replace("{name: test_resnet}", "{name: test_resnet, kwargs: {x: .nan}}"),
    "K": MINIMAL.replace("{name: test_resnet}", "{name: cifar_resnet32_global, kwargs: {K: 10001}}"),
    "K inside": MINIMAL.replace("{name: test_resnet}", "{name: x, kwargs: {global_options: {K: 1000000000000000000}}}"),
}


@pytest.mark.parametrize("text", HOSTILE_YAML.values(), ids=HOSTILE_YAML)
def test_hostile_recipes(tmp_path, text):
    file = tmp_path / "r.yaml"
    file.write_text(text)
    with pytest.raises(FileError, match="recipe"):
        load_recipe(file)


def test_recipes_that_are_no_text(tmp_path):
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(FileError, match=r"r\.yaml is not text in UTF-8"):
        load_recipe(tmp_path / "r.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(FileError, match=r"pipe\.yaml is not a regular file"):
        load_recipe(tmp_path / "pipe.yaml")


def test_what_is_written_needs_no_alias():
    same = [1, 2]
    text = dump_yaml({"a": same, "b": same})
    assert parse_yaml(text, "x") == {"a": [1, 2], "b": [1, 2]}


HOSTILE_JSON = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 500 + "1" + "}" * 500,
    "just too deep": "[" * 41 + "]" * 41,
    "digits": f'{{"K": {"9" * 5_000}}}',
    "twice": '{"a": 1, "a": 2}',
    "twice inside": '{"a": {"b": 1, "b": 2}}',
    "nan": '{"a": NaN}',
    "infinity": '{"a": [-Infinity]}',
    "overflow": '{"a": 1e999}',
    "cut": '{"a": ',
    "text": '"a',
    "empty": "",
}


@pytest.mark.parametrize("text", HOSTILE_JSON.values(), ids=HOSTILE_JSON)
def test_hostile_json(tmp_path, text):
    with pytest.raises(FileError, match="here"):
        parse_json(text, "here")
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(FileError, match=r"plan\.json"):
        Plan.load(file)
    save_checkpoint(tmp_path / "net", nn.Linear(1, 1), {"model": {"builder": "custom"}})
    for name in ("manifest.json", "config.json"):
        (tmp_path / "net" / name).write_text(text)
        with pytest.raises(FileError, match=name.replace(".", r"\.")):
            load_checkpoint(tmp_path / "net", model=nn.Linear(1, 1))
        (tmp_path / "net/manifest.json").unlink(missing_ok=True)


def test_nan_is_read_where_a_loss_may_be_one(tmp_path):
    config = {"model": {"builder": "custom"}, "metrics": {"loss": float("nan")}}
    save_checkpoint(tmp_path / "net", nn.Linear(1, 1), config)
    assert load_checkpoint(tmp_path / "net", model=nn.Linear(1, 1)).config["metrics"]["loss"] != 0
    with pytest.raises(FileError, match=r"config: note is nan; a finite number"):
        save_checkpoint(tmp_path / "net", nn.Linear(1, 1), {"model": {}, "note": float("nan")})


def plan_values():
    return json.loads((OLD / "plan.json").read_text())


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda p: p.pop("runs"), "runs: is missing"),
        (lambda p: p.update(rums=[]), "no entry 'rums'.*Close: 'runs'"),
        (lambda p: p["runs"][0].update(keeep=1), r"runs\.0\.keeep"),
        (lambda p: p["runs"][0].update(K=10_001), "K must be at most 10,000, got 10001"),
        (lambda p: p["runs"][0].update(K=2**62), "K must be at most 10,000"),
        (lambda p: p["runs"][0].update(K=True), r"runs\.0\.K"),
        (lambda p: p["runs"][0].update(K="5"), r"runs\.0\.K"),
        (lambda p: p["runs"][0].update(units=[]), "units must name"),
        (lambda p: p["runs"][0].update(units=[[]]), "units must name"),
        (lambda p: p["runs"][0].update(shape=[6]), "shape must be sizes"),
        (lambda p: p["runs"][0].update(shape=[6, 32, -1]), "shape must be sizes"),
        (lambda p: p["runs"][0].update(costs=[]), ""),
        (lambda p: p["runs"][0]["costs"].pop(), "costs must be given"),
        (lambda p: p["runs"][0]["costs"][0].update(parms=1), r"runs\.0\.costs\.0\.parms"),
        (lambda p: p["before"].update(params="many"), r"before\.params"),
        (lambda p: p.update(runs={"a": 1}), "runs"),
        (lambda p: p.update(format="pdecnn-plan/9"), "expected format"),
        (lambda p: p.update(input_shapes=[3]), r"input_shapes\.0"),
    ],
)
def test_plans_with_wrong_entries(tmp_path, change, message):
    values = plan_values()
    change(values)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(values))
    if not message:
        assert Plan.load(file).runs[0].costs == ()
        return
    with pytest.raises(FileError, match=message) as caught:
        Plan.load(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("shape", [(5, 32, 32), (6, 16, 32), (7, 32, 32)])
def test_a_plan_whose_shape_was_edited_does_not_apply(shape):
    values = plan_values()
    values["runs"][0]["shape"] = list(shape)
    with pytest.raises(ValueError, match=r"feature maps of shape \(6, 32, 32\) .* the plan says"):
        Plan.from_dict(values).apply(timm.create_model("cifar_resnet_tiny", num_classes=2))


def test_a_plan_of_another_model_does_not_apply():
    import torchvision

    import pdecnn

    with torch.device("meta"):
        small, large = timm.create_model("resnet18"), timm.create_model("resnet34")
        bare, longer = torchvision.models.resnet18(), torchvision.models.resnet34()
    made = Plan.from_dict(plan_values())
    with pytest.raises(ValueError, match="made for 'cifar_resnet_tiny', the model is 'resnet18'"):
        made.apply(small)
    x = torch.zeros(1, 3, 64, 64, device="meta")
    of_small = pdecnn.plan(bare, x, only="layer1")
    of_small.apply(bare)
    for other in (large, longer):
        with pytest.raises(ValueError, match=r"layer1 holds 6 convolutions, 4 when the plan was made"):
            of_small.apply(other)


def nested(depth):
    description = {"name": "cifar_resnet_tiny", "kwargs": {"num_classes": 2}}
    for _ in range(depth):
        description = {"builder": "condensed", "base": description, "plan": plan_values()}
    return description


@pytest.mark.parametrize("depth", [5, 20, 400])
def test_condensed_models_in_each_other(tmp_path, depth):
    save_checkpoint(tmp_path / "net", nn.Linear(1, 1), {"model": {}})
    (tmp_path / "net/manifest.json").unlink()
    config = {"format": "pdecnn-checkpoint/1", "model": nested(depth)}
    (tmp_path / "net/config.json").write_text(json.dumps(config))
    with pytest.raises(FileError, match=r"deep|in each other"):
        load_checkpoint(tmp_path / "net")


@pytest.mark.parametrize(
    "model, message",
    [
        ({}, "no model named None"),
        ({"nam": "resnet18"}, "no model named None"),
        ({"name": "resnet18", "kwargs": [1]}, "kwargs must be keywords and values"),
        ({"name": "resnet18", "kwargs": {"num_clases": 3}}, "num_clases"),
        ({"name": "cifar_resnet32_global", "kwargs": {"K": 10**18}}, "must be at most 10,000"),
        ({"name": "cifar_resnet32_global", "kwargs": {"global_options": {"K": 2**62}}}, "must be at most 10,000"),
        ({"name": "cifar_resnet32", "kwargs": {"num_classes": 10**10}}, "not those of CifarResNet"),
        ({"builder": "torchvision"}, "no model named None"),
        ({"builder": "condensed"}, 'needs the entries "base" and "plan"'),
    ],
)
def test_configs_that_cannot_be_built(tmp_path, model, message):
    folder = save_checkpoint(tmp_path / "net", nn.Linear(1, 1), {"model": model})
    with pytest.raises(FileError, match=message):
        load_checkpoint(folder)


def make_special(path, kind):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        home = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            socket.socket(socket.AF_UNIX).bind(path.name)
        finally:
            os.chdir(home)
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "folder"])
@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", "optimizer.safetensors"])
def test_what_is_no_regular_file_is_refused(tmp_path, kind, name):
    folder = save_checkpoint(tmp_path / "n", nn.Linear(1, 1), {"model": {}}, extra={"optimizer.safetensors": b""})
    (folder / name).unlink()
    make_special(folder / name, kind)
    with pytest.raises(FileError, match=f"{name} (is not a regular file|cannot be read)"):
        load_checkpoint(folder, model=nn.Linear(1, 1))
    with pytest.raises(FileError):
        unpack(folder / name)


@pytest.mark.parametrize(
    "manifest", [{}, {"config.json": "0" * 64}, {"config.json": None, "model.safetensors": None}, {"a": {}}]
)
def test_a_manifest_that_lists_nothing_verifies_nothing(tmp_path, manifest):
    folder = save_checkpoint(tmp_path / "net", nn.Linear(1, 1), {"model": {}}, extra={"state.json": b"{}"})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileError, match=r"does not list config\.json|damaged|missing"):
        verify(folder)


def test_a_file_that_the_manifest_does_not_list_is_not_verified(tmp_path):
    folder = save_checkpoint(tmp_path / "net", nn.Linear(1, 1), {"model": {}}, extra={"state.json": b"{}"})
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["state.json"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileError, match=r"does not list state\.json"):
        load_checkpoint(folder, model=nn.Linear(1, 1))


def safetensors(header, data=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2**62) + b"{}",
        safetensors(b"[" * 5_000 + b"]" * 5_000),
        safetensors(b'{"w": 1, "w": 2}'),
        safetensors(b"\xff\xfe"),
        safetensors([]),
        safetensors({"w": {"dtype": "F32"}}),
        safetensors({"w": {**ENTRY, "shape": 3}}),
        safetensors({"w": {**ENTRY, "data_offsets": [0, 2**62]}}),
        safetensors({"w": {**ENTRY, "data_offsets": [4, 8]}}),
        safetensors({"w": {**ENTRY, "dtype": "F99"}}),
        safetensors({"w": {**ENTRY, "shape": [2**62, 4]}}),
        safetensors({"w": ENTRY}, b"\0" * 9),
        safetensors({"w": ENTRY}, b"\0" * 7),
    ],
)
def test_hostile_safetensors(tmp_path, content):
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(FileError, match=r"w\.safetensors"):
        unpack(tmp_path / "w.safetensors")


def test_integers_are_not_taken_for_floats(tmp_path):
    folder = save_checkpoint(tmp_path / "net", nn.Linear(1, 1), {"model": {"builder": "custom"}})
    (folder / "manifest.json").unlink()
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"I32"'))
    assert {entry.dtype for entry in read_header(file).values()} == {"I32"}
    with pytest.raises(FileError, match="of another shape or kind"):
        load_checkpoint(folder, model=nn.Linear(1, 1))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"stepp": 1}, "no entry 'stepp'.*Close: 'step'"),
        ({"step": "1"}, "step must be int"),
        ({"step": -1}, "must not be negative"),
        ({"history": {}}, "history must be list"),
    ],
)
def test_training_states_with_wrong_entries(change, message):
    from dataclasses import asdict

    assert State.from_dict(asdict(State(step=3)), "here").step == 3
    with pytest.raises(FileError, match=f"here.*{message}"):
        State.from_dict({**asdict(State()), **change}, "here")
    with pytest.raises(FileError, match="'best' is missing"):
        State.from_dict({k: v for k, v in asdict(State()).items() if k != "best"}, "here")


GOOD = {"model": "cifar_resnet32", "dataset": "cifar10", "accuracy": 92.0, "epochs": 75}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"model": "cifar_resnet32", "dataset": "cifar10", "accuracy": NaN}',
        json.dumps({**GOOD, "accuracy": "high"}),
        json.dumps({**GOOD, "accuracy": 920}),
        json.dumps({**GOOD, "model": ["x"]}),
        json.dumps({**GOOD, "dataset": 3}),
        json.dumps({**GOOD, "epochs": "many"}),
        json.dumps({**GOOD, "accuracies": {"a": 1}}),
        json.dumps({**GOOD, "recipe": {"optimizer": {"name": 3}}}),
        json.dumps({**GOOD, "recipe": {"data": {"train_limit": "all"}}}),
        "[" * 10_000,
    ],
)
def test_a_damaged_result_is_named_and_passed_over(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    (tmp_path / "b.json").write_text(json.dumps(GOOD))
    with pytest.warns(UserWarning, match=r"tables: .*a\.json.* passed over"):
        found = read_results(tmp_path)
    assert len(found) == 1
    assert find_runs(found, "cifar_resnet32", "CIFAR-10").accuracies == (92.0,)


def test_results_of_another_form_are_not_ours(tmp_path, recwarn):
    for i, content in enumerate(([1, "a"], {"model": "x"}, {**GOOD, "recipe": 3}, {**GOOD, "recipe": {"model": []}})):
        (tmp_path / f"{i}.json").write_text(json.dumps(content))
    assert find_runs(read_results(tmp_path), "cifar_resnet32", "CIFAR-10").accuracies == (92.0, 92.0)
    assert not recwarn.list


def test_recipes_of_the_package_still_read():
    assert Recipe.parse(parse_yaml(MINIMAL, "x")).epochs == 2
