"""The published parameter counts of the low-cost networks, what they compute, and that all six learn."""

import pytest
import timm
import torch
from torch import nn

import pdecnn
from pdecnn import reference
from pdecnn.models.lowcost import STEPS, Connect, LowCostConfig, LowCostNet, ResidualStep

RD = {("a", 10): 101_066, ("b", 10): 216_106, ("b", 100): 250_756, ("c", 100): 423_460}
COUNTS = {
    "resnet": {("a", 10): 1_555_274, ("b", 10): 3_494_122, ("b", 100): 3_528_772, ("c", 100): 6_324_900},
    "mobilenet": RD,
    "linearmix": {("a", 10): 195_146, ("b", 10): 421_738, ("b", 100): 456_388, ("c", 100): 788_900},
    "explicit": RD,
    "implicit": RD,
    "circulant": RD,
}
AFFINE_A10 = {"resnet": 1_558_026, "mobilenet": 105_610, "linearmix": 197_898, "explicit": 103_818}
ENTRIES = [(step, size, classes, n) for step, row in COUNTS.items() for (size, classes), n in row.items()]


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("step, size, classes, published", ENTRIES)
def test_parameter_counts(step, size, classes, published):
    assert count(timm.create_model(f"lowcost_{step}_{size}", num_classes=classes, device="meta")) == published


@pytest.mark.parametrize("step, published", AFFINE_A10.items())
def test_parameter_counts_with_affine_norms(step, published):
    assert count(timm.create_model(f"lowcost_{step}_a", affine=True, device="meta")) == published


@pytest.mark.parametrize("step", STEPS)
def test_learns_a_small_problem(step):
    """The spec's smoke test: 64 samples, 16x16, 4 classes, 25 steps of Adam at lr 0.01."""
    torch.manual_seed(0)
    model = timm.create_model(f"lowcost_{step}_tiny", num_classes=4)
    x, target = torch.randn(64, 3, 16, 16), torch.arange(64) % 4
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        loss = nn.functional.cross_entropy(model(x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert 1.0 < losses[0] < 2.0
    assert losses[-1] < 0.5


def test_frame_is_the_one_of_the_paper():
    """One net by hand: opening, four steps, connecting layer, pooling, classifier."""
    torch.manual_seed(0)
    cfg = LowCostConfig("explicit", (4,))
    model = LowCostNet(cfg, num_classes=3, dtype=torch.float64).eval()
    x = torch.randn(2, 3, 6, 8, dtype=torch.float64)
    norm = nn.BatchNorm2d(1, affine=False).eval()  # fresh statistics: divides by sqrt(1 + eps)
    scale = (1 + norm.eps) ** -0.5
    y = torch.relu(scale * nn.functional.conv2d(x, model.stem.conv.weight, padding=2))
    for step in model.stages[0][:4]:
        r = torch.relu(scale * reference.pointwise(y, step.weight))
        y = reference.explicit_step(y, step.stencil, r, 0.1)
    connect = model.stages[0][4]
    y = scale * torch.cat([y, reference.depthwise(y, connect.depthwise.stencil, "dirichlet")], 1)
    logits = y.mean((2, 3)) @ model.fc.weight.T + model.fc.bias  # 2x2 pooling does not change the mean
    torch.testing.assert_close(model(x), logits, rtol=0, atol=1e-10)


def test_options_reach_the_steps():
    model = timm.create_model("lowcost_explicit_tiny", h=0.5, guard=True, affine=True)
    step = model.stages[0][0]
    assert (step.h, step.guard, step.norm.affine) == (0.5, True, True)
    assert isinstance(model.stages[0][-1], Connect)
    assert isinstance(timm.create_model("lowcost_linearmix_tiny").stages[0][0], ResidualStep)
    assert model.feature_info[-1]["num_chs"] == 64


def test_bad_configs_are_refused():
    with pytest.raises(ValueError, match=r"step must be one of resnet, .*, got 'magic'"):
        LowCostConfig("magic", (4,))
    with pytest.raises(ValueError, match=r"each width must be twice the one before, got \(4, 12\)"):
        LowCostNet(LowCostConfig("explicit", (4, 12)))


@pytest.mark.parametrize("step", ["explicit", "implicit", "circulant"])
def test_compiles_and_exports_whole(step):
    model = LowCostNet(LowCostConfig(step, (4, 8), steps=1)).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(x), expected)
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)
        torch.testing.assert_close(model(x), expected)
    torch.compiler.reset()


def test_fx_features():
    extractor = timm.create_model("lowcost_implicit_tiny", features_only=True, feature_cls="fx").eval()
    assert [q.shape[1] for q in extractor(torch.randn(1, 3, 16, 16))] == [16, 32, 64]


# replace_convs


def test_a_convolution_with_two_names_stays_one():
    conv = nn.Conv2d(8, 8, 3, padding=1)
    small, report = pdecnn.replace_convs(nn.Sequential(conv, nn.ReLU(), conv))
    assert small[0] is small[2]
    assert not isinstance(small[2], nn.Conv2d)
    assert len(report.swapped) == 1
    alone, _ = pdecnn.replace_convs(conv)
    assert type(alone) is type(small[0])


def test_replace_convs_reports_every_convolution_with_its_reason():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, stride=2),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.Conv2d(8, 8, 1),
        nn.Conv2d(8, 8, (1, 3), padding=(0, 1)),
        nn.Conv2d(8, 8, 3),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(8, 8, 5, padding="same", bias=False),
        nn.Conv1d(8, 8, 3, padding=1),
    )
    small, report = pdecnn.replace_convs(net)
    assert [row.name for row in report.swapped] == ["1", "9"]
    reasons = [row.reason for row in report.kept]
    assert reasons == [
        "3 channels in but 8 out",
        "stride (2, 2)",
        "dilation (2, 2)",
        "2 groups",
        "1x1 already",
        "kernel 1x3 is not square and odd",
        "padding (0, 0) changes the image size",
        "padding mode 'reflect'",
        "Conv1d is not Conv2d",
    ]
    assert isinstance(net[1], nn.Conv2d)  # the original stays
    assert type(small[1]).__name__ == "LinearMixConv2d"
    assert "2 of 11 convolutions swapped" in str(report)
    assert "  1: 576 -> 136" in str(report)


def test_replaced_convolutions_of_the_kind_compute_the_same():
    torch.manual_seed(0)
    x = torch.randn(2, 6, 7, 7)
    full = nn.Conv2d(6, 6, 3, padding=1)
    with torch.no_grad():
        full.weight.copy_(reference.linear_mix_kernel(torch.randn(6, 3, 3), torch.randn(6, 6)))
    swapped, _ = pdecnn.replace_convs(full)
    torch.testing.assert_close(swapped(x), full(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        full.weight.copy_(torch.diag_embed(torch.randn(3, 3, 6)).permute(2, 3, 0, 1))
    swapped, _ = pdecnn.replace_convs(full, "depthwise")
    torch.testing.assert_close(swapped(x), full(x), rtol=1e-4, atol=1e-5)


def test_replace_convs_of_a_timm_model():
    torch.manual_seed(0)
    net = timm.create_model("lowcost_resnet_tiny").eval()
    small, report = pdecnn.replace_convs(net, only=lambda name, conv: not name.startswith("stages.0"))
    assert len(report.swapped) == 16
    assert {row.reason for row in report.kept} == {"3 channels in but 8 out", "not chosen"}
    removed = sum(row.before - row.after for row in report.rows)
    assert removed == sum(8 * (9 * c * c - 9 * c - c * c) for c in (16, 32))
    assert count(net) - count(small) == removed
    assert small(torch.randn(2, 3, 16, 16)).shape == (2, 10)
    fresh, _ = pdecnn.replace_convs(net, fit=False)
    assert not torch.equal(fresh.stages[0][0].conv1.stencil, net.stages[0][0].conv1.weight.diagonal().permute(2, 0, 1))


def test_replace_convs_bad_input():
    with pytest.raises(ValueError, match="kind must be one of 'linearmix', 'depthwise', got 'magic'"):
        pdecnn.replace_convs(nn.Conv2d(3, 3, 3), "magic")
    with pytest.raises(ValueError, match="Linear has no convolution"):
        pdecnn.replace_convs(nn.Linear(2, 2))


@pytest.mark.parametrize("step", STEPS)
def test_wider_stencils_and_more_steps_are_options(step):
    """Only the taps grow: 25 instead of 9 for each channel of each stencil, in every step and connecting layer."""
    wide = timm.create_model(f"lowcost_{step}_tiny", kernel_size=5, steps=2)
    narrow = timm.create_model(f"lowcost_{step}_tiny", steps=2)
    assert [len(stage) for stage in wide.stages] == [3, 3, 3]
    taps = {"resnet": lambda c: 2 * 2 * c * c + c, "linearmix": lambda c: 2 * 2 * c + c}.get(step, lambda c: 2 * c + c)
    assert count(wide) - count(narrow) == 16 * sum(taps(c) for c in (8, 16, 32))
    assert wide.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize("connect", ["pointwise", "strided"])
def test_the_other_connecting_layers(connect):
    """1x1 to twice the channels: strided is the pooled one at every second pixel where features are constant."""
    torch.manual_seed(0)
    model = timm.create_model("lowcost_explicit_tiny", connect=connect).eval()
    layer = model.stages[0][-1]
    y = torch.randn(2, 8, 6, 6)
    out = layer(y)
    expected = layer.norm(nn.functional.conv2d(y, layer.pointwise.weight))
    expected = expected[:, :, ::2, ::2] if connect == "strided" else nn.functional.avg_pool2d(expected, 2)
    torch.testing.assert_close(out, expected)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    assert count(model) == count(timm.create_model("lowcost_explicit_tiny")) + sum(
        2 * c * c - 9 * c for c in (8, 16, 32)
    )
    with pytest.raises(ValueError, match="connect must be one of 'concat', 'pointwise', 'strided', got 'conv'"):
        timm.create_model("lowcost_explicit_tiny", connect="conv")
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        timm.create_model("lowcost_explicit_tiny", steps=0)
