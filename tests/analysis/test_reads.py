"""Which modules may overwrite their input, found by watching a run."""

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from pdecnn.analysis.reads import last_readers


class Output:
    """No list, dict or dataclass: nobody can look into it."""

    def __init__(self, *tensors):
        self.tensors = tensors


class Around(nn.Module):
    """An activation whose input is also used in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.way, self.conv, self.act = way, nn.Conv2d(3, 3, 1), nn.ReLU()
        self.register_buffer("table", torch.randn(2, 3, 4, 4))
        self.constant = torch.randn(2, 3, 4, 4)

    def forward(self, x):
        y = self.conv(x)
        match self.way:
            case "alone":
                return self.act(y).sum()
            case "before":
                return y.sum() + self.act(y)
            case "of a sum":
                return self.act(y + x)
            case "after":
                z = self.act(y)
                return z + y
            case "view after":
                view, z = y.flatten(1), self.act(y)
                return z.sum() + view.mean()
            case "output":
                return self.act(y), y
            case "view in the output":
                return {"a": self.act(y), "b": [y[:, :1]]}
            case "input":
                return self.act(x)
            case "view of the input":
                return self.act(x.view_as(x))
            case "buffer":
                return self.act(self.table) + y
            case "constant":
                return self.act(self.constant) + y
            case "expanded":
                return self.act(y[:1, :1].expand(2, 3, 4, 4))
            case "again":
                return self.act(y).mean() + self.act(x)
            case "copy that may be none":
                return self.act(y.permute(0, 2, 3, 1).contiguous()).sum()
            case "part":
                return self.act(y.chunk(3, 1)[0])
            case "kept by the model":
                self.kept = y
                return self.act(y)
            case "output of a kind of its own":
                return Output(self.act(y), y)
            case "none":
                return y


@pytest.mark.parametrize("way", ["alone", "before", "of a sum"])
def test_the_last_reader_is_found(way):
    model = Around(way)
    assert last_readers(model, torch.randn(2, 3, 4, 4), {model.act}) == {model.act}


AFTER = ["after", "view after", "output", "view in the output", "kept by the model", "output of a kind of its own"]
NOT_MADE = ["input", "view of the input", "buffer", "constant", "expanded", "copy that may be none", "part"]


@pytest.mark.parametrize("way", [*AFTER, *NOT_MADE, "again", "none"])
def test_who_is_not_the_last_reader(way):
    model = Around(way)
    assert last_readers(model, torch.randn(2, 3, 4, 4), {model.act}) == set()


def test_hooks_of_others_are_users_too():
    model, seen = Around("alone"), []
    handle = model.act.register_forward_hook(lambda module, args, output: seen.append(args[0].min().item()))
    assert last_readers(model, torch.randn(2, 3, 4, 4), {model.act}) == set()
    assert seen[0] < 0
    handle.remove()
    assert last_readers(model, torch.randn(2, 3, 4, 4), {model.act}) == {model.act}


def test_a_module_that_gives_its_own_input_makes_nothing():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Dropout(), nn.ReLU()).eval()
    assert last_readers(model, torch.randn(2, 3, 4, 4), set(model)) == {model[2]}


def test_nothing_is_left_behind():
    model, x = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()), torch.randn(2, 3, 4, 4)
    last_readers(model, x, {model[1]})
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(RuntimeError):
        last_readers(model, torch.randn(2, 5, 4, 4), {model[1]})
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Alive(nn.Module):
    """Counts which of the maps in `made`, its own last, still exist."""

    def __init__(self, made):
        super().__init__()
        self.made = made

    def forward(self, x):
        y = x + 1
        self.made.append(StorageWeakRef(y.untyped_storage()))
        self.alive = sum(not q.expired() for q in self.made)
        return y


def test_memory_of_the_run_is_given_back():
    made = []
    model = nn.Sequential(*(Alive(made) for _ in range(6)))
    last_readers(model, torch.randn(4), set())
    assert [m.alive for m in model] == [1, 2, 2, 2, 2, 2]
