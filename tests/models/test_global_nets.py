"""What the counts do not show: the wiring of the DARTS cell, the published init, the alternative fits."""

import math

import pytest
import timm
import torch
from torch import nn

import pdecnn  # noqa: F401  (registers the models)
from pdecnn.layers import GlobalLayer
from pdecnn.layers.transport import Transport
from pdecnn.models.cifar_resnet import CifarResNet, ResNetConfig
from pdecnn.models.darts_cell import Cell, FactorizedReduce
from pdecnn.models.mnist import MnistToy
from pdecnn.models.mobile_global import EfficientNetGlobal, MobileNetV3Global, _mobilenetv2, _mobilenetv3


@pytest.mark.parametrize(
    "reduction, nodes",
    [
        # s0 = 1, s1 = 10: n2 = s0 + s1, n3 = s0 + s1, n4 = s1 + s0, n5 = s0 + n2
        (False, [11, 11, 11, 12]),
        # n2 = s0 + s1, n3 = n2 + s1, n4 = s0 + n2, n5 = n2 + s1
        (True, [11, 21, 12, 21]),
    ],
)
def test_darts_cell_is_wired_as_published(reduction, nodes):
    layers = {"act_layer": nn.ReLU, "norm_layer": nn.BatchNorm2d, "dd": {}}
    cell = Cell(1, 1, 1, reduction=reduction, s0_is_larger=False, drop_path=0.0, **layers)
    cell.prepare0 = cell.prepare1 = nn.Identity()
    cell.edges = nn.ModuleList(nn.Identity() for _ in cell.edges)
    out = cell(torch.full((1, 1, 1, 1), 10.0), torch.full((1, 1, 1, 1), 1.0))
    assert out.flatten().tolist() == nodes


def test_darts_operations_are_the_published_ones():
    layers = {"act_layer": nn.ReLU, "norm_layer": nn.BatchNorm2d, "dd": {}}

    def kinds(reduction):
        cell = Cell(4, 4, 4, reduction=reduction, s0_is_larger=True, drop_path=0.0, **layers)
        for edge in cell.edges:
            convs = [m for m in edge.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
            pools = [m for m in edge.modules() if isinstance(m, nn.MaxPool2d)]
            if convs:
                yield ("sep3", "dil3")[convs[0].dilation == (2, 2)], convs[0].stride[0], len(convs)
            else:
                yield ("max3", pools[0].stride, 0) if pools else ("skip", 1, 0)

    sep, dil, skip = ("sep3", 1, 2), ("dil3", 1, 1), ("skip", 1, 0)
    assert list(kinds(False)) == [sep, sep, sep, sep, sep, skip, skip, dil]
    strided = ("max3", 2, 0)
    assert list(kinds(True)) == [strided, strided, skip, strided, strided, skip, skip, strided]


@pytest.mark.parametrize("side", [1, 4, 5])
def test_factorized_reduce_reads_even_and_odd_pixels(side):
    reduce = FactorizedReduce(1, 2, nn.Identity, identity, {})
    for conv in (reduce.conv1, reduce.conv2):
        nn.init.ones_(conv.weight)
    x = torch.arange(1.0, side * side + 1).view(1, 1, side, side)
    even, odd = reduce(x)[0]
    half = math.ceil(side / 2)
    torch.testing.assert_close(even, x[0, 0, ::2, ::2])
    assert odd.shape == (half, half)
    torch.testing.assert_close(odd[: side // 2, : side // 2], x[0, 0, 1::2, 1::2])


def identity(channels):
    return nn.Identity()


def test_drop_path_spares_identities():
    model = timm.create_model("cifar_darts_tiny", drop_path_rate=0.5)
    edges = [e for m in model.modules() if isinstance(m, Cell) for e in m.edges]
    bare = [e for e in edges if isinstance(e, nn.Identity)]
    assert len(bare) == 2 * 18 + 3 * 2  # two skips in each of 18 normal cells, three in each of 2 reductions
    assert all(e[1].drop_prob == 0.5 for e in edges if not isinstance(e, nn.Identity))


def test_published_init_of_the_cifar_nets():
    """N(0, 2 / (k² C_out)) for every convolution, groups ignored, and the coefficients that follow from it.

    Spec 1.3 measured for ResNet-Global, m = 1, C = 16, 32, 64: mean u .031, .014, .007, mean D_x .026, .014, .007, and
    rms(h^K) / rms(I) about 2.1.
    """
    torch.manual_seed(0)
    model = timm.create_model("cifar_resnet32_global").train()
    for m in model.modules():
        if isinstance(m, nn.Conv2d) and m.weight.numel() > 1000:
            expected = math.sqrt(2 / (m.out_channels * m.kernel_size[0] ** 2))
            assert m.weight.std().item() == pytest.approx(expected, rel=0.1)
    depthwise = torch.cat([q.velocity.op_x.weight.flatten() for q in model.modules() if isinstance(q, GlobalLayer)])
    assert depthwise.std() < 0.12

    seen = []

    def watch(layer, inputs, out):
        (x,) = inputs
        u, _, D_x, _ = coefficients = layer.coefficients(x)
        ratio = layer.solve(x, x, coefficients).square().mean().sqrt() / x.square().mean().sqrt()
        seen.append((u.mean().item(), D_x.mean().item(), ratio.item()))

    for m in model.modules():
        if isinstance(m, GlobalLayer):
            m.register_forward_hook(watch)
    with torch.no_grad():
        model(torch.randn(16, 3, 32, 32))
    for (u, D_x, ratio), mean in zip(seen, (0.028, 0.014, 0.007), strict=True):
        assert u == pytest.approx(mean, rel=0.25)
        assert D_x == pytest.approx(mean, rel=0.25)
        assert ratio == pytest.approx(2.1, rel=0.05)


def test_mobile_init_divides_by_the_groups():
    torch.manual_seed(0)
    model = timm.create_model("efficientnet_b0_global")
    layer = next(m for m in model.modules() if isinstance(m, GlobalLayer) and m.channels == 192)
    assert layer.velocity.op_x.weight.std().item() == pytest.approx(math.sqrt(2 / 25), rel=0.05)


def test_mobile_sites_are_as_described():
    layers = {
        m.channels: m for m in timm.create_model("efficientnet_b0_global").modules() if isinstance(m, GlobalLayer)
    }
    assert list(layers) == [24, 40, 80, 112, 192]
    assert {C for C, m in layers.items() if isinstance(m.init, nn.Identity)} == {24, 40, 80}
    assert [(m.dt, m.dilation, m.diffusion.x, m.K) for m in layers.values()] == [
        (0.1, 1, 2.0, 1),
        (0.1, 2, 2.0, 1),
        (0.2, 1, 1.0, 1),
        (0.2, 1, 1.0, 1),
        (0.2, 1, 1.0, 1),
    ]
    assert [m.velocity.op_x.kernel_size[0] for m in layers.values()] == [3, 5, 3, 5, 5]
    assert all(m.h_prev == "input" and m.velocity.gated and isinstance(m.act, nn.SiLU) for m in layers.values())


def test_strided_first_guess_of_the_authors_code():
    model = timm.create_model("mobilenetv3_large_100_global", layout="code").eval()
    layer = [m for m in model.modules() if isinstance(m, GlobalLayer)][-1]
    h, x = layer.first_guess(torch.randn(1, 112, 4, 4))
    assert h.shape == (1, 160, 2, 2)
    assert x is h


def count(model):
    classifier = model.get_classifier()
    return sum(p.numel() for p in model.parameters()), sum(p.numel() for p in classifier.parameters())


def test_the_other_fits_of_the_published_counts():
    """Spec 3.4 and 3.6: configurations that fit the same figures."""
    wide = CifarResNet(ResNetConfig((64, 128, 256), 5, (0, 1, 2), block_init=True), num_classes=100, device="meta")
    assert count(wide)[0] == 9_023_524
    total, head = count(EfficientNetGlobal(_mobilenetv2(("identity",) * 3 + ("block",) * 2), device="meta"))
    assert total - head == 1_593_280
    guesses = ("identity", "block", "block", "identity", "block")
    total, head = count(MobileNetV3Global(_mobilenetv3(guesses), device="meta"))
    assert total - head == 2_993_960


def test_toy_velocities_are_one_signed_map():
    toy = timm.create_model("mnist_toy_global").eval()
    (layer,) = (m for m in toy.modules() if isinstance(m, GlobalLayer))
    z = torch.randn(1, 1, 28, 28)
    u, v, D_x, D_y = layer.coefficients(z)
    assert u is v
    assert u.min() < 0 < u.max()
    assert (D_x, D_y) == (1.0, 1.0)
    with pytest.raises(ValueError, match="cfg must be one of 'conv', 'residual', 'global', got 'ode'"):
        MnistToy("ode")


@pytest.mark.parametrize("name", ["cifar_resnet56_global", "cifar_densenet_bc100_global", "cifar_wrn40_4_global"])
def test_the_two_readings_of_the_paper(name):
    """The text: depth-wise coefficients, and the state before the first is the first guess. The counts: as built."""
    by_text = [m for m in timm.create_model(name, reading="text").modules() if isinstance(m, GlobalLayer)]
    by_counts = [m for m in timm.create_model(name).modules() if isinstance(m, GlobalLayer)]
    assert {m.h_prev for m in by_text} == {"init"}
    assert {m.h_prev for m in by_counts} == {"input"}
    for m in by_text:
        assert m.diffusion.op_x.groups == m.velocity.op_x.groups == m.channels
    assert all(hasattr(m.diffusion, "op_x") == ("densenet" in name) for m in by_counts)


def test_the_text_has_constant_diffusion_at_low_budget_on_cifar10():
    for name in ("cifar_resnet_tiny_global", "cifar_wrn_tiny_global", "cifar_darts_tiny_global"):
        for classes, constant in ((10, True), (100, False)):
            model = timm.create_model(name, reading="text", num_classes=classes)
            layers = [m for m in model.modules() if isinstance(m, GlobalLayer)]
            assert all((getattr(m.diffusion, "x", None) == 1.0) == constant for m in layers)
    own = timm.create_model("cifar_resnet_tiny_global", reading="text", global_options={"h_prev": "input"})
    assert {m.h_prev for m in own.modules() if isinstance(m, GlobalLayer)} == {"input"}  # the user's word is the last
    with pytest.raises(ValueError, match="reading must be one of 'counts', 'text', got 'code'"):
        timm.create_model("cifar_resnet_tiny_global", reading="code")


def test_the_toy_takes_another_velocity():
    """The published toy has u = v = q; a velocity that the user asks for is not overwritten by it."""
    (layer,) = (m for m in timm.create_model("mnist_toy_global").modules() if isinstance(m, GlobalLayer))
    assert layer.coefficients(torch.randn(1, 1, 8, 8))[0].shape == (1, 1, 8, 8)
    for velocity in (0.5, "depthwise"):
        toy = timm.create_model("mnist_toy_global", global_options={"velocity": velocity})
        (layer,) = (m for m in toy.modules() if isinstance(m, GlobalLayer))
        u, v, _, _ = layer.coefficients(torch.randn(1, 1, 8, 8))
        assert u == v == 0.5 if velocity == 0.5 else u is not v


def test_width_depth_and_first_guess_are_options():
    base = timm.create_model("cifar_resnet32_global")
    deep = timm.create_model("cifar_resnet32_global", blocks=2, widths=[8, 16, 32, 32], init="block")
    layers = [m for m in deep.modules() if isinstance(m, GlobalLayer)]
    assert [m.channels for m in layers] == [8, 16, 32]
    assert [type(m.init).__name__ for m in layers] == ["BasicBlock"] * 3
    assert [len(stage) for stage in deep.stages] == [3, 3, 3, 2]
    wide = timm.create_model("cifar_resnet32_global", global_options={"kernel_size": 5})
    extra = sum(p.numel() for p in wide.parameters()) - sum(p.numel() for p in base.parameters())
    assert extra == 4 * (25 - 9) * (16 + 32 + 64)
    same = timm.create_model("cifar_wrn40_4_global", init="identity", device="meta")
    assert all(isinstance(m.init, nn.Identity) for m in same.modules() if isinstance(m, GlobalLayer))
    for wrong, message in (
        ({"widths": [8, 16]}, r"expected 4 widths, got \[8, 16\]"),
        ({"blocks": 0}, "blocks must be at least 1, got 0"),
        ({"init": "cell"}, "init must be 'identity' or 'block', got 'cell'"),
    ):
        with pytest.raises(ValueError, match=message):
            timm.create_model("cifar_resnet32_global", **wrong)


def build_small(name, **options):
    """A net of few channels and layers, whatever its family calls them, and its Global layers."""
    sizes = {
        "densenet": {"layers": 2, "growth": 4},
        "darts": {"channels": 4, "cells": 6},
        "mnist_resnet": {"channels": 8},
    }
    small = next((size for family, size in sizes.items() if family in name), {})
    net = timm.create_model(name, **{**small, **options}).eval()
    return net, [m for m in net.modules() if isinstance(m, GlobalLayer)]


OTHER_NETS = ("cifar_densenet_bc100_global", "cifar_darts_global", "mnist_resnet_tiny_global", "mnist_toy_global")


@pytest.mark.parametrize("name", ["cifar_resnet_tiny_global", *OTHER_NETS])
def test_the_null_is_the_net_without_its_global_layers(name):
    null, none = build_small(name, no_global=True)
    full, layers = build_small(name)
    assert not none
    assert layers
    if "darts" not in name:  # there the next cell reads other outputs
        inside = sum(p.numel() for m in layers for p in m.parameters())
        assert sum(p.numel() for p in null.parameters()) == sum(p.numel() for p in full.parameters()) - inside
    assert null(torch.randn(2, 1, 28, 28) if "mnist" in name else torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_the_other_families_take_their_sizes_as_options():
    net, layers = build_small("cifar_densenet_bc100_global", layers=3, growth=6, init="identity")
    assert [m.channels for m in layers] == [(12 + 18) // 2, (15 + 18) // 2]
    assert all(isinstance(m.init, nn.Identity) for m in layers)
    assert net(torch.randn(1, 3, 16, 16)).shape == (1, 10)
    net, layers = build_small("cifar_darts_global", channels=4, cells=9)
    assert [m.channels for m in layers] == [16, 32]
    assert sum(isinstance(m, Cell) for m in net.modules()) == 9 + len(layers)
    net, layers = build_small("mnist_resnet_tiny_global", blocks=2, init="block", global_options={"kernel_size": 5})
    assert [(m.channels, type(m.init).__name__) for m in layers] == [(8, "PreActBlock")] * 2
    assert net(torch.randn(1, 1, 28, 28)).shape == (1, 10)
    for name, wrong, message in (
        ("cifar_densenet_bc100_global", {"growth": 0}, "CifarDenseNet: growth must be at least 1, got 0"),
        ("cifar_darts_global", {"cells": 2}, "cells must be at least 3"),
        ("mnist_resnet_tiny_global", {"init": "cell"}, "MnistNet: init must be 'identity' or 'block', got 'cell'"),
    ):
        with pytest.raises(ValueError, match=message):
            timm.create_model(name, **wrong)


def test_the_micro_net_moves_values_between_pixels_by_pdes_alone():
    net = timm.create_model("mnist_micro_global").eval()
    assert sum(p.numel() for p in net.parameters()) == 694
    layers = [m for m in net.modules() if isinstance(m, Transport)]
    assert [(m.channels, m.K) for m in layers] == [(12, 2)] * 4
    assert all(m.velocity.std() > 0.4 for m in layers)  # the channels start in different directions
    assert [m.kernel_size for m in net.modules() if isinstance(m, nn.Conv2d)] == [(3, 3)]
    null = timm.create_model("mnist_micro_global", no_global=True)
    assert sum(p.numel() for p in null.parameters()) == 694 - 4 * 4 * 12
    assert not any(isinstance(m, Transport) for m in null.modules())


def test_the_blocks_of_the_micro_net_share_their_mixing():
    """By hand, layer by layer: convolution, pooling, twice transport, mixing, norm and ReLU, and again."""
    net = timm.create_model("mnist_micro_global").eval()
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, std=0.1)
            nn.init.uniform_(m.weight, 0.5, 2)
    x = torch.randn(2, 1, 28, 28)
    h = net.stem.bn(net.stem.conv(x)).relu()
    for i in range(4):
        h = nn.functional.max_pool2d(h, 2) if i in (0, 2) else h
        block = net.stages[i // 2][i % 2]
        h = torch.einsum("dc,nchw->ndhw", net.mix[:, :, 0, 0], block.space(h))
        h = block.norm(h).relu()
    torch.testing.assert_close(net(x), net.fc(h.mean((2, 3))), rtol=1e-5, atol=1e-5)
    features, last = timm.create_model("mnist_micro_global", features_only=True)(x)
    assert (features.shape, last.shape) == ((2, 12, 14, 14), (2, 12, 7, 7))
