"""Arguments and answers that are more than one tensor."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from pdecnn.shared.modules import tensors_in
from pdecnn.shared.trees import arguments, count, map_tensors, named_tensors, ordered, part, sized, takes_images

A, B = torch.arange(6.0).view(2, 3), torch.ones(2, 1)


class Two(nn.Module):
    def forward(self, a, b):
        return a + b


class Optional(nn.Module):
    def forward(self, a, b=None):
        return a


class Detector(nn.Module):
    def forward(self, images: list[Tensor], targets=None):
        return images


class ByKeyword(nn.Module):
    def forward(self, a, *, b):
        return a


@dataclass
class Answer:
    mask: Tensor
    levels: list[Tensor]
    note: str = ""


Pair = namedtuple("Pair", "first second")


def test_tensors_of_every_kind_of_answer_are_found_by_name():
    answer = {"out": Answer(A, [B]), "pair": Pair(A, (B,)), "none": None, "number": 3}
    assert list(named_tensors(answer)) == ["out.mask", "out.levels.0", "pair.first", "pair.second.0"]
    assert [q is want for q, want in zip(tensors_in(answer), (A, B, A, B), strict=True)] == [True] * 4
    assert list(named_tensors(A)) == [""]


@pytest.mark.parametrize(
    "model, x, expected",
    [
        (nn.ReLU(), A, (A,)),
        (nn.ReLU(), [A, B], ([A, B],)),
        (nn.ReLU(), (A,), (A,)),
        (Two(), [A, B], (A, B)),
        (Two(), (A, B), (A, B)),
        (Two(), {"b": B, "a": A}, (A, B)),
        (Optional(), (A, B), (A, B)),
        (Optional(), [A, B], ([A, B],)),
        (Optional(), {"a": A}, (A, None)),
        (Optional(), {"image": A}, ({"image": A},)),
        (Detector(), (A, B), ([A, B],)),
        (Detector(), ([A, B],), ([A, B],)),
    ],
)
def test_arguments_are_what_forward_takes(model, x, expected):
    def same(a, b):
        if isinstance(a, Tensor):
            return a is b
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
        if isinstance(a, (list, tuple)):
            return len(a) == len(b) and all(map(same, a, b))
        return a == b

    assert same(arguments(model, x), expected)


def test_an_argument_by_keyword_alone_is_refused():
    with pytest.raises(TypeError, match=r"ByKeyword.forward takes b by keyword alone"):
        arguments(ByKeyword(), {"a": A, "b": B})


def test_samples_are_counted_taken_and_repeated():
    x = {"a": A, "b": (B, torch.tensor(3.0))}
    assert count(x) == 2
    assert part(x, slice(1))["a"].tolist() == [[0.0, 1.0, 2.0]]
    assert sized(x, 5)["a"].tolist() == [*A.tolist(), *A.tolist(), A[0].tolist()]
    images = [torch.zeros(3, 4, 4), torch.zeros(3, 5, 4)]
    assert takes_images(Detector(), images)
    assert not takes_images(Two(), images)
    assert count(images, images=True) == 2
    assert part(images, slice(1), images=True)[0] is images[0]
    assert [q.shape[1] for q in sized(images, 3, images=True)] == [4, 5, 4]
    assert map_tensors(Pair(A, 1), torch.neg).first.equal(-A)


def test_large_images_alone_are_put_in_channels_last():
    large, small = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 63, 64)
    found = ordered({"x": large, "more": (small, A)})
    assert found["x"].is_contiguous(memory_format=torch.channels_last)
    assert not found["x"].is_contiguous()
    assert torch.equal(found["x"], large)
    assert found["more"][0] is small
    assert found["more"][1] is A
