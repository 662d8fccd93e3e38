"""Datasets from their files, and the batches drawn from them."""

import struct

import numpy as np
import pytest
import torch
from training_toys import tiny_data

from pdecnn.training import Augment, EvalLoader, Images, TrainLoader, load_dataset

HALF = {"mean": (0.5,), "std": (0.5,)}


def test_fashion_mini_is_stratified_and_real():
    data = load_dataset("fashion-mini")
    assert torch.bincount(data.train.y).tolist() == [500] * 10
    assert torch.bincount(data.test.y).tolist() == [100] * 10
    pixels = data.train.x.double() / 255
    assert pixels.mean().item() == pytest.approx(data.mean[0], abs=0.01)
    assert pixels.std().item() == pytest.approx(data.std[0], abs=0.01)
    assert len(torch.unique(data.train.x.flatten(1), dim=0)) > 4990  # images, not copies of one


def write_idx(path, array):
    header = struct.pack(">HBB" + "I" * array.ndim, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_files(tmp_path, name, folder):
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for prefix, n in (("train", 5), ("t10k", 3)):
        arrays[prefix] = rng.integers(0, 256, (n, 28, 28)), rng.integers(0, 10, n)
        write_idx(raw / f"{prefix}-images-idx3-ubyte", arrays[prefix][0])
        write_idx(raw / f"{prefix}-labels-idx1-ubyte", arrays[prefix][1])
    data = load_dataset(name, tmp_path)
    np.testing.assert_array_equal(data.train.x[:, 0].numpy(), arrays["train"][0])
    np.testing.assert_array_equal(data.test.y.numpy(), arrays["t10k"][1])


def write_cifar(folder, files, n, label_bytes, seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    labels, pixels = rng.integers(0, 10, (len(files), n)), rng.integers(0, 256, (len(files), n, 3, 32, 32))
    for file, y, x in zip(files, labels, pixels, strict=True):
        with (folder / file).open("wb") as out:
            for label, image in zip(y, x, strict=True):
                out.write(bytes([255] * (label_bytes - 1) + [int(label)]) + image.astype(np.uint8).tobytes())
    return pixels.reshape(-1, 3, 32, 32), labels.ravel()


def test_cifar_binaries(tmp_path):
    train = [f"data_batch_{i}.bin" for i in range(1, 6)]
    x, y = write_cifar(tmp_path / "cifar-10-batches-bin", train, 4, 1)
    write_cifar(tmp_path / "cifar-10-batches-bin", ["test_batch.bin"], 3, 1, seed=1)
    data = load_dataset("cifar10", tmp_path)
    np.testing.assert_array_equal(data.train.x.numpy(), x)
    np.testing.assert_array_equal(data.train.y.numpy(), y)
    assert len(data.test) == 3

    x, y = write_cifar(tmp_path / "cifar-100-binary", ["train.bin"], 6, 2)
    write_cifar(tmp_path / "cifar-100-binary", ["test.bin"], 2, 2)
    data = load_dataset("cifar100", tmp_path)
    np.testing.assert_array_equal(data.train.x.numpy(), x)
    np.testing.assert_array_equal(data.train.y.numpy(), y)
    assert data.num_classes == 100


def test_missing_truncated_and_unknown_datasets_say_so(tmp_path):
    for name in ("cifar10", "cifar100", "mnist", "stl10"):
        with pytest.raises(FileNotFoundError, match=rf"{name} needs .* in .*--data-dir.*--download"):
            load_dataset(name, tmp_path)
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder, [f"data_batch_{i}.bin" for i in range(1, 6)], 1, 1)
    (folder / "data_batch_3.bin").write_bytes(b"123")
    with pytest.raises(ValueError, match=r"data_batch_3\.bin has 3 bytes, not a multiple of the record size 3073"):
        load_dataset("cifar10", tmp_path)
    with pytest.raises(ValueError, match=r"no dataset named 'cifar1O'\. Close: 'cifar10'"):
        load_dataset("cifar1O")


def test_images_check_their_shapes():
    with pytest.raises(ValueError, match=r"expected x of shape \(N, C, H, W\), uint8; got \(2, 3, 4\), torch.uint8"):
        Images(torch.zeros(2, 3, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"expected y of shape \(2,\), int64; got \(3,\)"):
        Images(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


def test_hold_out_and_limit():
    data = tiny_data(60)
    held = data.hold_out(10)
    assert (len(held.train), len(held.test)) == (50, 10)
    assert torch.equal(held.test.x, data.train.x[50:])
    assert "last 10" in held.note
    assert (len(data.limit(7, 5).train), len(data.limit(7, 5).test)) == (7, 5)
    with pytest.raises(ValueError, match="expected n from 1 to 59, got 60"):
        data.hold_out(60)


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own():
    images = tiny_data(25).train
    labels = Images(images.x, torch.arange(25))
    loader = TrainLoader(labels, 8, **HALF, seed=3)
    orders = [torch.cat([y for _, y in loader.batches(epoch)]).tolist() for epoch in (0, 1, 0)]
    assert len(loader) == 4
    assert sorted(orders[0]) == list(range(25))
    assert orders[0] == orders[2] != orders[1]


def test_entering_an_epoch_in_the_middle_gives_the_same_batches():
    loader = TrainLoader(tiny_data().train, 10, **HALF, augment=Augment(pad=2, flip=0.5, cutout=3), seed=5)
    whole, rest = list(loader.batches(2)), list(loader.batches(2, start=3))
    assert len(whole) == 6
    for (x, y), (x2, y2) in zip(whole[3:], rest, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


def test_processes_share_the_batch_of_one():
    settings = {"images": tiny_data().train, "batch_size": 10, **HALF, "augment": Augment(pad=2, flip=0.5), "seed": 5}
    whole = TrainLoader(**settings)
    parts = [TrainLoader(**settings, rank=rank, world_size=2) for rank in range(2)]
    for (x, y), (x0, y0), (x1, y1) in zip(whole.batches(1), *(p.batches(1) for p in parts), strict=True):
        assert torch.equal(x[0::2], x0)
        assert torch.equal(x[1::2], x1)
        assert torch.equal(torch.stack([y0, y1], dim=1).flatten(), y)
    with pytest.raises(ValueError, match="batch_size=9 does not divide among 2"):
        TrainLoader(tiny_data().train, 9, **HALF, world_size=2)


def test_evaluation_batches_are_all_images_in_order():
    images = tiny_data(25).train
    batches = list(EvalLoader(images, 8, **HALF))
    assert [len(y) for _, y in batches] == [8, 8, 8, 1]
    assert torch.equal(torch.cat([y for _, y in batches]), images.y)
    torch.testing.assert_close(torch.cat([x for x, _ in batches]), images.x / 127.5 - 1, rtol=1e-5, atol=1e-6)


def test_image_folders_stream_and_resume_in_the_middle(tmp_path):
    from PIL import Image

    from pdecnn.training import Recipe
    from pdecnn.training.stream import load_data

    rng = np.random.default_rng(0)
    for split in ("train", "validation"):
        for label in ("cat", "dog"):
            (tmp_path / split / label).mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / label / f"{i}.png")
    stream = {"num_classes": 2, "image_size": 16, "workers": 0, "rand_augment": "rand-m5", "random_erase": 0.5}
    recipe = Recipe.parse(
        {"model": {"name": "any"}, "data": {"name": "folder", "batch_size": 4, "stream": stream}, "epochs": 1}
    )
    loaders = load_data(recipe, tmp_path)
    assert len(loaders.train) == 3
    whole, rest = list(loaders.train.batches(1)), list(loaders.train.batches(1, start=1))
    assert whole[0][0].shape == (4, 3, 16, 16)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(whole[1:], rest, strict=True))
    assert sum(len(y) for _, y in loaders.evaluation) == 12
    crops = [recipe.override([f"data.stream.crop_scale={scale}"]) for scale in ("[0.08, 1.0]", "[1.0, 1.0]")]
    areas = [load_data(r, tmp_path).train.dataset.transform.transforms[0].scale for r in crops]
    assert [tuple(area) for area in areas] == [(0.08, 1.0), (1.0, 1.0)]
    bad = recipe.override(["data.stream=null"])
    with pytest.raises(ValueError, match=r"other datasets need the part data\.stream"):
        load_data(bad, tmp_path)
