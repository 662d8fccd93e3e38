import math
import runpy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.layers import EulerStep, VariableConv2d, WaveStep
from pdecnn.reference import variable_conv2d
from pdecnn.reference.variable_conv import centred_coordinates, monomials

SIDE = 9
x, y = centred_coordinates(SIDE, SIDE, 1.0, torch.zeros(1, dtype=torch.float64))
INNER = (..., slice(1, -1), slice(1, -1))  # where central differences see no border


def field(values):
    return (values + 0 * x + 0 * y).expand(1, 1, SIDE, SIDE)


@pytest.mark.parametrize(
    "u, rotated",
    [(x, -y), (y, x), (x * y, x**2 - y**2), (x**2 + y**2, 0 * x), (x**2 - y**2, -4 * x * y)],
)
def test_rotation_is_exact_on_quadratics(u, rotated):
    out = VariableConv2d.rotation(1).double()(field(u))
    torch.testing.assert_close(out[INNER], field(rotated)[INNER], rtol=0, atol=1e-12)


@pytest.mark.parametrize("u, degree", [(0 * x + 1, 0), (x, 1), (2 * x - 3 * y, 1), (x * y, 2), (x**2 - 5 * y**2, 2)])
def test_dilation_multiplies_homogeneous_polynomials_by_their_degree(u, degree):
    out = VariableConv2d.dilation(1).double()(field(u))
    torch.testing.assert_close(out[INNER], degree * field(u)[INNER], rtol=0, atol=1e-12)


def test_a_quarter_turn_by_small_rotations():
    """K Euler steps of the generator turn a linear field: x -> cos(t) x - sin(t) y, up to the step."""
    errors = []
    for K in (100, 200):
        step = EulerStep(VariableConv2d.rotation(1).double(), math.pi / 2 / K)
        u = field(x)
        with torch.no_grad():
            for _ in range(K):
                u = step(u)
                u = _linear_extension(u)
        errors.append((u + field(y)).abs().max().item())
    assert errors[1] < 0.1
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)  # first order


def _linear_extension(u):
    """The field is linear; its border, where central differences fail, is set from the inside."""
    u = u.clone()
    u[..., 0], u[..., -1] = 2 * u[..., 1] - u[..., 2], 2 * u[..., -2] - u[..., -3]
    u[..., 0, :], u[..., -1, :] = 2 * u[..., 1, :] - u[..., 2, :], 2 * u[..., -2, :] - u[..., -3, :]
    return u


@settings(max_examples=25, deadline=None)
@given(
    degree=st.integers(0, 3),
    k=st.sampled_from([1, 3]),
    H=st.integers(2, 6),
    W=st.integers(2, 6),
    boundary=st.sampled_from(["periodic", "neumann", "dirichlet"]),
    seed=st.integers(0, 2**31),
)
def test_against_a_sum_over_every_tap(degree, k, H, W, boundary, seed):
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(1, 2, H, W, generator=generator, dtype=torch.float64)
    weight = torch.randn(len(monomials(degree)), 3, 2, k, k, generator=generator, dtype=torch.float64)
    out = variable_conv2d(u, weight, degree=degree, boundary=boundary)
    i, j = int(torch.randint(H, (), generator=generator)), int(torch.randint(W, (), generator=generator))
    h = 2 / max(H, W)
    X, Y = (j - (W - 1) / 2) * h, (i - (H - 1) / 2) * h
    expected = torch.zeros(3, dtype=torch.float64)
    for index, (p, q) in enumerate(monomials(degree)):
        for a in range(k):
            for b in range(k):
                r, c = i + a - k // 2, j + b - k // 2
                if boundary == "periodic":
                    r, c = r % H, c % W
                elif boundary == "neumann":
                    r, c = min(max(r, 0), H - 1), min(max(c, 0), W - 1)
                elif not (0 <= r < H and 0 <= c < W):
                    continue
                expected += X**p * Y**q * (weight[index, :, :, a, b] @ u[0, :, r, c])
    torch.testing.assert_close(out[0, :, i, j], expected)


def test_degree_zero_is_a_convolution_and_the_start_of_any_degree():
    torch.manual_seed(0)
    layer = VariableConv2d(4, 6, degree=2)
    u = torch.randn(2, 4, 5, 7)
    expected = torch.nn.functional.conv2d(u, layer.weight[0], padding=1)
    torch.testing.assert_close(layer(u), expected)


def test_heat_and_wave_steps():
    mode = torch.cos(2 * math.pi * 3 * torch.arange(16).double() / 16).expand(1, 1, 16, 16)
    laplacian = VariableConv2d.laplacian(1, boundary="periodic").double()
    eigenvalue = -4 * math.sin(math.pi * 3 / 16) ** 2
    torch.testing.assert_close(EulerStep(laplacian, 0.2)(mode), (1 + 0.2 * eigenvalue) * mode)
    uv = WaveStep(laplacian, 0.3)(torch.cat([mode, 2 * mode], 1))
    v = 2 + 0.3 * eigenvalue
    torch.testing.assert_close(uv, torch.cat([(1 + 0.3 * v) * mode, v * mode], 1))


@pytest.mark.parametrize(
    "name, said", [("heat_network", "0.497620; forward Euler predicts 0.497620"), ("wave_network", "-0.9289")]
)
def test_examples_run(name, said, capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / f"{name}.py"), run_name="__main__")
    assert said in capsys.readouterr().out


def test_refusals():
    u, weight = torch.zeros(1, 2, 4, 4), torch.zeros(3, 2, 2, 3, 3)
    with pytest.raises(ValueError, match=r"expected weight of shape \(6, C_out, C_in / groups, k, k\) for degree 2"):
        variable_conv2d(u, weight, degree=2)
    with pytest.raises(ValueError, match=r"expected u of shape \(N, 2, H, W\), got \(1, 3, 4, 4\)"):
        variable_conv2d(torch.zeros(1, 3, 4, 4), weight, degree=1)
    with pytest.raises(ValueError, match="must be square and odd, got 2 x 2"):
        variable_conv2d(u, weight[..., :2, :2], degree=1)
    with pytest.raises(ValueError, match="boundary must be one of"):
        variable_conv2d(u, weight, degree=1, boundary="reflect")
    with pytest.raises(ValueError, match="a periodic plane of 1 x 1 is too small for a 5 x 5 kernel"):
        variable_conv2d(torch.zeros(1, 2, 1, 1), torch.zeros(3, 2, 2, 5, 5), degree=1, boundary="periodic")
    with pytest.raises(ValueError, match="degree must not be negative"):
        VariableConv2d(1, 1, degree=-1)
    with pytest.raises(ValueError, match="must both be divisible by groups=2"):
        VariableConv2d(3, 2, groups=2)
