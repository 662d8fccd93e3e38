"""The plan finds exactly the runs that are there."""

from collections import OrderedDict

import pytest
import timm
import torch
from hypothesis import given, settings
from planted_networks import Net, Residual, specs
from torch import Tensor, nn

import pdecnn
from pdecnn.condensation.dense import find_dense
from pdecnn.condensation.find import find_runs
from pdecnn.condensation.record import record


def runs_of(model: nn.Module, x: Tensor) -> dict[str, int]:
    runs, _ = find_runs(model, record(model, (x,)))
    return {run.members()[0]: len(run.units) for run in runs}


def block(width: int = 8) -> Residual:
    return Residual(width, width, 1, False, True)


@settings(max_examples=40, deadline=None)
@given(specs)
def test_planted_runs_are_found_and_no_others(spec):
    model = Net(spec)
    assert runs_of(model, torch.randn(1, 3, 9, 9)) == model.planted


@settings(max_examples=15, deadline=None)
@given(specs)
def test_runs_are_found_on_the_meta_device(spec):
    with torch.device("meta"):
        model = Net(spec)
    assert runs_of(model, torch.empty(1, 3, 9, 9, device="meta")) == model.planted


@settings(max_examples=15, deadline=None)
@given(specs)
def test_the_sign_of_the_map_is_that_of_the_last_activation(spec):
    model = Net(spec)
    runs, _ = find_runs(model, record(model, (torch.randn(1, 3, 9, 9),)))
    signs = [not s.relu for s in spec if s.depth > 1]
    assert [run.signed for run in runs] == signs


def test_a_block_called_twice_is_left_alone_and_said():
    shared = block()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), shared, shared, block(), block())
    found = pdecnn.plan(model, torch.randn(1, 3, 12, 12), only=["3", "4"], options={"kernel_size": 1})
    assert [run.path for run in found.runs] == ["3-4"]
    assert any("called 2 times" in s.reason for s in found.skipped)


class Skipping(nn.Module):
    """The second block's output is also read at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        outs = [x]
        for b in self.blocks:
            outs.append(b(outs[-1]))
        return outs[-1] + outs[2]


def test_an_output_that_is_read_elsewhere_ends_a_run():
    assert runs_of(Skipping(), torch.randn(1, 8, 6, 6)) == {"blocks.0": 2, "blocks.2": 3}


class Returning(Skipping):
    """The outputs of the blocks are returned."""

    def forward(self, x: Tensor) -> list[Tensor]:
        outs = [x]
        for b in self.blocks:
            outs.append(b(outs[-1]))
        return [outs[3], outs[5]]


def test_an_output_that_is_returned_ends_a_run():
    assert runs_of(Returning(), torch.randn(1, 8, 6, 6)) == {"blocks.0": 3, "blocks.3": 2}


def test_parallel_branches_are_not_a_run():
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(block() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return sum(b(x) for b in self.branches)

    assert runs_of(Branches(), torch.randn(1, 8, 6, 6)) == {}


def test_plain_convolutions_count_from_three_on():
    def convs(n: int) -> nn.Module:
        return nn.Sequential(*(m for _ in range(n) for m in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True))))

    x = torch.randn(1, 4, 6, 6)
    assert runs_of(convs(2), x) == {}
    assert runs_of(convs(3), x) == {"0": 3}


def test_two_blocks_after_a_convolution_of_their_kind_are_a_run():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), block(), block())
    assert runs_of(model, torch.randn(1, 3, 9, 9)) == {"1": 2}


def test_nothing_is_replaced_inside_a_block():
    inner = [nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))) for _ in range(4)]
    assert runs_of(nn.Sequential(*inner), torch.randn(1, 8, 6, 6)) == {"0": 4}


def test_a_condensed_model_has_nothing_more_to_condense():
    model = timm.create_model("cifar_resnet32")
    x = torch.randn(1, 3, 32, 32)
    small = pdecnn.plan(model, x).apply(model)
    with pytest.raises(ValueError, match="no run to condense"):
        pdecnn.plan(small, x)


@pytest.mark.parametrize(
    "name, size, expected",
    [
        ("resnet18", 64, {"layer1.0": 2, "layer2.0": 2, "layer3.0": 2, "layer4.0": 2}),
        ("convnext_atto", 64, {f"stages.{i}.blocks.0": n for i, n in enumerate((2, 2, 6, 2))}),
        ("mobilenetv2_035", 64, {f"blocks.{i}.0": n for i, n in zip(range(1, 6), (2, 3, 4, 3, 3), strict=True)}),
        ("mambaout_femto", 64, {f"stages.{i}.blocks.0": n for i, n in enumerate((3, 3, 9, 3))}),
    ],
)
def test_known_networks(name, size, expected):
    model = timm.create_model(name)
    assert runs_of(model, torch.randn(1, 3, size, size)) == expected


def test_maps_with_channels_last_are_recognised():
    runs, _ = find_runs(m := timm.create_model("mambaout_femto"), record(m, (torch.randn(1, 3, 64, 64),)))
    assert all(run.channels_last for run in runs)
    assert [run.shape for run in runs] == [(48, 16, 16), (96, 8, 8), (192, 4, 4), (288, 2, 2)]


def test_gradient_checkpointing_and_stochastic_depth_do_not_hide_runs():
    model = timm.create_model("resnet18", drop_path_rate=0.2)
    model.set_grad_checkpointing()
    assert len(runs_of(model, torch.randn(1, 3, 64, 64))) == 4


def test_a_skipped_place_in_the_model_itself_has_a_plain_path():
    class Growing(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, super().forward(x)], 1)

    growing = OrderedDict((f"g{i}", Growing(8 * (i + 1), 8, 1, False, True)) for i in range(3))
    model = nn.Sequential(OrderedDict(**growing, act=nn.PReLU(32), head=nn.Conv2d(32, 4, 1)))
    _, skipped = find_dense(model, record(model, (torch.randn(1, 8, 6, 6),)))
    assert [s.path for s in skipped] == ["g0"]
