"""Batched augmentation against one-image-at-a-time routes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.training import Augment
from pdecnn.training.augment import magnify, normalise, outside_hole, shifted_crop


def images(seed, n=5, C=2, H=6, W=7):
    return torch.randint(0, 256, (n, C, H, W), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@settings(deadline=None)  # machines may be busy
@given(seed=st.integers(0, 2**31), pad=st.integers(0, 5), shrink=st.integers(0, 5), n=st.integers(1, 6))
def test_crop_is_numpy_pad_and_slice(seed, pad, shrink, n):
    x, augment = images(seed, n), Augment(pad=pad, shrink=shrink)
    shift = augment.draw(n, (6, 7), torch.Generator().manual_seed(seed)).get(
        "shift", torch.zeros(n, 2, dtype=torch.int64)
    )
    out = shifted_crop(x, shift, pad, shrink).numpy()
    for i, (row, column) in enumerate(shift.tolist()):
        padded = np.pad(x[i].numpy(), ((0, 0), (pad, pad), (pad, pad)))
        np.testing.assert_array_equal(out[i], padded[:, row : row + 6 - shrink, column : column + 7 - shrink])


def test_every_window_within_the_padding_is_drawn():
    shift = Augment(pad=1, shrink=2).draw(2000, (6, 7), torch.Generator().manual_seed(0))["shift"]
    assert {tuple(row) for row in shift.tolist()} == {(r, c) for r in range(5) for c in range(5)}


def test_a_window_of_no_pixels_is_refused():
    with pytest.raises(ValueError, match="shrink=6 leaves nothing of images of 6x7"):
        Augment(shrink=6)(images(0), torch.Generator(), mean=(0.0, 0.0), std=(1.0, 1.0))


def test_crop_without_shift_is_the_image():
    x = images(0)
    assert torch.equal(shifted_crop(x, torch.full((5, 2), 3), 3), x)


def test_flip_mirrors_the_chosen_images_only():
    x, augment = images(1), Augment(flip=0.5)
    choices = {"flip": torch.tensor([True, False, True, False, False])}
    out = augment.apply(x, choices, mean=(0.0, 0.0), std=(1 / 255, 1 / 255))
    for i, flipped in enumerate(choices["flip"].tolist()):
        expected = x[i].numpy()[..., ::-1] if flipped else x[i].numpy()
        np.testing.assert_allclose(out[i].numpy(), expected, rtol=1e-6)


@settings(deadline=None)  # machines may be busy
@given(mean=st.floats(0, 1), std=st.floats(0.05, 1))
def test_normalise_is_its_formula_in_float64(mean, std):
    x = images(2)
    expected = (x.double() / 255 - mean) / std
    torch.testing.assert_close(normalise(x, (mean, mean), (std, std)).double(), expected, rtol=1e-6, atol=2e-6 / std)


@settings(deadline=None)  # machines may be busy
@given(seed=st.integers(0, 2**31), side=st.integers(1, 6))
def test_hole_is_where_it_was_put(seed, side):
    g = torch.Generator().manual_seed(seed)
    centre = torch.stack([torch.randint(0, 6, (4,), generator=g), torch.randint(0, 7, (4,), generator=g)], dim=1)
    mask = outside_hole(centre, (6, 7), side)
    for i, (row, column) in enumerate(centre.tolist()):
        expected = np.ones((6, 7), dtype=np.float32)
        expected[
            max(row - side // 2, 0) : row - side // 2 + side, max(column - side // 2, 0) : column - side // 2 + side
        ] = 0
        np.testing.assert_array_equal(mask[i, 0].numpy(), expected)


def test_magnify_by_one_is_the_identity_and_by_two_keeps_the_centre():
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(magnify(x, torch.ones(2)), x, rtol=1e-5, atol=1e-5)
    ramp = torch.linspace(-7, 7, 8).expand(1, 1, 8, 8).contiguous()
    torch.testing.assert_close(magnify(ramp, torch.tensor([2.0])), ramp / 2, rtol=1e-5, atol=1e-5)


def test_choices_depend_on_the_generator_only_and_every_option_draws():
    augment = Augment(pad=4, flip=0.5, scale=(0.8, 1.2), cutout=8)
    a, b, c = (augment.draw(64, (32, 32), torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert a.keys() == {"shift", "flip", "scale", "hole"}
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not any(torch.equal(a[k], c[k]) for k in a)
    assert a["shift"].min() == 0
    assert a["shift"].max() == 8
    assert a["scale"].min() >= 0.8
    assert a["scale"].max() <= 1.2


def test_flip_rate():
    flips = Augment(flip=0.25).draw(20_000, (4, 4), torch.Generator().manual_seed(0))["flip"]
    assert flips.float().mean().item() == pytest.approx(0.25, abs=0.015)  # five standard deviations
