import pytest
import timm
import torch
from torch import nn

import pdecnn  # noqa: F401  (registers the models)
from pdecnn.layers import HardBall, SoftBall
from pdecnn.models import HyperbolicConfig, HyperbolicNet
from pdecnn.training.variation import weight_variation

COUNTS = {  # 100 classes
    "hyperbolic50_eq3": 8_608_868,
    "hyperbolic50_eq3_nows": 8_728_100,
    "hyperbolic50_eq3_nows_x6": 12_971_044,
    "hyperbolic50_eq4": 5_696_612,
    "hyperbolic50_eq5": 4_259_556,
    "hyperbolic50_eq6": 5_610_596,
    "hyperbolic50_eq7_nows_x6": 12_971_044,
    "hyperbolic50_cp": 9_531_940,
}
N0, N1, S1, S2, K = 999_424, 1_085_440, 3_328, 3_776, 234_660


def count(name, **options):
    model = timm.create_model(name, device="meta", **options)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_of_the_published_table(name):
    assert count(name, num_classes=100) == COUNTS[name]
    assert count(name, num_classes=1000) == COUNTS[name] + 461_700


@pytest.mark.parametrize("equation", ["eq3", "eq4", "eq5", "eq6", "eq7"])
@pytest.mark.parametrize("f, suffix", [(4, ""), (6, "_x6")])
@pytest.mark.parametrize("shared", [True, False])
def test_parameters_by_formula(equation, f, suffix, shared):
    """Matrices, norms and stencils, summed over the 16 blocks."""
    matrices = {
        "eq3": f * N0 + f * N1,
        "eq4": (f + 1) * N1,
        "eq5": f * N0,
        "eq6": N0 + f * N1,
        "eq7": f * N0 + f * N1,
    }[equation]
    norms = 2 * f * S1 + (0 if equation == "eq5" else 2 * S2)
    stencils = 9 * f * (16 if shared else S1)
    name = f"hyperbolic50_{equation}{'' if shared else '_nows'}{suffix}"
    assert count(name, num_classes=100) == matrices + norms + stencils + K


def test_parameters_as_the_text_reads():
    """Equation (4) with a C for each derivative and Equation (5) with a norm at its end; both exceed the table."""
    assert (
        count("hyperbolic50_eq4", num_classes=100, reading="text") == 8 * N1 + 2 * (4 * S1 + S2) + 576 + K == 8_952_932
    )
    assert count("hyperbolic50_eq5", num_classes=100, reading="text") == 4_259_556 + 2 * S2 == 4_267_108
    for name in ("hyperbolic50_eq3", "hyperbolic50_eq6", "hyperbolic50_eq7", "hyperbolic50_cp"):
        assert count(name, reading="text") == count(name)


@pytest.mark.parametrize("equation", ["eq3", "eq4", "eq5", "eq6", "eq7"])
def test_variants_of_the_paper_are_options_of_the_small_nets(equation):
    """No weight sharing, six stencils, another ball: keywords of every net, so that a recipe can name them."""
    net = timm.create_model("cifar_hyperbolic_eq3", equation=equation, f=6, shared=False, activation="hardball")
    by_name = timm.create_model(f"cifar_hyperbolic_{equation}", f=6, shared=False, activation="hardball")
    assert [p.shape for p in net.parameters()] == [p.shape for p in by_name.parameters()]
    assert {(b.f, b.shared) for b in net.blocks()} == {(6, False)}
    assert {type(b.act) for b in net.blocks()} == {nn.Identity, HardBall}
    assert net.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    small = timm.create_model("cifar_hyperbolic_eq3", widths=[8, 16], depths=[1, 2])
    assert [(b.n, b.m) for b in small.blocks()] == [(8, 8), (8, 16), (16, 16)]


def test_shapes_from_224_pixels():
    model = timm.create_model("hyperbolic50_eq3", num_classes=100).eval()
    sides = []
    model.stem.conv.register_forward_hook(lambda m, i, out: sides.append(out.shape[-1]))
    with torch.no_grad():
        last, maps = model.forward_intermediates(torch.zeros(1, 3, 224, 224))
        assert model.forward_head(last).shape == (1, 100)
    assert sides == [112]
    assert [tuple(m.shape[1:]) for m in maps] == [(64, 56, 56), (128, 28, 28), (256, 14, 14), (512, 7, 7)]


@pytest.mark.parametrize("name", ["cifar_hyperbolic_eq3", "cifar_hyperbolic_cp"])
def test_blocks_start_as_their_skips(name):
    model = timm.create_model(name).train()
    u = torch.randn(2, 16, 8, 8)
    for block in model.stages[0]:
        assert torch.equal(block(u), u)
    ds = model.stages[1][0]
    torch.testing.assert_close(ds(u), ds.act(ds.skip(u)))


def activated(model):
    return [i for i, block in enumerate(model.blocks()) if not isinstance(block.act, nn.Identity)]


def test_where_activations_stand():
    few = timm.create_model("hyperbolic50_eq4", device="meta")
    assert activated(few) == [3, 7, 13, 15]
    assert all(isinstance(few.blocks()[i].act, SoftBall) for i in activated(few))
    assert pytest.approx(512**0.5) == few.blocks()[15].act.R
    everywhere = timm.create_model("hyperbolic50_eq4", activation="relu", activation_at="all", device="meta")
    assert activated(everywhere) == list(range(16))
    assert isinstance(timm.create_model("hyperbolic50_cp", device="meta").blocks()[3].act, HardBall)
    assert activated(timm.create_model("hyperbolic50_cp", activation="none", device="meta")) == []


def test_a_linear_stem():
    stem = timm.create_model("hyperbolic50_cp", linear_stem=True, device="meta").stem
    assert isinstance(stem.act, nn.Identity)
    assert isinstance(stem.pool, nn.AvgPool2d)


def test_stochastic_depth_and_checkpointing():
    torch.manual_seed(0)
    model = timm.create_model("cifar_hyperbolic_eq3", drop_path_rate=0.5, zero_init_last=False)
    rates = [block.drop_path.drop_prob for block in model.blocks()[1:]]
    assert rates == pytest.approx([0.5 * i / 8 for i in range(1, 9)])
    x = torch.randn(2, 3, 16, 16)
    model = timm.create_model("cifar_hyperbolic_eq3", zero_init_last=False).eval()
    plain = model(x)
    model.set_grad_checkpointing(True)
    torch.testing.assert_close(model(x), plain)


@pytest.mark.parametrize("name", ["cifar_hyperbolic_eq3", "cifar_hyperbolic_cp"])
def test_a_few_steps_learn_a_small_batch(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=2)
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8) % 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(x), y) + 1e-6 * weight_variation(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_compiled_graph_has_no_breaks():
    model = timm.create_model("cifar_hyperbolic_eq3", zero_init_last=False).eval()
    x = torch.randn(1, 3, 16, 16)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_refusals():
    with pytest.raises(ValueError, match=r"equation must be one of eq3, .*, cp, lifted, tensor, got 'eq8'"):
        HyperbolicConfig("eq8")
    with pytest.raises(ValueError, match="activation_at must be 'all' or 'ds', got 'some'"):
        HyperbolicConfig(activation_at="some")
    with pytest.raises(ValueError, match="activation_at must be 'all' or 'ds', got 'some'"):
        HyperbolicNet(HyperbolicConfig(), activation_at="some", device="meta")
    with pytest.raises(ValueError, match=r"widths \(8,\) and depths \(1, 2\) must be of the same length"):
        HyperbolicConfig(widths=(8,), depths=(1, 2))
    with pytest.raises(ValueError, match=r"kind must be one of .* got 'gelu'"):
        HyperbolicNet(HyperbolicConfig(), activation="gelu", device="meta")
