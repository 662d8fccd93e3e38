"""Whatever gives batches."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pdecnn.training.batches import Answered, as_batch, as_loaders
from pdecnn.training.check import check_data

X, Y = torch.arange(48.0).view(12, 1, 2, 2), torch.arange(12) % 3


@pytest.mark.parametrize(
    "data",
    [
        DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True),
        TensorDataset(X, Y),
        [(X[:4], Y[:4]), (X[4:8], Y[4:8]), (X[8:], Y[8:])],
        [{"image": X[:6], "label": Y[:6]}, {"image": X[6:], "label": Y[6:]}],
    ],
    ids=["loader", "dataset", "list", "dicts"],
)
def test_all_kinds_give_every_image_once_and_can_be_entered_anywhere(data):
    train = as_loaders(data, batch_size=4, seed=1).train
    whole = list(train.batches(3))
    assert len(whole) == len(train)
    assert sorted(torch.cat([x for x, _ in whole])[:, 0, 0, 0].tolist()) == X[:, 0, 0, 0].tolist()
    again = list(train.batches(3, start=1))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(whole[1:], again, strict=True))


def test_labels_that_are_not_there_are_unknown():
    for data in (X, [X[:6], X[6:]], TensorDataset(X), DataLoader(TensorDataset(X), batch_size=6)):
        loaders = as_loaders(data, batch_size=6)
        assert not loaders.labelled
        assert next(loaders.train.batches(0))[1].tolist() == [-1] * 6
    assert as_loaders([(X, Y)]).labelled


def test_an_iterator_is_refused_as_it_can_be_read_once():
    with pytest.raises(TypeError, match="an iterator can be read once only"):
        as_loaders(iter([(X, Y)]))
    with pytest.raises(TypeError, match="a batch must be a Tensor"):
        as_batch("images")
    with pytest.raises(TypeError, match="open_data reads folders"):
        as_loaders("photos")


def test_labels_out_of_range_are_told_before_the_first_step():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"a label of the training images is 2; the model tells 0 to 1 apart"):
        check_data(net, as_loaders([(X, Y)]))
    with pytest.raises(ValueError, match="labels must be class indices"):
        check_data(net, as_loaders([(X, torch.rand(12, 2))]))
    assert check_data(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), as_loaders([(X, Y)])).classes == ("0", "1", "2")


def test_a_teacher_answers_where_no_label_is_known():
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).train()
    known = torch.where(Y == 0, Y, -1)
    answered = Answered(teacher, [(X, known)])
    for _ in range(2):
        ((_, y),) = answered
        assert torch.equal(y[Y == 0], Y[Y == 0])
        assert torch.equal(y, torch.where(known < 0, teacher(X).argmax(1), known))
    assert teacher.training
