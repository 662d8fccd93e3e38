"""Bad arguments are refused with their name, what came and what is expected."""

import re

import pytest
import torch

from pdecnn.reference import advection_diffusion, advection_diffusion_1d, advection_diffusion_3d

h = torch.zeros(2, 3, 4, 5)
good = {"h": h, "u": 0.0, "v": 0.0, "D_x": 1.0, "D_y": 1.0}

NAN, INF = float("nan"), float("inf")
SHAPES = "(2, 3, 4, 5), (1, 3, 1, 1) or a number"

VALUE_ERRORS = [
    ({"h": torch.zeros(3, 4, 5)}, "expected h of shape (N, C, H, W), got (3, 4, 5)."),
    ({"h": torch.zeros(2, 3, 0, 5)}, "h has an empty plane, shape (2, 3, 0, 5); only the batch may be empty."),
    ({"u": torch.zeros(3, 1, 1)}, f"expected u of shape {SHAPES}, got (3, 1, 1)."),
    ({"v": torch.zeros(2, 3, 1, 1)}, f"expected v of shape {SHAPES}, got (2, 3, 1, 1)."),
    ({"D_x": torch.zeros(1, 4, 1, 1)}, f"expected D_x of shape {SHAPES}, got (1, 4, 1, 1)."),
    ({"D_y": torch.zeros(2, 3, 5, 4)}, f"expected D_y of shape {SHAPES}, got (2, 3, 5, 4)."),
    ({"u": NAN}, "u must be finite, got u=nan."),
    ({"D_y": INF}, "D_y must be finite, got D_y=inf."),
    ({"D_x": -0.5}, "D_x (a diffusivity) must not be negative, got D_x=-0.5."),
    ({"D_y": -1}, "D_y (a diffusivity) must not be negative, got D_y=-1."),
    ({"f": torch.zeros(1, 3, 4, 5)}, "expected f of the shape of h (2, 3, 4, 5), got (1, 3, 4, 5)."),
    ({"h_prev": torch.zeros(2, 3, 4, 6)}, "expected h_prev of the shape of h (2, 3, 4, 5), got (2, 3, 4, 6)."),
    ({"u": torch.zeros(2, 3, 4, 5, device="meta")}, "u is on meta but h is on cpu. Use u.to(h.device)."),
    ({"f": torch.zeros(2, 3, 4, 5, device="meta")}, "f is on meta but h is on cpu. Use f.to(h.device)."),
    ({"K": 0}, "K (number of time steps) must be an int from 1 to 10,000, got K=0."),
    ({"K": -3}, "K (number of time steps) must be an int from 1 to 10,000, got K=-3."),
    ({"dt": 0.0}, "dt must be positive and finite, got dt=0.0."),
    ({"dt": -0.2}, "dt must be positive and finite, got dt=-0.2."),
    ({"dt": NAN}, "dt must be positive and finite, got dt=nan."),
    ({"dx": 0.0}, "dx must be positive and finite, got dx=0.0."),
    ({"dy": INF}, "dy must be positive and finite, got dy=inf."),
    ({"boundary": "zero"}, "boundary must be one of 'periodic', 'neumann', 'dirichlet', got 'zero'."),
]

TYPE_ERRORS = [
    ({"h": [[1.0]]}, "h must be a Tensor, got list."),
    ({"h": h.int()}, "h must have a floating-point dtype, got torch.int32. Use h.float()."),
    ({"u": "fast"}, "u must be a Tensor or a number, got str."),
    ({"v": True}, "v must be a Tensor or a number, got bool."),
    ({"D_x": None}, "D_x must be a Tensor or a number, got NoneType."),
    ({"v": h.double()}, "v has dtype torch.float64 but h has torch.float32. Use v.to(h.dtype)."),
    ({"D_y": h.bfloat16()}, "D_y has dtype torch.bfloat16 but h has torch.float32. Use D_y.to(h.dtype)."),
    ({"h_prev": h.double()}, "h_prev has dtype torch.float64 but h has torch.float32. Use h_prev.to(h.dtype)."),
    ({"f": 1.0}, "f must be a Tensor, got float."),
    ({"h_prev": 1.0}, "h_prev must be a Tensor, got float."),
    ({"K": 2.0}, "K (number of time steps) must be an int from 1 to 10,000, got K=2.0."),
    ({"K": True}, "K (number of time steps) must be an int from 1 to 10,000, got K=True."),
]


def names(cases):
    return [message for _, message in cases]


@pytest.mark.parametrize("change, message", VALUE_ERRORS, ids=names(VALUE_ERRORS))
def test_bad_values(change, message):
    with pytest.raises(ValueError, match="^" + re.escape(f"advection_diffusion: {message}") + "$"):
        advection_diffusion(**(good | change))


@pytest.mark.parametrize("change, message", TYPE_ERRORS, ids=names(TYPE_ERRORS))
def test_bad_kinds(change, message):
    with pytest.raises(TypeError, match="^" + re.escape(f"advection_diffusion: {message}") + "$"):
        advection_diffusion(**(good | change))


def test_good_arguments_pass():
    assert torch.equal(advection_diffusion(**good), h)


def test_other_dimensions_name_their_own_axes():
    with pytest.raises(ValueError, match=re.escape("expected h of shape (N, C, W), got (2, 3, 4, 5).")):
        advection_diffusion_1d(h, 0.0, 1.0)
    with pytest.raises(ValueError, match=re.escape("expected h of shape (N, C, D, H, W), got (2, 3, 4, 5).")):
        advection_diffusion_3d(h, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
    volume = torch.zeros(1, 1, 2, 2, 2)
    with pytest.raises(ValueError, match=re.escape("D_z (a diffusivity) must not be negative, got D_z=-1.0.")):
        advection_diffusion_3d(volume, 0.0, 0.0, 0.0, 1.0, 1.0, -1.0)
    with pytest.raises(ValueError, match=re.escape("w must be finite, got w=inf.")):
        advection_diffusion_3d(volume, 0.0, 0.0, INF, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match=re.escape("dz must be positive and finite, got dz=0.0.")):
        advection_diffusion_3d(volume, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, dz=0.0)
