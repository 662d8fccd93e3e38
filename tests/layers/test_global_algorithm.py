"""The Global layer against Algorithm 1 done by hand in NumPy, and with neighbours farther away against rolls."""

import numpy as np
import pytest
import torch
from global_layers import randomised, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pdecnn.layers import GlobalLayer

# ---- Algorithm 1 by hand


def numpy_conv(h, weight, bias):
    """Depth-wise convolution with zero padding, element by element."""
    N, C, H, W = h.shape
    k = weight.shape[-1]
    out = np.zeros_like(h)
    for n, c, y, x in np.ndindex(N, C, H, W):
        for i, j in np.ndindex(k, k):
            yy, xx = y + i - k // 2, x + j - k // 2
            if 0 <= yy < H and 0 <= xx < W:
                out[n, c, y, x] += weight[c, 0, i, j] * h[n, c, yy, xx]
        out[n, c, y, x] += bias[c]
    return out


def numpy_norm(h, norm):
    get = lambda name: getattr(norm, name).detach().numpy()[:, None, None]  # noqa: E731
    return (h - get("running_mean")) / np.sqrt(get("running_var") + norm.eps) * get("weight") + get("bias")


def numpy_coefficient(h, op, norm):
    bias = np.zeros(h.shape[1]) if op.bias is None else op.bias.detach().numpy()
    return np.maximum(numpy_norm(numpy_conv(h, op.weight.detach().numpy(), bias), norm), 0)


def numpy_algorithm_1(layer, image, h, h_prev):
    """[KS22, Algorithm 1], the scheme as Eq. (4) is printed, in loops over the pixels."""
    u, v = (
        numpy_coefficient(h, getattr(layer.velocity, f"op_{a}"), getattr(layer.velocity, f"norm_{a}")) for a in "xy"
    )
    D = (numpy_coefficient(h, getattr(layer.diffusion, f"op_{a}"), getattr(layer.diffusion, f"norm_{a}")) for a in "xy")
    D_x, D_y = D
    u, v = layer.flow_sign * u, layer.flow_sign * v
    dt, dx, dy = layer.dt, layer.dx, layer.dy
    N, C, H, W = h.shape
    for _ in range(layer.K):
        h_next = np.zeros_like(h)
        for n, c, y, x in np.ndindex(N, C, H, W):
            E, Wst = (n, c, y, (x + 1) % W), (n, c, y, (x - 1) % W)
            S, Nth = (n, c, (y + 1) % H, x), (n, c, (y - 1) % H, x)
            i = (n, c, y, x)
            A_x, A_y = u[i] * dt / dx, v[i] * dt / dy
            B_x, B_y = D_x[i] * dt / dx**2, D_y[i] * dt / dy**2
            u_x, v_y = (u[E] - u[Wst]) / (2 * dx), (v[S] - v[Nth]) / (2 * dy)
            right = (1 - 2 * B_x - 2 * B_y) * h_prev[i] - 2 * dt * (u_x + v_y) * h[i] + 2 * dt * image[i]
            right += (-A_x + 2 * B_x) * h[E] + (A_x + 2 * B_x) * h[Wst]
            right += (-A_y + 2 * B_y) * h[S] + (A_y + 2 * B_y) * h[Nth]
            h_next[i] = right / (1 + 2 * B_x + 2 * B_y)
        h_prev, h = h, h_next
    return np.maximum(numpy_norm(h, layer.norm), 0)


@pytest.mark.parametrize("flow_sign", [1, -1])
@pytest.mark.parametrize("h_prev", ["init", "input"])
def test_layer_is_algorithm_1(h_prev, flow_sign):
    init = nn.Conv2d(2, 2, 1)
    options = {"coef_bias": True, "coef_bn_eps": "channels", "dx": 1.5, "dy": 0.75, "K": 3}
    layer = GlobalLayer(2, init=init, h_prev=h_prev, flow_sign=flow_sign, **options).double()
    randomised(layer)
    x = sample(2, 2, 3, 4)
    with torch.no_grad():
        h = init(x).numpy()
        expected = numpy_algorithm_1(layer, x.numpy(), h, h if h_prev == "init" else x.numpy())
        np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-12, atol=1e-12)
        assert np.count_nonzero(expected) > expected.size // 4


# ---- neighbours farther away


def by_rolls(h, h_prev, f, u, v, D_x, D_y, *, K, dt, d):
    """Eq. (4) with neighbours d pixels away and spacing d, by rolls over the whole grid."""
    A_x, A_y, B_x, B_y = u * dt / d, v * dt / d, D_x * dt / d**2, D_y * dt / d**2
    east, west, south, north = (lambda q, s=s, a=a: q.roll(s, a) for s, a in ((-d, -1), (d, -1), (-d, -2), (d, -2)))
    divergence = (east(u) - west(u) + south(v) - north(v)) / (2 * d)
    for _ in range(K):
        right = (1 - 2 * B_x - 2 * B_y) * h_prev - 2 * dt * divergence * h + 2 * dt * f
        right = right + (2 * B_x - A_x) * east(h) + (2 * B_x + A_x) * west(h)
        right = right + (2 * B_y - A_y) * south(h) + (2 * B_y + A_y) * north(h)
        h_prev, h = h, right / (1 + 2 * B_x + 2 * B_y)
    return h


@settings(max_examples=40, deadline=None)
@given(H=st.integers(1, 9), W=st.integers(1, 9), d=st.integers(1, 4), seed=st.integers(0, 2**20))
def test_dilation_is_exact_on_every_grid(H, W, d, seed):
    h, x, u, v, D_x, D_y = (sample(2, 3, H, W, seed=seed + i) for i in range(6))
    D_x, D_y = D_x.abs(), D_y.abs()
    layer = GlobalLayer(3, K=3, dilation=d, h_prev="input")
    expected = by_rolls(h, x, x, u, v, D_x, D_y, K=3, dt=0.2, d=d)
    torch.testing.assert_close(layer.solve(h, x, (u, v, D_x, D_y)), expected)


def test_published_numbers_of_neighbours_two_pixels_away():
    x = torch.zeros(1, 1, 5, 6, dtype=torch.float64)
    x[0, 0, 2, 3] = 1
    _, h = GlobalLayer(1, velocity=0.0, diffusion=2.0, dt=0.1, dilation=2, source="none", K=1).trajectory(x)
    expected = torch.zeros(5, 6, dtype=torch.float64)
    expected[2, 3] = 0.8 / 1.2
    for y, column in ((2, 5), (2, 1), (4, 3), (0, 3)):
        expected[y, column] = 0.1 / 1.2
    torch.testing.assert_close(h[0, 0], expected)
