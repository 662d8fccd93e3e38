"""Folders of images: what is trained on, what is evaluated on, and what is refused."""

import json

import pytest
import timm
import torch
from PIL import Image
from torch import nn

from pdecnn.training import Recipe, build_model, fit, open_model
from pdecnn.training.check import check_data
from pdecnn.training.folders import read_folder
from pdecnn.training.inputs import Input, input_of
from pdecnn.training.own import open_data
from pdecnn.training.stream import load_data

WANTED = Input((3, 16, 16))


def fill(folder, count=3, seed=0):
    folder.mkdir(parents=True)
    g = torch.Generator().manual_seed(seed)
    for i in range(count):
        pixels = torch.randint(0, 256, (20, 24, 3), dtype=torch.uint8, generator=g)
        Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")


@pytest.mark.parametrize("name", ["val", "validation", "test"])
def test_evaluation_folders_by_their_usual_names(name, tmp_path):
    for split, count in (("train", 4), (name, 2)):
        for label in ("cat", "dog"):
            fill(tmp_path / split / label, count)
    found = read_folder(tmp_path)
    assert (len(found.train), len(found.evaluation), found.classes, found.note) == (8, 4, ("cat", "dog"), "")
    assert found.evaluation.labels == (0, 0, 1, 1)


def test_one_folder_is_split_by_a_seed_and_says_so(tmp_path):
    for label in ("cat", "dog"):
        fill(tmp_path / label, 10)
    first, again, other = (read_folder(tmp_path, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert set(first.evaluation.paths) != set(other.evaluation.paths)
    assert not set(first.train.paths) & set(first.evaluation.paths)
    assert sorted(first.evaluation.labels) == [0, 0, 1, 1]
    assert "4 of its 20 images, drawn with seed 0, are held out" in first.note


def test_a_training_folder_alone_is_split_too(tmp_path):
    fill(tmp_path / "train" / "cat", 5)
    found = read_folder(tmp_path)
    assert not set(found.train.paths) & set(found.evaluation.paths)
    assert "no evaluation folder" in found.note


def test_images_in_no_class_have_no_labels(tmp_path):
    fill(tmp_path / "train", 4)
    fill(tmp_path / "val", 2)
    loaders = open_data(tmp_path, WANTED, batch_size=2)
    assert not loaders.labelled
    assert next(loaders.train.batches(0))[1].tolist() == [-1, -1]


def test_folders_that_make_no_sense_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_folder(tmp_path / "nowhere")
    fill(tmp_path / "a" / "val" / "cat")
    with pytest.raises(ValueError, match=r"has val/ but no train/"):
        read_folder(tmp_path / "a")
    fill(tmp_path / "b" / "train" / "cat")
    fill(tmp_path / "b" / "val" / "bird")
    with pytest.raises(ValueError, match="has the classes bird, which the training images do not have"):
        read_folder(tmp_path / "b")
    (tmp_path / "c").mkdir()
    with pytest.raises(ValueError, match="no images in"):
        read_folder(tmp_path / "c")


@pytest.mark.parametrize("there", [["train"], ["train", "test"]])
def test_a_recipe_never_evaluates_on_training_images(there, tmp_path):
    for split in there:
        fill(tmp_path / split / "cat", 2, seed=len(split))
    stream = {"num_classes": 1, "image_size": 16, "workers": 0}
    recipe = Recipe.parse(
        {"model": {"name": "any"}, "data": {"name": "folder", "batch_size": 2, "stream": stream}, "epochs": 1}
    )
    if there == ["train"]:
        with pytest.raises(FileNotFoundError, match="an evaluation on the training images would tell nothing"):
            load_data(recipe, tmp_path)
        return
    seen = [str(path) for path, _ in load_data(recipe, tmp_path).evaluation.dataset.reader.samples]
    assert len(seen) == 2
    assert all("/test/" in path for path in seen)


def test_a_trained_net_remembers_how_its_pictures_were_cropped(tmp_path):
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            fill(tmp_path / split / label, 2, seed=len(split))
    stream = {"num_classes": 2, "image_size": 16, "workers": 0, "crop_fraction": 0.5, "interpolation": "bilinear"}
    stream |= {"mean": [0.5, 0.4, 0.3], "std": [0.3, 0.2, 0.1]}
    model = {"name": "test_resnet", "kwargs": {"num_classes": 2}}
    data = {"name": "folder", "batch_size": 2, "stream": stream}
    recipe = Recipe.parse({"model": model, "data": data, "epochs": 1, "evaluate_every": 0})
    described = recipe.model.model_dump()
    fit(build_model(described), load_data(recipe, tmp_path), recipe, run_dir=tmp_path / "run", model_config=described)
    found = open_model(str(tmp_path / "run"))
    wanted = input_of(found.model, found.config["input"])
    here = torch.cat([x for x, _ in open_data(tmp_path, wanted, workers=0).evaluation])
    there = torch.cat([x for x, _ in load_data(recipe, tmp_path).evaluation])
    assert torch.equal(here, there)
    timms = timm.data.resolve_data_config({}, model=timm.create_model(f"local-dir:{tmp_path / 'run/last'}"))
    assert timms["crop_pct"] == 0.5
    assert (timms["input_size"], timms["interpolation"]) == ([3, 16, 16], "bilinear")
    assert (timms["mean"], timms["std"]) == ([0.5, 0.4, 0.3], [0.3, 0.2, 0.1])


def test_sizes_and_normalisation_come_from_the_model_and_can_be_changed():
    net = timm.create_model("cifar_resnet32")
    assert input_of(net).shape == (3, 32, 32)
    assert input_of(net, {"shape": [3, 40, 40]}).shape == (3, 40, 40)
    assert (input_of(net).crop_pct, input_of(net, {"crop_pct": 0.7}).crop_pct) == (1.0, 0.7)
    assert input_of(net, {"interpolation": "bilinear"}).interpolation == "bilinear"
    other = Input((1, 20, 24), (0.5,), (0.25,), "bilinear", 0.9)
    assert input_of(net, json.loads(json.dumps(other.to_dict()))) == other == Input.from_dict(other.to_dict())
    changed = input_of(net, shape=(3, 48, 48), mean=(0.5,), std=(0.2, 0.3, 0.4))
    assert (changed.shape, changed.mean, changed.std) == ((3, 48, 48), (0.5, 0.5, 0.5), (0.2, 0.3, 0.4))
    with pytest.raises(ValueError, match="--mean has 2 values for 3 channels"):
        input_of(net, mean=(0.5, 0.5))


def test_classes_and_sizes_are_checked_before_anything_is_trained(tmp_path):
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            fill(tmp_path / split / label, 2)
    loaders = open_data(tmp_path, WANTED, batch_size=2)
    fits = nn.Sequential(nn.Flatten(), nn.Linear(768, 2))
    assert check_data(fits, loaders).classes == ("cat", "dog")
    with pytest.raises(ValueError, match=r"have 2 classes \(cat, dog ...\) but the model tells 5 apart"):
        check_data(nn.Sequential(nn.Flatten(), nn.Linear(768, 5)), loaders)
    with pytest.raises(ValueError, match=r"does not run on the training images, of shape \(3, 16, 16\)"):
        check_data(nn.Sequential(nn.Flatten(), nn.Linear(99, 2)), loaders)


def test_entering_an_epoch_in_the_middle_gives_the_same_images(tmp_path):
    fill(tmp_path / "cat", 10)
    train = open_data(tmp_path, WANTED, batch_size=2).train
    whole = list(train.batches(1))
    torch.rand(3)
    part = list(train.batches(1, start=2))
    assert len(whole) == len(part) + 2
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole[2:], part, strict=True))
    assert not torch.equal(whole[0][0], next(train.batches(2))[0])
