"""Pictures that visitors bring, and what the tabs draw with."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from pdecnn.training.inputs import Input
from pdecnn.viz.studio import drawing, pictures
from pdecnn.viz.studio.drawing import Chart, Series

GREY, COLOUR = Input((1, 28, 28), (0.5,), (0.25,)), Input((3, 8, 8), (0.5,) * 3, (0.25,) * 3)


def test_an_upload_becomes_an_input_with_the_nets_statistics(tmp_path):
    Image.new("RGB", (40, 20), (255, 0, 127)).save(tmp_path / "a.png")
    x = pictures.to_input(pictures.read_upload(tmp_path / "a.png"), COLOUR)
    assert x.shape == (1, 3, 8, 8)
    assert x[0, :, 3, 3].tolist() == pytest.approx([2.0, -2.0, (127 / 255 - 0.5) / 0.25])
    assert (pictures.to_picture(x, COLOUR)[4, 4] == (255, 0, 127)).all()


@pytest.mark.parametrize(
    "content, says",
    [
        (b"\x80\x04\x95import os", "is not an image that can be read"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "is not an image that can be read"),
        (b"", "is not an image that can be read"),
    ],
)
def test_a_wrong_upload_gives_a_sentence(tmp_path, content, says):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        pictures.read_upload(tmp_path / "a.png")


def test_uploads_are_limited_in_bytes_and_pixels(tmp_path, monkeypatch):
    Image.new("1", (5000, 4000)).save(tmp_path / "wide.png")
    with pytest.raises(ValueError, match="20 million pixels; an image may have 16"):
        pictures.read_upload(tmp_path / "wide.png")
    monkeypatch.setattr(pictures, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="an image may have 0 MB"):
        pictures.read_upload(tmp_path / "wide.png")


def test_a_drawing_is_centred_for_digits_and_an_empty_pad_is_told():
    ink = np.zeros((100, 100, 4), np.uint8)
    ink[10:50, 20:30] = (0, 0, 0, 255)
    drawn = {"layers": [ink], "composite": ink}
    digit = np.asarray(pictures.read_drawing(drawn, bright=True))
    rows, columns = np.nonzero(digit)
    assert digit.shape == (56, 56)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (8, 47, 23, 32)
    assert pictures.to_input(pictures.read_drawing(drawn, bright=True), GREY).shape == (1, 1, 28, 28)
    assert np.asarray(pictures.read_drawing(drawn, bright=False))[0, 0].tolist() == [255, 255, 255]
    with pytest.raises(ValueError, match="The pad is empty"):
        pictures.read_drawing({"layers": [np.zeros_like(ink)], "composite": ink}, bright=True)
    with pytest.raises(ValueError, match="The pad is empty"):
        pictures.read_drawing(None, bright=True)


def test_maps_are_painted_from_low_to_high_and_what_is_not_finite_is_red():
    picture = drawing.paint(torch.tensor([[0.0, 1.0], [float("nan"), 0.5]]), cmap="gray")
    assert picture[0, 0].tolist() == [0, 0, 0]
    assert picture[0, 1].tolist() == [255, 255, 255]
    assert picture[1, 0].tolist() == [181, 73, 58]
    assert drawing.paint(torch.full((2, 2), float("inf"))).shape == (2, 2, 3)
    assert drawing.enlarge(picture, 5).shape == (6, 6, 3)
    uri = drawing.to_uri(picture)
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))) == picture).all()


def test_arrows_point_with_the_flow_and_still_water_has_none():
    right = drawing.arrows(torch.ones(4, 4), torch.zeros(4, 4))
    first = right.partition('d="M')[2].partition('"')[0]
    start, end = (tuple(map(float, q.split())) for q in first.partition("M")[0].split("L"))
    assert end[0] > start[0]
    assert end[1] == start[1]
    assert 'd=""' in drawing.arrows(torch.zeros(4, 4), torch.zeros(4, 4))


def test_charts_escape_what_they_are_told():
    series = [Series("<b>", [1, 2], [3, 4], notes=["a & b", '"c"'])]
    svg = drawing.chart(series, Chart("x", "y", "<title>"))
    assert "<b>" not in svg
    assert "a &amp; b" in svg
    assert "&quot;c&quot;" in svg
    assert svg.count('class="point"') == 2
    one = drawing.chart([Series("one", [1.0], [2.0])], Chart("x", "y", "t", log=True))
    assert "nan" not in one
