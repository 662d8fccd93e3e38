"""The networks of others that the papers compare with: counts, laws, and timm's interface."""

import copy

import pytest
import timm
import torch
from torch import nn

import pdecnn
from pdecnn.models.neupde import NeuPDEBlock, derivative_features
from pdecnn.models.ruthotto_haber import DYNAMICS, Hamiltonian, PixelNorm, SecondOrder, SymmetricLayer

FAST = {"cifar_mdeq": {"max_evaluations": 2, "max_backward_evaluations": 2}}
FAST["cifar_mdeq_tiny"] = FAST["cifar_mdeq"]
FAST["mnist_odenet"] = {"gradient": "anode", "method": "euler", "steps": 2}
COUNTS = {  # parameters for 10 classes; for 100 where the net is that of CIFAR-100
    "mnist_odenet": 208_266,
    "cifar_odenet": 11_173_962,
    "cifar_neupde": 8_877_066,
    "cifar_mdeq": 11_097_438,
    "cifar_mdeq_tiny": 158_890,
    "cifar_parabolic": 502_570,
    "cifar_parabolic_wide": 652_484,
    "cifar_second_order": 502_570,
    "cifar_second_order_wide": 652_484,
    "cifar_hamiltonian": 264_106,
    "cifar_hamiltonian_wide": 362_180,
}
SMALL = [n for n in COUNTS if n not in ("cifar_mdeq", "cifar_odenet") and not n.endswith("_wide")]


def create(name, **kwargs):
    return timm.create_model(name, **{**FAST.get(name, {}), **kwargs})


def images(name, n=2, **kwargs):
    # a quarter of a CIFAR image: all that is tested here is as true and four times as fast
    return torch.randn(n, 1, 28, 28, **kwargs) if name.startswith("mnist") else torch.randn(n, 3, 16, 16, **kwargs)


@pytest.mark.parametrize("name, params", COUNTS.items())
def test_parameters(name, params):
    with torch.device("meta"):
        model = create(name, num_classes=100 if name.endswith("_wide") else 10)
    assert sum(p.numel() for p in model.parameters()) == params


def test_macs_of_the_ode_net_on_mnist_are_those_published_at_32_evaluations():
    pytest.importorskip("torchdiffeq")
    torch.manual_seed(0)
    model = timm.create_model("mnist_odenet")
    report = pdecnn.profile(model, images("mnist", 1))
    evaluations = model.stages[0][0].evaluations
    field = report.subtree("stages.0.0.f")
    assert field.calls == evaluations
    assert field.conv_fc == evaluations * 2_695_680
    assert round((report.conv_fc + (32 - evaluations) * 2_695_680) / 1e6) == 100
    assert report.params == 208_266


@pytest.mark.parametrize("name", SMALL)
def test_forward_backward_and_every_parameter_has_a_gradient(name):
    torch.manual_seed(0)
    model = create(name)
    out = model(images(name))
    assert out.shape == (2, 10)
    out.square().sum().backward()
    silent = [k for k, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


@pytest.mark.parametrize("name", SMALL)
def test_timm_interface(name):
    model = create(name).eval()
    x = images(name)
    with torch.no_grad():
        features = model.forward_features(x)
        torch.testing.assert_close(model.forward_head(features), model(x))
        last, intermediates = model.forward_intermediates(x)
        torch.testing.assert_close(last, features)
        info = model.feature_info
        assert [f.shape[1] for f in intermediates] == [i["num_chs"] for i in info]
        pool_size, full_size = model.default_cfg["pool_size"][0], model.default_cfg["input_size"][-1]
        assert features.shape[-1] * full_size == pool_size * x.shape[-1]
        model.reset_classifier(7)
        assert model(x).shape == (2, 7)
        assert model.get_classifier().out_features == 7
        model.reset_classifier(0, "")
        assert model(x).shape == features.shape
    assert dict(model.named_modules())[model.default_cfg["first_conv"]].in_channels == x.shape[1]
    groups = timm.models._manipulate.group_parameters(model, model.group_matcher(coarse=True))
    assert len(groups) > len(model.stages)
    backbone = create(name, features_only=True).eval()
    assert [f.shape[1] for f in backbone(x)] == backbone.feature_info.channels()


@pytest.mark.parametrize("name", SMALL)
def test_state_dict_round_trip_and_deterministic_init(name):
    torch.manual_seed(3)
    a = create(name)
    torch.manual_seed(3)
    b = create(name)
    for key, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[key]), key
    c = create(name)
    c.load_state_dict(a.state_dict())
    x = images(name)
    a.eval(), c.eval()
    with torch.no_grad():
        assert torch.equal(a(x), c(x))
        torch.testing.assert_close(copy.deepcopy(a)(x), a(x))


@pytest.mark.parametrize("name", SMALL)
def test_channels_last_and_bfloat16_autocast(name):
    torch.manual_seed(0)
    model, x = create(name).eval(), images(name)
    with torch.no_grad():
        expected = model(x)
        last = copy.deepcopy(model).to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
        torch.testing.assert_close(last, expected, rtol=1e-3, atol=1e-3)
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).isfinite().all()


@pytest.mark.parametrize("name", ["cifar_hamiltonian", "cifar_second_order"])
def test_export(name):
    model, x = create(name).eval(), images(name)
    with torch.no_grad():
        exported = torch.export.export(model, (x,)).module()
        torch.testing.assert_close(exported(x), model(x))


@pytest.mark.parametrize("name", ["cifar_second_order", "cifar_odenet"])
def test_compiles_without_a_break(name):
    model, x = create(name).eval(), images(name)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("name", ["cifar_hamiltonian", "mnist_odenet", "cifar_mdeq_tiny"])
def test_grad_checkpointing_changes_nothing(name):
    torch.manual_seed(0)
    model, x = create(name), images(name)
    model(x).square().sum().backward()
    plain = {k: p.grad.clone() for k, p in model.named_parameters()}
    model.zero_grad()
    model.set_grad_checkpointing(True)
    model(x).square().sum().backward()
    for k, p in model.named_parameters():
        torch.testing.assert_close(p.grad, plain[k], rtol=1e-4, atol=1e-5)


def test_symmetric_layer_has_a_symmetric_negative_jacobian():
    torch.manual_seed(0)
    layer = SymmetricLayer(2, act_layer=nn.Tanh, norm_layer=lambda channels, **_: nn.Identity()).double()
    h = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    J = torch.autograd.functional.jacobian(layer, h).reshape(24, 24)
    torch.testing.assert_close(J, J.mT, rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(J).max() < 1e-12


def test_hyperbolic_blocks_can_be_undone():
    torch.manual_seed(0)
    h, h_prev = torch.randn(2, 2, 4, 5, 5, dtype=torch.float64)
    wave = SecondOrder(4, steps=4, dt=0.5, dtype=torch.float64)
    for a, b in zip(wave.undo(*wave.run(h_prev, h)), (h_prev, h), strict=True):
        torch.testing.assert_close(a, b)
    verlet = Hamiltonian(4, steps=4, dt=0.5, dtype=torch.float64)
    torch.testing.assert_close(verlet.undo(verlet(h)), h)
    assert not torch.allclose(verlet(h), h)


def test_pixel_norm_makes_unit_vectors():
    h = 5 * torch.randn(2, 6, 3, 3, dtype=torch.float64)
    length = PixelNorm(6, eps=0.0, dtype=torch.float64)(h).norm(dim=1)
    torch.testing.assert_close(length, torch.ones_like(length))


def test_derivative_features_of_a_quadratic():
    y, x = torch.meshgrid(torch.arange(6.0), torch.arange(7.0), indexing="ij")
    h = (2 * x * x + 3 * x * y - y * y)[None, None]
    inner = derivative_features(h)[0, :, 2, 3]
    assert inner.tolist() == [18 + 18 - 4, 4 * 3 + 3 * 2, 3 * 3 - 2 * 2, 4, 3, -2]


def test_neupde_block_is_euler():
    torch.manual_seed(0)
    block = NeuPDEBlock(2, steps=2, norm_layer=nn.Identity, act_layer=nn.Identity)
    h = torch.randn(1, 2, 4, 4)
    half = h + block.rate(h) / 2
    torch.testing.assert_close(block(h), half + block.rate(half) / 2)


def test_mistakes_are_named():
    from pdecnn.models.ruthotto_haber import CifarPDENet, PDENetConfig

    with pytest.raises(ValueError, match="one of parabolic, second_order, hamiltonian, got 'elliptic'"):
        CifarPDENet(PDENetConfig("elliptic"))
    with pytest.raises(ValueError, match="must be even, as they are two halves, got channels=3"):
        DYNAMICS["hamiltonian"](3, 1, 1.0)
    with pytest.raises(ValueError, match="at least 1, got steps=0"):
        NeuPDEBlock(2, steps=0)
