"""`pdecnn::global_layer`, the operator of a whole layer, against the same computed operator by operator."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_cases import BOUNDARIES, LAYOUTS, field
from torch.utils.flop_counter import FlopCounterMode

from pdecnn.kernels.global_layer.arguments import ACTIVATIONS
from pdecnn.kernels.global_layer.op import default
from pdecnn.kernels.library import layout

OP = torch.ops.pdecnn.global_layer.default


def arguments(shape, side=3, maps=4, layouts=("contiguous", "contiguous"), dtype=torch.float32, **options):
    h, x = (field(shape, dtype, seed, layout) for seed, layout in enumerate(layouts))
    C = shape[1]

    def parameter(*size, seed):
        return 0.3 * torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)

    tensors = (
        parameter(maps, C, side, side, seed=2),
        parameter(maps, C, seed=3),
        parameter(C, seed=4),
        parameter(C, seed=5),
    )
    chosen = {
        "residual": False,
        "output_act": "relu",
        "D_x": 0.5,
        "D_y": 0.25,
        "K": 3,
        "dt": 0.2,
        "dx": 1.3,
        "dy": 0.8,
        "boundary": "periodic",
        "flow_sign": 1,
        "has_source": True,
        "previous_is_input": False,
        "coefficient_act": "relu",
    } | options
    return (h, x, *tensors, *chosen.values())


def rounded(arguments):
    """The arguments with every number a rounding away, up or down by chance."""
    chance = torch.Generator().manual_seed(0)
    sign = lambda q: torch.randint(0, 2, q.shape, generator=chance) * 2 - 1  # noqa: E731
    return [q * (1 + 1e-7 * sign(q)) if isinstance(q, torch.Tensor) else q for q in arguments]


@settings(max_examples=120, deadline=None)
@given(
    shape=st.tuples(
        st.integers(0, 2),
        st.sampled_from((1, 2, 16, 19)),
        st.integers(1, 9),
        st.integers(1, 10) | st.sampled_from((14, 16, 28, 32)),
    ),
    side=st.sampled_from((1, 3, 5, 7)),
    maps=st.sampled_from((2, 4)),
    layouts=st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    options=st.fixed_dictionaries(
        {
            "K": st.integers(1, 4),
            "boundary": st.sampled_from(BOUNDARIES),
            "flow_sign": st.sampled_from((1, -1)),
            "previous_is_input": st.booleans(),
            "has_source": st.booleans(),
            "coefficient_act": st.sampled_from(tuple(ACTIVATIONS)),
            "residual": st.booleans(),
            "output_act": st.sampled_from(tuple(ACTIVATIONS)),
        }
    ),
)
def test_the_operator_is_its_parts(shape, side, maps, layouts, options):
    given_arguments = arguments(shape, side, maps, layouts, **options)
    before = [q.clone() for q in given_arguments[:6]]
    exact = [q.double() if isinstance(q, torch.Tensor) else q for q in given_arguments]
    out, expected = OP(*given_arguments), default(*exact)
    assert out.is_contiguous(memory_format=layout(given_arguments[0]))
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    spread = 0.0
    if expected.numel() and options["coefficient_act"] in ("identity", "tanh", "hardtanh"):
        # D may then be near the poles of the scheme: errors are those of rounded inputs, or of the definition in
        # single precision, and a few more
        others = (default(*rounded(exact)), default(*given_arguments))
        spread = max(float((q.double() - expected).abs().max()) for q in others)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=max(1e-5 * scale, 5 * spread))
    assert all(torch.equal(q, copy) for q, copy in zip(given_arguments, before, strict=False))


@pytest.mark.parametrize("layouts", [("channels_last",) * 2, ("channels_last", "contiguous")])
@pytest.mark.parametrize("N, C", [(1, 7), (1, 16), (3, 21), (8, 16), (6, 24), (7, 21)])
def test_channels_are_taken_in_blocks_of_8_or_16(N, C, layouts):
    """Eight where there are few planes, sixteen from 128 on, and what is left over."""
    for width in (5, 8, 14, 32):
        given_arguments = arguments((N, C, 4, width), layouts=layouts, previous_is_input=True)
        exact = [q.double() if isinstance(q, torch.Tensor) else q for q in given_arguments]
        torch.testing.assert_close(OP(*given_arguments).double(), default(*exact), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_opcheck(layout):
    given_arguments = arguments((2, 3, 4, 8), layouts=(layout, "contiguous"))
    torch.library.opcheck(OP, given_arguments, test_utils=("test_schema", "test_faketensor"))


def test_flops_are_those_of_the_convolutions_and_the_solver():
    for maps, set_up in ((2, 4), (4, 14)):
        with FlopCounterMode(display=False) as counter:
            OP(*arguments((2, 3, 4, 5), side=5, maps=maps, K=7))
        assert counter.get_total_flops() == 2 * 120 * (25 * maps + 6 * 7 + set_up)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("width", [8, 9, 28])
def test_nan_stays_in_its_plane(width, layout):
    for boundary in BOUNDARIES:
        given_arguments = arguments((2, 18, 5, width), layouts=(layout, layout), boundary=boundary)
        clean = OP(*given_arguments)
        for i in (0, 1):
            spoilt = [q.clone() if isinstance(q, torch.Tensor) else q for q in given_arguments]
            spoilt[i][1, 16, 2, 3] = torch.nan
            out = OP(*spoilt)
            assert torch.equal(out.isnan(), default(*spoilt).isnan())
            assert out[1, 16].isnan().any()
            others = torch.ones(2, 18, dtype=torch.bool)
            others[1, 16] = False
            assert torch.equal(out[others], clean[others])


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_same_bits_for_any_number_of_threads(layout):
    threads = torch.get_num_threads()
    for width in (9, 16):
        given_arguments, results = arguments((5, 37, 16, width), layouts=(layout, layout)), []
        try:
            for n in (1, 2, 3, 8):
                torch.set_num_threads(n)
                results.append(OP(*given_arguments))
        finally:
            torch.set_num_threads(threads)
        assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_output_is_written(layout):
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        assert torch.empty(3).isnan().all()
        for width in (1, 7, 8, 9, 28):
            for boundary in BOUNDARIES:
                out = OP(*arguments((2, 5, 3, width), layouts=(layout, "contiguous"), boundary=boundary))
                assert out.isfinite().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_other_dtypes_go_operator_by_operator():
    given_arguments = arguments((2, 3, 4, 8), dtype=torch.float64)
    assert torch.equal(OP(*given_arguments), default(*given_arguments))


def test_tanh_is_the_hyperbolic_tangent():
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.logspace(-30, 1, 400), torch.tensor([0.0, -0.0])])
    x = x[: x.numel() // 8 * 8].view(1, 1, -1, 8)
    one, nothing = torch.ones(1), torch.zeros(1)
    still = (False, "tanh", 0.0, 0.0, 1, 1e-30, 1.0, 1.0, "periodic", 1, False, False, "relu")  # no step to speak of
    out = OP(x, x, torch.zeros(2, 1, 3, 3), torch.zeros(2, 1), one, nothing, *still)
    exact = x.double().tanh()
    assert ((out.double() - exact).abs() <= 1e-6 * exact.abs()).all()
    assert OP(x * torch.nan, x, torch.zeros(2, 1, 3, 3), torch.zeros(2, 1), one, nothing, *still).isnan().all()


def test_an_overlapping_state_is_read_by_its_strides():
    h = torch.as_strided(torch.randn(100), (2, 4, 8, 8), (1, 1, 8, 1))
    _, _, *others = arguments((2, 4, 8, 8))
    expected = OP(h.clone(memory_format=torch.contiguous_format), h.contiguous(), *others)
    torch.testing.assert_close(OP(h, h, *others), expected)


BAD = {
    "K": (("K", 0), r"K \(number of time steps\) must be an int from 1 to 10,000, got K=0"),
    "many K": (("K", 10001), ".*must be an int from 1 to 10,000, got K=10001"),
    "boundary": (("boundary", "open"), "boundary must be one of 'periodic', 'neumann', 'dirichlet', got 'open'"),
    "act": (("coefficient_act", "silu"), "coefficient_act must be one of 'identity', 'relu', .* got 'silu'"),
    "output act": (("output_act", "silu"), "output_act must be one of 'identity', 'relu', .* got 'silu'"),
    "flow": (("flow_sign", 0), "flow_sign must be one of 1, -1, got 0"),
    "dt": (("dt", -1.0), "dt must be positive, got dt=-1.0"),
    "dx": (("dx", 0.0), "dx must be positive, got dx=0.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_refused(name):
    (option, value), message = BAD[name]
    with pytest.raises(ValueError, match=f"global_layer: {message}"):
        OP(*arguments((2, 3, 4, 8), **{option: value}))


@pytest.mark.parametrize(
    "place, tensor, message",
    [
        (0, torch.ones(2, 3, 4), r"expected h of shape \(N, C, H, W\), .* got \(2, 3, 4\)"),
        (0, torch.ones(2, 3, 0, 8), r"H and W at least 1, got \(2, 3, 0, 8\)"),
        (1, torch.ones(2, 3, 4, 9), r"expected x like h, .*\(2, 3, 4, 8\) on cpu, got .*\(2, 3, 4, 9\)"),
        (2, torch.ones(4, 2, 3, 3), r"weight of shape \(maps, 3, k, k\), k odd, got \(4, 2, 3, 3\)"),
        (2, torch.ones(4, 3, 2, 2), r"weight of shape \(maps, 3, k, k\), k odd, got \(4, 3, 2, 2\)"),
        (3, torch.ones(4, 2), r"bias of shape \(4, 3\), got \(4, 2\)"),
        (4, torch.ones(2), r"scale of shape \(3,\), got \(2,\)"),
        (5, torch.ones(3).double(), r"expected shift like h, torch.float32 on cpu, got torch.float64"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(place, tensor, message):
    given_arguments = list(arguments((2, 3, 4, 8)))
    given_arguments[place] = tensor
    with pytest.raises(ValueError, match=f"global_layer: .*{message}"):
        OP(*given_arguments)
