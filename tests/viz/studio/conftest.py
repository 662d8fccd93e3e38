"""What the tests of the studio share."""

import pytest
from PIL import Image

from pdecnn.training.datasets import FASHION_CLASSES, load_dataset
from pdecnn.viz.studio import nets, planning


@pytest.fixture(scope="module")
def example():
    return planning.start(nets.open_net("fashion_resnet32.fashion_mini"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A few images of each class as a folder of one's own."""
    data, home = load_dataset("fashion-mini"), tmp_path_factory.mktemp("images")
    for split, part in (("train", data.train), ("val", data.test)):
        for number, name in enumerate(FASHION_CLASSES):
            folder = home / split / f"{number} {name}"
            folder.mkdir(parents=True)
            for i, x in enumerate(part.x[part.y == number][:7]):
                Image.fromarray(x[0].numpy()).save(folder / f"{i}.png")
    return home
