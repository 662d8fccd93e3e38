"""Global layers of signals and volumes: what they compute, and what they refuse."""

import pytest
import torch
from torch import nn

from pdecnn import reference
from pdecnn.layers import GlobalLayer, GlobalLayer1d, GlobalLayer3d, set_steps

LAYERS = {1: GlobalLayer1d, 3: GlobalLayer3d}


def signal(d: int) -> torch.Tensor:
    return torch.rand(2, 4, *(5, 6, 7)[:d], generator=torch.Generator().manual_seed(d))


@pytest.mark.parametrize("d", LAYERS)
@pytest.mark.parametrize("options", [{}, {"h_prev": "input", "source": "none"}, {"velocity_bound": 0.01}])
def test_the_steps_are_those_of_the_reference(d, options):
    torch.manual_seed(0)
    layer, x = LAYERS[d](4, K=3, init=nn.Tanh(), act_layer=nn.Identity, **options).eval(), signal(d)
    h = torch.tanh(x)
    u = [norm(op(h)) for op, norm in zip(layer.velocity.ops, layer.velocity.norms, strict=True)]
    D = [norm(op(h)) for op, norm in zip(layer.diffusion.ops, layer.diffusion.norms, strict=True)]
    if "velocity_bound" in options:
        speed = sum(q.abs() for q in u) * 0.2
        u = [torch.where(speed > 0.01, q * 0.01 / speed, q) for q in u]
    solve = reference.advection_diffusion_1d if d == 1 else reference.advection_diffusion_3d
    source, before = None if options.get("source") else x, x if options.get("h_prev") else h
    expected = layer.norm(solve(h, *u, *D, source, h_prev=before, K=3))
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_a_signal_is_an_image_that_is_constant_along_y():
    torch.manual_seed(0)
    flat, plane = GlobalLayer1d(4, K=4).eval(), GlobalLayer(4, K=4, diffusion=0.3).eval()
    for pair, axis in ((plane.velocity, "x"), (plane.velocity, "y")):
        conv = getattr(pair, f"op_{axis}")
        nn.init.zeros_(conv.weight)
    plane.velocity.op_x.weight.data[:, :, 1] = flat.velocity.ops[0].weight.data
    nn.init.zeros_(flat.diffusion.ops[0].weight)
    nn.init.constant_(flat.diffusion.norms[0].bias, 0.3)
    x = signal(1)
    image = x.unsqueeze(2).expand(-1, -1, 5, -1).contiguous()
    full = reference.advection_diffusion(
        image, *(q for q in plane.coefficients(image)[:2]), 0.3, 0.0, image, h_prev=image, K=4
    )
    torch.testing.assert_close(flat.solve(x, x, flat.coefficients(x)), full[:, :, 2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("d", LAYERS)
def test_gradients_reach_all_parameters_and_the_input(d):
    layer, x = LAYERS[d](4, K=2, residual=True), signal(d).requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad.abs().sum() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_steps_are_set_in_every_dimension():
    model = nn.ModuleList([GlobalLayer(2), GlobalLayer1d(2), GlobalLayer3d(2)])
    assert set_steps(model, 2) == 3
    assert [layer.K for layer in model] == [2, 2, 2]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"K": 0}, "K .* must be an int from 1 to 10,000"),
        ({"dt": -1.0}, "dt must be positive"),
        ({"kernel_size": 2}, "kernel_size must be odd"),
        ({"source": "residual"}, "source must be one of 'identity', 'none'"),
        ({"h_prev": "last"}, "h_prev must be one of"),
        ({"boundary": "open"}, "boundary must be one of"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        GlobalLayer1d(4, **options)


def test_a_map_of_another_dimension_is_refused():
    with pytest.raises(
        ValueError, match=r"GlobalLayer1d: expected a first guess of shape \(N, 4, W\), got \(1, 4, 3, 3\)"
    ):
        GlobalLayer1d(4)(torch.zeros(1, 4, 3, 3))
    with pytest.raises(ValueError, match=r"\(N, 4, D, H, W\)"):
        GlobalLayer3d(4)(torch.zeros(1, 2, 3, 3, 3))
