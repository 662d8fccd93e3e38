"""The networks of others that the papers compare with: counts and laws. `test_registry` asks all else of them."""

import pytest
import timm
import torch
from torch import nn

import pdecnn
from pdecnn.models.neupde import NeuPDEBlock, derivative_features
from pdecnn.models.ruthotto_haber import DYNAMICS, Hamiltonian, PixelNorm, SecondOrder, SymmetricLayer

COUNTS = {  # parameters for 10 classes; for 100 where the net is that of CIFAR-100
    "mnist_odenet": 208_266,
    "cifar_odenet": 11_173_962,
    "cifar_neupde": 8_877_066,
    "cifar_mdeq": 11_097_438,
    "cifar_mdeq_small": 1_113_850,
    "cifar_mdeq_tiny": 158_890,
    "mnist_neupde": 179_738,
    "cifar_parabolic": 502_570,
    "cifar_parabolic_wide": 652_484,
    "cifar_second_order": 502_570,
    "cifar_second_order_wide": 652_484,
    "cifar_hamiltonian": 264_106,
    "cifar_hamiltonian_wide": 362_180,
}


@pytest.mark.parametrize("name, params", COUNTS.items())
def test_parameters(name, params):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=100 if name.endswith("_wide") else 10)
    assert sum(p.numel() for p in model.parameters()) == params


def test_macs_of_the_ode_net_on_mnist_are_those_published_at_32_evaluations():
    pytest.importorskip("torchdiffeq")
    torch.manual_seed(0)
    model = timm.create_model("mnist_odenet")
    report = pdecnn.profile(model, torch.randn(1, 1, 28, 28))
    evaluations = model.stages[0][0].evaluations
    field = report.subtree("stages.0.0.f")
    assert field.calls == evaluations
    assert field.conv_fc == evaluations * 2_695_680
    assert round((report.conv_fc + (32 - evaluations) * 2_695_680) / 1e6) == 100
    assert report.params == 208_266


def test_hamiltonian_net_exports():
    model, x = timm.create_model("cifar_hamiltonian").eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        exported = torch.export.export(model, (x,)).module()
        torch.testing.assert_close(exported(x), model(x))


def test_fixed_step_ode_net_compiles_without_a_break():
    model, x = timm.create_model("cifar_odenet").eval(), torch.randn(2, 3, 16, 16)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


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
