"""Spectral filters and shared stencils: forward mode, torch.func, odd arguments, and bits for any number of threads."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap

from pdecnn import functional as fast
from pdecnn import reference
from pdecnn.reference.advection_diffusion import MAX_STEPS

OPS = torch.ops.pdecnn
EXPANSIONS = ("shared_expand", "shared_expand_moments", "shared_expand_product")


def case(name, f=3, N=2, C=3, H=6, W=5, stride=1, dtype=torch.float64):
    """Arguments that fit the function `name`."""
    torch.manual_seed(0)
    u = torch.randn(N, C, H, W, dtype=dtype)
    if name == "spectral_filter":
        return u, torch.rand(C, H, W, dtype=dtype)
    if name == "implicit_diffusion":
        return u, torch.randn(C, 3, 3, dtype=dtype)
    args = (u, torch.randn(f, 1, 3, 3, dtype=dtype))
    if name != "shared_expand_product":
        return args
    c = torch.randn(N, C * f, -(-H // stride), -(-W // stride), dtype=dtype)
    return *args, torch.rand(C * f, dtype=dtype), torch.rand(C * f, dtype=dtype), c


def functions(name):
    """The function, the operator itself, and the definition, each of tensors alone."""
    tail = {"spectral_filter": ("periodic",), "implicit_diffusion": (0.1,)}.get(name, (1,))
    ours = [lambda *a: getattr(fast, name)(*a, *tail)]
    if hasattr(OPS, name):
        ours.append(lambda *a: getattr(OPS, name)(*a, *tail))
    return ours, lambda *a: getattr(reference, name)(*a, *tail)


ALL = ("spectral_filter", "implicit_diffusion", *EXPANSIONS)


@pytest.mark.parametrize("name", ALL)
def test_forward_mode(name):
    args = case(name)
    tangents = tuple(torch.randn_like(a) for a in args)
    ours, definition = functions(name)
    expected = jvp(definition, args, tangents)[1]
    function, *operators = ours
    torch.testing.assert_close(jvp(function, args, tangents)[1], expected)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(a, t) for a, t in zip(args, tangents, strict=True)]
        out = function(*duals)
        out = out if isinstance(out, tuple) else (out,)
        found = tuple(forward_ad.unpack_dual(o).tangent for o in out)
        torch.testing.assert_close(found if isinstance(expected, tuple) else found[0], expected)
        for operator in operators:  # called directly it says so, instead of dropping the tangent
            with pytest.raises(RuntimeError, match="has no forward-mode derivative"):
                operator(*duals)


@pytest.mark.parametrize("name", ["spectral_filter", "shared_expand", "shared_expand_product"])
def test_transforms_of_torch_func(name):
    args = case(name, f=2, N=1, C=1, H=2, W=3)
    ours, definition = functions(name)

    def loss(function):
        return lambda *a: (function(*a) ** 3).sum()

    for i in range(2):
        torch.testing.assert_close(grad(loss(ours[0]), i)(*args), grad(loss(definition), i)(*args))
        torch.testing.assert_close(hessian(loss(ours[0]), i)(*args), hessian(loss(definition), i)(*args))
    many = torch.stack([args[0], 2 * args[0]])
    found = vmap(grad(loss(ours[0])), (0, *[None] * (len(args) - 1)))(many, *args[1:])
    torch.testing.assert_close(found[1], grad(loss(definition))(many[1], *args[1:]))


@pytest.mark.parametrize("boundary", ["periodic", "neumann"])
def test_the_adjoint_itself_in_forward_mode(boundary):
    v, g = case("spectral_filter")

    def slope(function):
        return lambda v, g: torch.func.vjp(lambda *a: function(*a, boundary), v, g)[1](v.sin())

    for found, expected in zip(
        jvp(slope(fast.spectral_filter), (v, g), (v.cos(), g.sin()))[1],
        jvp(slope(reference.spectral_filter), (v, g), (v.cos(), g.sin()))[1],
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


def outputs(function, args, threads):
    torch.set_num_threads(threads)
    args = [a.clone().requires_grad_() for a in args]
    out = function(*args)
    out = out if isinstance(out, tuple) else (out,)
    slopes = [torch.linspace(-1, 1, o.numel()).view(o.shape).to(o.dtype) for o in out]
    return [*out, *torch.autograd.grad(out, args, slopes)]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


SIDES = st.integers(1, 9) | st.sampled_from([16, 31, 97])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ALL)
def test_bits_do_not_depend_on_the_number_of_threads(name):
    @settings(max_examples=12, deadline=None, derandomize=True)
    @given(
        st.sampled_from([(1, 1), (2, 2), (7, 33), (64, 16), (128, 7)]),
        SIDES,
        SIDES,
        st.sampled_from([1, 4, 5, 7, 9]),
        st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
        st.sampled_from(["periodic", "neumann"]),
    )
    @example((64, 64), 7, 5, 5, torch.float32, "periodic")
    @example((2, 2), 6, 3, 5, torch.float32, "periodic")
    @example((256, 16), 8, 5, 5, torch.float32, "periodic")
    @example((2, 2), 8, 2, 5, torch.float32, "neumann")
    def check(batch, H, W, f, dtype, boundary):
        N, C = batch if H * W < 1000 else (2, 3)
        tail = {"spectral_filter": (boundary,), "implicit_diffusion": (0.1, boundary)}.get(name, (1,))
        args = case(name, f, N, C, H, W, dtype=torch.float32)
        args = tuple(a.to(dtype) for a in args)

        def run(*tensors):
            return getattr(fast, name)(*tensors, *tail)

        one = outputs(run, args, 1)
        for n in (2, 3, 4):
            assert all(torch.equal(a, b) for a, b in zip(one, outputs(run, args, n), strict=True))

    check()


@pytest.mark.parametrize("f", [1, 5, 7, 9, 17])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", EXPANSIONS)
def test_any_number_of_stencils(name, f, stride):
    args = case(name, f, stride=stride)
    ours = outputs(lambda *a: getattr(fast, name)(*a, stride), args, 1)
    theirs = outputs(lambda *a: getattr(reference, name)(*a, stride), args, 1)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_an_empty_batch_has_moments_and_gradients():
    u, stencils = torch.randn(0, 3, 4, 4, requires_grad=True), torch.randn(4, 1, 3, 3, requires_grad=True)
    mean, var = fast.shared_expand_moments(u, stencils)
    to_u, to_stencils = torch.autograd.grad(mean.sum() + var.sum(), (u, stencils))
    assert to_u.shape == u.shape
    assert torch.equal(to_stencils, torch.zeros_like(stencils))


U, S, V, G = torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 3, 3), torch.zeros(2, 3, 4, 4), torch.zeros(3, 4, 4)
Q, C6 = torch.zeros(6), torch.zeros(2, 6, 4, 4)


@pytest.mark.parametrize(
    "op, args, message",
    [
        ("spectral_filter", (V.int(), G, "periodic"), "v must have a floating-point dtype"),
        ("spectral_filter", (V, G.int(), "periodic"), "g must have a floating-point dtype"),
        ("spectral_filter", (V, G[:2], "periodic"), "expected v of shape"),
        ("spectral_filter", (V, G[..., :3], "neumann"), "expected v of shape"),
        ("spectral_filter", (V[..., :0], G[..., :0], "neumann"), "empty grid"),
        ("spectral_filter", (V, G, "dirichlet"), "no transform diagonalises"),
        ("spectral_filter", (V, G, "round"), "round"),
        ("spectral_filter_backward", (V[:1], V, G, "periodic"), "expected a gradient like v"),
        ("shared_expand", (U, S[..., :2], 1), "expected stencils of shape"),
        ("shared_expand", (U, S.double(), 1), "stencils has dtype torch.float64"),
        ("shared_expand", (U.int(), S.int(), 1), "floating-point"),
        ("shared_expand", (U, S, 0), "stride must be 1 or 2"),
        ("shared_expand", (U, S[:0], 1), "nothing to expand"),
        ("shared_expand", (U[:, :, :0], S, 1), "nothing to expand"),
        ("shared_expand", (U[0], S, 1), "expected u of shape"),
        ("shared_expand_moments", (U, S[..., :2], 1), "expected stencils of shape"),
        ("shared_expand_product", (U, S, Q[:2], Q, C6, 1), "expected scale of shape"),
        ("shared_expand_product", (U, S, Q, Q[:5], C6, 1), "expected shift of shape"),
        ("shared_expand_product", (U, S, Q, Q, C6[:1], 1), "expected c of shape"),
        ("shared_expand_product", (U, S, Q.double(), Q, C6, 1), "scale has dtype"),
        ("shared_expand_backward", (C6[:1], U, S, 1), "expected a gradient"),
        ("shared_expand_affine_backward", (Q[:1], Q, U, S, 1), "expected slope"),
        ("shared_expand_product_backward", (C6[:1], U, S, Q, Q, C6, 1), "expected a gradient"),
    ],
)
def test_the_operators_check_their_arguments(op, args, message):
    for mode in (torch.no_grad(), torch.inference_mode()):
        with pytest.raises((ValueError, TypeError), match=message), mode:
            getattr(OPS, op)(*args)


@pytest.mark.parametrize("module", [fast, reference])
@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"dt": "1"}, TypeError, "dt must be a number, got str"),
        ({"dt": True}, TypeError, "dt must be a number, got bool"),
        ({"dx": None}, TypeError, "dx must be a number, got NoneType"),
        ({"dx": 1e-300}, ValueError, "dx=1e-300 is too small"),
        ({"dy": 1e-160}, ValueError, "dy=1e-160 is too small"),
        ({"K": MAX_STEPS + 1}, ValueError, "K .* must be an int from 1 to 10,000, got K=10001"),
        ({"K": 2**62}, ValueError, "must be an int from 1 to 10,000"),
    ],
)
@pytest.mark.parametrize("coefficient", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_numbers_out_of_range(module, coefficient, options, error, message):
    with pytest.raises(error, match=message):
        module.advection_diffusion(torch.zeros(1, 1, 3, 3), *[coefficient] * 4, **options)


@pytest.mark.parametrize("module", [fast, reference])
@pytest.mark.parametrize("coefficient", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_pixels_that_are_far_apart_do_not_meet(module, coefficient):
    h = torch.rand(1, 1, 3, 3)
    torch.testing.assert_close(module.advection_diffusion(h, *[coefficient] * 4, dx=1e200, dy=1e200, K=2), h)
