import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.layers import HardBall, SoftBall
from pdecnn.layers.ball import make_activation
from pdecnn.reference import hardball, softball
from pdecnn.symmetry import Group
from pdecnn.testing import assert_equivariant, equivariance_error, mixing

BALLS = pytest.mark.parametrize("ball", [hardball, softball])


@settings(max_examples=40, deadline=None)
@given(
    ball=st.sampled_from([hardball, softball]),
    C=st.integers(1, 9),
    R=st.floats(0.1, 10),
    scale=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**31),
)
def test_lengths_are_bounded_directions_kept_and_rotations_commute(ball, C, R, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    h = scale * torch.randn(2, C, 3, 2, generator=generator, dtype=torch.float64)
    out = ball(h, R)
    lengths = out.norm(dim=1)
    assert (lengths <= R * (1 + 1e-14)).all()
    assert (lengths < R).all() or ball is hardball
    cosine = torch.nn.functional.cosine_similarity(out, h, dim=1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
    Q = Group.O.sample(C, generator)
    assert_equivariant(lambda x: ball(x, R), h, mixing(Q), rtol=1e-13)


@BALLS
def test_other_mixings_do_not_commute(ball):
    h = 3 * torch.randn(2, 5, 4, 4, dtype=torch.float64)
    T = Group.GL.sample(5, torch.Generator().manual_seed(0))
    assert equivariance_error(lambda x: ball(x, 1.0), h, mixing(T), mixing(T)) > 1e-2


def test_known_values():
    h = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(hardball(h, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0]], dtype=torch.float64))
    expected = h / torch.tensor([[math.sqrt(26)], [math.sqrt(1.25)], [1.0]], dtype=torch.float64)
    torch.testing.assert_close(softball(h, 1.0), expected)


@BALLS
def test_gradients_are_finite_and_the_identity_at_zero(ball):
    h = torch.zeros(1, 4, 2, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(ball(h, 2.0).sum(), h)
    torch.testing.assert_close(grad, torch.ones_like(h))


@BALLS
def test_gradcheck(ball):
    h = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ball(x, 1.3), h)


@BALLS
def test_half_precision_does_not_overflow(ball):
    h = torch.full((1, 512, 1), 300.0, dtype=torch.float16)
    out = ball(h, math.sqrt(512))
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), torch.ones(1, 512, 1), rtol=2e-3, atol=0)


@pytest.mark.parametrize("layer", [HardBall, SoftBall])
def test_layers_use_the_root_of_the_channels(layer):
    assert layer(16).R == 4
    assert layer(16)(100 * torch.ones(1, 16, 1, 1)).norm() == pytest.approx(4, rel=1e-2)
    with pytest.raises(ValueError, match=r"expected h of shape \(N, 16, ...\), got \(1, 8, 2, 2\)"):
        layer(16)(torch.zeros(1, 8, 2, 2))
    with pytest.raises(ValueError, match=r"the radius of the ball\) must be positive, got R=0"):
        layer(16, R=0)


def test_unknown_activations_are_named():
    with pytest.raises(ValueError, match=r"kind must be one of 'none', 'relu'.*got 'gelu'"):
        make_activation("gelu", 4)
