"""The solver's operator against its definition: values, gradients, layouts, and what torch asks of an operator."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_cases import (
    BOUNDARIES,
    DTYPES,
    FORMS,
    LAYOUTS,
    NAMES,
    WIDTHS,
    compare,
    field,
    fields,
    solve,
    values_and_gradients,
)
from torch.utils.flop_counter import FlopCounterMode

from pdecnn import functional, reference

OP = torch.ops.pdecnn.advection_diffusion.default
BACKWARD = torch.ops.pdecnn.advection_diffusion_backward.default
OPTIONS = {"K": 3, "dt": 0.2, "dx": 1.3, "dy": 0.8}
BY_BOUNDARY = pytest.mark.parametrize("boundary", BOUNDARIES)
TWO_LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "channels_last"])


@st.composite
def problems(draw):
    W = draw(st.sampled_from(WIDTHS) | st.integers(1, 20))
    C = draw(st.integers(1, 4) | st.sampled_from((16, 18, 33)))
    layouts = [draw(st.sampled_from(LAYOUTS)) for _ in NAMES]
    return {
        "shape": (draw(st.integers(0, 3)), C, draw(st.integers(1, 9)), W),
        "dtype": draw(st.sampled_from(DTYPES)),
        "layouts": layouts[:1] * 7 if draw(st.booleans()) else layouts,
        "forms": [draw(st.sampled_from(FORMS)) for _ in range(4)],
    }


@settings(max_examples=200, deadline=None)
@given(
    problem=problems(),
    absent=st.sets(st.sampled_from(["h_prev", "f"])),
    K=st.integers(1, 4),
    boundary=st.sampled_from(BOUNDARIES),
)
def test_values_and_gradients_are_those_of_the_definition(problem, absent, K, boundary):
    inputs = [None if name in absent else q for name, q in zip(NAMES, fields(**problem), strict=True)]
    compare(inputs, K=K, boundary=boundary)


@settings(max_examples=40, deadline=None)
@given(H=st.integers(1, 70), K=st.integers(1, 3), W=st.sampled_from((1, 9, 14)), C=st.integers(1, 3))
def test_the_ring_of_kept_rows_wraps(H, K, W, C):
    for boundary in BOUNDARIES:
        compare(fields((1, C, H, W), torch.float64, seed=H), K=K, boundary=boundary)
        compare(fields((1, C, H, W), torch.float32, ("channels_last",) * 7, seed=H), K=K, boundary=boundary)


@pytest.mark.parametrize("width", [7, 16])
@pytest.mark.parametrize("N, C", [(1, 7), (1, 16), (3, 21), (8, 16), (6, 24), (7, 21)])
def test_channels_are_taken_in_blocks_of_8_or_16(N, C, width):
    """Eight where there are few planes, sixteen from 128 on, and what is left over."""
    compare(fields((N, C, 3, width), torch.float32, ("channels_last",) * 7), K=2)


@TWO_LAYOUTS
@BY_BOUNDARY
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 8, 12])
def test_narrow_planes_go_side_by_side(width, boundary, layout):
    compare(fields((5, 23, 3, width), layouts=(layout,) * 7), boundary=boundary)


@TWO_LAYOUTS
@pytest.mark.parametrize("boundary", ["periodic", "neumann"])
@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 9, 16])
def test_a_plane_has_the_same_bits_whatever_is_beside_it(width, boundary, layout):
    inputs = [q.requires_grad_() for q in fields((4, 19, 6, width), layouts=(layout,) * 7)]
    together = solve(functional, *inputs, K=3, boundary=boundary)
    grads = torch.autograd.grad(together.sum(), inputs)
    for n, c in ((0, 0), (1, 7), (3, 18)):
        alone = [q[n : n + 1, c : c + 1] for q in inputs]
        out = solve(functional, *alone, K=3, boundary=boundary)
        assert torch.equal(out, together[n : n + 1, c : c + 1])
        for grad, whole in zip(torch.autograd.grad(out.sum(), alone), grads, strict=True):
            assert torch.equal(grad, whole[n : n + 1, c : c + 1])


@BY_BOUNDARY
@pytest.mark.parametrize("K", [1, 2, 5, 40])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (2, 2), (1, 11), (11, 1), (3, 3)])
def test_planes_smaller_than_the_reach_of_the_steps(size, K, boundary):
    compare([0.1 * q for q in fields((2, 2, *size), torch.float64)], K=K, boundary=boundary)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_widths_that_stay_in_registers(width, layout):
    for dtype in DTYPES:
        compare(fields((2, 17, 3, width), dtype, (layout,) * 7))
        compare(fields((2, 17, 3, width), dtype, (layout,) * 7, ("channel", "0-d", "0-d", "channel")))


@pytest.mark.parametrize(
    "shape, K", [((1, 1, 260, 56), 3), ((1, 17, 130, 56), 2), ((1, 2, 40, 300), 2), ((1, 70, 3, 3), 2)]
)
@TWO_LAYOUTS
def test_planes_that_leave_the_registers_and_rows_that_fill_a_group(shape, K, layout):
    compare(fields(shape, torch.float32, (layout,) * 7), K=K)


@TWO_LAYOUTS
@pytest.mark.parametrize("width", [9, 16])
def test_bfloat16_is_no_worse_than_twice_torch(width, layout):
    inputs = fields((2, 17, 6, width), torch.bfloat16, (layout,) * 7, ("map", "channel", "0-d", "map"))
    exact = values_and_gradients([q.double() for q in inputs], reference, K=5)
    mine, theirs = (values_and_gradients(inputs, room, K=5) for room in (functional, reference))
    for name, q, a, b in zip(("out", *NAMES), exact, mine, theirs, strict=True):
        error, allowed = ((x.double() - q).abs().max() for x in (a, b))
        assert a.dtype == torch.bfloat16
        assert error <= 2 * allowed, name


def test_numbers_are_constant_maps():
    h, f = field((2, 3, 5, 9)), field((2, 3, 5, 9), seed=1)
    maps = [torch.full_like(h, c) for c in (0.5, -0.25, 1.0, 0.0)]
    expected = reference.advection_diffusion(h, *maps, f, **OPTIONS)
    torch.testing.assert_close(functional.advection_diffusion(h, 0.5, -0.25, 1, 0.0, f, **OPTIONS), expected)


@pytest.mark.parametrize("form", FORMS)
@BY_BOUNDARY
def test_gradcheck(boundary, form):
    inputs = [q.requires_grad_() for q in fields((2, 2, 3, 4), torch.float64, forms=(form,) * 4)]
    assert torch.autograd.gradcheck(lambda *q: solve(functional, *q, boundary=boundary, **OPTIONS), inputs)


def test_each_gradient_can_be_asked_for_alone():
    for width in (8, 9):
        inputs, grad = fields((2, 3, 4, width), forms=("map", "channel", "0-d", "map")), field((2, 3, 4, width), seed=9)
        together = BACKWARD(grad, *inputs, 3, 0.2, 1.0, 1.0, "periodic", [True] * 7)
        for needed in range(7):
            alone = BACKWARD(grad, *inputs, 3, 0.2, 1.0, 1.0, "periodic", [i == needed for i in range(7)])
            for i in range(7):
                assert torch.equal(alone[i], together[i] if i == needed else torch.empty(0))


@pytest.mark.parametrize("dtype", DTYPES)
@TWO_LAYOUTS
def test_opcheck(layout, dtype):
    inputs = fields(
        (2, 3, 4, 8), dtype, (layout, "contiguous") + ("channels_last",) * 5, ("map", "channel", "0-d", "map")
    )
    grad, options = field((2, 3, 4, 8), dtype, 8), (2, 0.2, 1.0, 1.0, "neumann")
    torch.library.opcheck(BACKWARD, (grad, *inputs, *options, [True] * 7))
    torch.library.opcheck(BACKWARD, (grad, inputs[0], None, *inputs[2:6], None, *options, [True, False] * 3 + [False]))
    inputs = [q.requires_grad_() for q in inputs]
    torch.library.opcheck(OP, (*inputs, *options))
    torch.library.opcheck(OP, (inputs[0], None, *inputs[2:6], None, *options))


@TWO_LAYOUTS
def test_compiles_into_one_graph(layout):
    inputs = fields((2, 3, 4, 8), torch.float32, (layout,) * 7)
    run = torch.compile(lambda *q: solve(functional, *q, **OPTIONS).relu(), fullgraph=True, backend="aot_eager")
    results = []
    for function in (lambda *q: solve(functional, *q, **OPTIONS).relu(), run):
        leaves = [q.detach().requires_grad_() for q in inputs]
        out = function(*leaves)
        results.append((out, *torch.autograd.grad(out.sum(), leaves)))
    for eager, compiled in zip(*results, strict=True):
        assert torch.equal(eager, compiled)
        assert eager.stride() == compiled.stride()


class Solver(torch.nn.Module):
    def forward(self, h, u):
        return functional.advection_diffusion(h, u, 0.0, 1.0, 1.0, h, **OPTIONS)


def test_exports_with_a_free_batch():
    h, u = field((2, 3, 4, 9)), field((2, 3, 4, 9), seed=1)
    N = torch.export.Dim("N", min=1)
    program = torch.export.export(Solver(), (h, u), dynamic_shapes=({0: N}, {0: N}))
    assert [n.target for n in program.graph.nodes].count(OP) == 1
    h, u = field((5, 3, 4, 9), seed=2), field((5, 3, 4, 9), seed=3)
    assert torch.equal(program.module()(h, u), Solver()(h, u))


def test_flops_are_two_per_multiply_add():
    h = field((2, 3, 4, 5)).requires_grad_()
    counts = {}
    for name, D in (("number", 1.0), ("map", torch.ones(2, 3, 4, 5))):
        with FlopCounterMode(display=False) as counter:
            out = functional.advection_diffusion(h, 0.5, 0.5, D, D, K=7)
        counts[name] = counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            out.sum().backward()
        assert counter.get_total_flops() == 2 * 120 * (18 * 7 + 20)
    assert counts == {"number": 2 * 120 * (6 * 7 + 4), "map": 2 * 120 * (6 * 7 + 14)}


def test_a_second_derivative_is_refused():
    h = field((1, 1, 4, 4), torch.float64).requires_grad_()
    out = functional.advection_diffusion(h, 0.5, 0.0, 1.0, 1.0, h)
    (gradient,) = torch.autograd.grad(out.square().sum(), h, create_graph=True)
    message = "gradient cannot be differentiated again by the fused kernel. Use pdecnn.reference.advection_diffusion"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        gradient.sum().backward()


@BY_BOUNDARY
@TWO_LAYOUTS
@pytest.mark.parametrize("width", [3, 8, 9, 14])
def test_nan_stays_in_its_plane_and_within_its_reach(width, layout, boundary):
    shape, options = (2, 18, 5, width), {"K": 1, "boundary": boundary}
    clean = fields(shape, torch.float32, (layout,) * 7)
    expected = values_and_gradients(clean, **options)
    for i in range(7):
        for place in ((2, 1), (0, 0), (4, width - 1)):
            inputs = [q.clone() for q in clean]
            inputs[i][1, 16][place] = torch.nan
            mine, theirs = (values_and_gradients(inputs, room, **options) for room in (functional, reference))
            for name, a, b, untouched in zip(("out", *NAMES), mine, theirs, expected, strict=True):
                where = f"NaN in {NAMES[i]} at {place}, {name}"
                assert torch.equal(a.isnan(), b.isnan()), where
                others = torch.ones(shape[:2], dtype=torch.bool)
                others[1, 16] = False
                assert torch.equal(a[others], untouched[others]), where
            assert mine[0][1, 16].isnan().any()


@pytest.fixture
def nan_filled_memory():
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1, 7, 8, 9, 28])
def test_every_output_is_written(width, layout, nan_filled_memory):
    for dtype in DTYPES:
        for forms in (("map",) * 4, ("channel", "0-d", "channel", "0-d")):
            inputs = fields((2, 5, 3, width), dtype, (layout,) * 7, forms)
            for boundary in BOUNDARIES:
                for q in values_and_gradients(inputs, K=2, boundary=boundary):
                    assert q.isfinite().all()


@TWO_LAYOUTS
@pytest.mark.parametrize("size", [(16, 16), (33, 9), (70, 5)])
@pytest.mark.parametrize("boundary", ["periodic", "neumann"])
def test_same_bits_for_any_number_of_threads(boundary, size, layout):
    inputs = fields((5, 37, *size), torch.float32, (layout,) * 7, ("map", "channel", "0-d", "map"))
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3, 8):
            torch.set_num_threads(n)
            results.append(values_and_gradients(inputs, K=5, boundary=boundary))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_what_is_saved_is_the_inputs_whatever_K():
    inputs = [q.requires_grad_() for q in fields((2, 3, 16, 16))]
    for K in (1, 20):
        saved = []

        def pack(q, saved=saved):
            saved.append(q)
            return q

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda q: q):
            solve(functional, *inputs, K=K).sum()
        assert sorted(q.data_ptr() for q in saved) == sorted(q.data_ptr() for q in inputs)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_backward_allocates_the_same_whatever_K(layout):
    inputs = fields((2, 3, 16, 16), torch.float32, (layout,) * 7)
    allocated = {}
    for K in (1, 20):
        out = solve(functional, *(q.detach().requires_grad_() for q in inputs), K=K)
        with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            out.backward(inputs[0])
        events = profile.profiler.kineto_results.events()
        allocated[K] = sum(e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0)
    assert allocated[1] == allocated[20] >= 7 * inputs[0].nbytes


@BY_BOUNDARY
def test_signals_are_images_of_one_row(boundary):
    def signal(seed, size=(2, 3, 11)):
        return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    cases = [
        (signal(0), signal(1), signal(2).abs(), signal(3), signal(4)),
        (signal(0), signal(1, (1, 3, 1)), signal(2, ()).abs(), None, None),
    ]
    for h, u, D_x, f, h_prev in cases:
        results = []
        for room in (functional, reference):
            leaves = [None if q is None else q.clone().requires_grad_() for q in (h, u, D_x, f, h_prev)]
            out = room.advection_diffusion_1d(*leaves[:4], h_prev=leaves[4], K=4, dx=0.7, boundary=boundary)
            results.append((out, *torch.autograd.grad(out.square().sum(), [q for q in leaves if q is not None])))
        torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)
    ones = functional.advection_diffusion_1d(h, 0.5, 1, boundary=boundary)
    torch.testing.assert_close(ones, reference.advection_diffusion_1d(h, 0.5, 1, boundary=boundary))


def test_autocast_runs_the_solver_in_float32():
    inputs = fields((2, 3, 5, 9), torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        out = solve(functional, *inputs, **OPTIONS)
    assert out.dtype == torch.float32
    assert torch.equal(out, solve(functional, *(q.float() for q in inputs), **OPTIONS))


def test_float16_has_no_kernel_but_works():
    inputs = fields((2, 3, 5, 9), torch.float16)
    exact = values_and_gradients([q.double() for q in inputs], reference, K=2)
    mine, theirs = (values_and_gradients(inputs, room, K=2) for room in (functional, reference))
    for q, a, b in zip(exact, mine, theirs, strict=True):
        assert a.dtype == torch.float16
        assert (a.double() - q).abs().max() <= (b.double() - q).abs().max()  # it computes in float32


def test_the_empty_batch_has_gradients_of_zero():
    _, *gradients = values_and_gradients(fields((0, 3, 4, 8), forms=("channel", "0-d", "map", "channel")), K=2)
    assert [tuple(g.shape) for g in gradients[2:5]] == [(1, 3, 1, 1), (), (0, 3, 4, 8)]
    assert torch.equal(gradients[2], torch.zeros(1, 3, 1, 1))
    assert torch.equal(gradients[3], torch.zeros(()))


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"h": torch.zeros(3, 4, 5)}, ValueError, "expected h of shape (N, C, H, W), got (3, 4, 5)."),
        ({"h": torch.zeros(2, 3, 4, 5, dtype=torch.int32)}, TypeError, "h must have a floating-point dtype"),
        ({"u": torch.zeros(2, 3, 1, 1)}, ValueError, "expected u of shape (2, 3, 4, 5), (1, 3, 1, 1) or a number"),
        ({"D_x": torch.zeros(2, 3, 4, 5).double()}, TypeError, "D_x has dtype torch.float64 but h has torch.float32."),
        ({"f": torch.zeros(2, 3, 4, 5, device="meta")}, ValueError, "f is on meta but h is on cpu."),
        ({"h_prev": torch.zeros(2, 3, 4, 6)}, ValueError, "expected h_prev of the shape of h (2, 3, 4, 5), got"),
        ({"D_y": -1.0}, ValueError, "D_y (a diffusivity) must not be negative, got D_y=-1.0."),
        ({"K": 0}, ValueError, "K (number of time steps) must be an int from 1 to 10,000, got K=0."),
        ({"dt": 0.0}, ValueError, "dt must be positive and finite, got dt=0.0."),
        ({"boundary": "zero"}, ValueError, "boundary must be one of 'periodic', 'neumann', 'dirichlet', got 'zero'."),
    ],
)
def test_bad_arguments_are_refused_at_the_front_door(change, error, message):
    good = {"h": torch.zeros(2, 3, 4, 5), "u": 0.0, "v": 0.0, "D_x": 1.0, "D_y": 1.0}
    with pytest.raises(error, match="^" + re.escape(f"advection_diffusion: {message}")):
        functional.advection_diffusion(**(good | change))


GOOD = (torch.zeros(2, 3, 4, 5), None, *[torch.tensor(0.5)] * 4, None, 2, 0.2, 1.0, 1.0, "periodic")


@pytest.mark.parametrize(
    "place, value, message",
    [
        (0, torch.zeros(2, 3, 0, 5), "h has an empty plane, shape (2, 3, 0, 5)"),
        (0, torch.zeros(3, 4, 5), "expected h of shape (N, C, H, W), got (3, 4, 5)."),
        (1, torch.zeros(2, 3, 4, 6), "expected h_prev of the shape of h (2, 3, 4, 5)"),
        (2, torch.zeros((), dtype=torch.float64), "u has dtype torch.float64 but h has torch.float32."),
        (3, torch.zeros(1, 4, 1, 1), "expected v of shape (2, 3, 4, 5), (1, 3, 1, 1) or a number, got (1, 4, 1, 1)."),
        (6, torch.zeros(2, 3, 4, 5).double(), "f has dtype torch.float64"),
        (7, 0, "K (number of time steps) must be an int from 1 to 10,000, got K=0."),
        (7, 2**62, f"K (number of time steps) must be an int from 1 to 10,000, got K={2**62}."),
        (8, float("nan"), "dt must be positive and finite"),
        (11, "zero", "boundary must be one of"),
    ],
)
def test_the_operators_check_for_themselves(place, value, message):
    arguments = [value if i == place else q for i, q in enumerate(GOOD)]
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        OP(*arguments)
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        BACKWARD(torch.zeros(2, 3, 4, 5), *arguments, [True, False, True, True, True, True, False])


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=re.escape("expected grad like h (2, 3, 4, 5), torch.float32.")):
        BACKWARD(torch.zeros(2, 3, 4, 6), *GOOD, [True] + [False] * 6)


@pytest.mark.parametrize("strides", [(1, 1, 8, 1), (0, 0, 8, 1), (4, 1, 4, 4), (0, 1, 0, 0)])
def test_inputs_that_overlap_themselves(strides):
    h = torch.as_strided(torch.randn(200), (2, 4, 8, 8), strides)
    for boundary in BOUNDARIES:
        compare([h, None, h, h, h.abs(), h.abs(), h], K=2, boundary=boundary)
    order = torch.channels_last if strides[1] == 1 and strides[3] != 1 else torch.contiguous_format
    assert functional.advection_diffusion(h, 0.5, 0.5, 1.0, 1.0).is_contiguous(memory_format=order)


def test_transforms_of_torch_func_are_those_of_the_reference():
    h, u, D, tangent = (field((2, 2, 3, 4), torch.float64, seed) for seed in range(4))

    def results(room):
        def solution(h, u):
            return room.advection_diffusion(h, u, 0.5, D.abs(), 1.0, h, K=3, boundary="neumann")

        def loss(h):
            return solution(h, u).pow(3).sum()

        with torch.autograd.forward_ad.dual_level():
            dual = solution(torch.autograd.forward_ad.make_dual(h, tangent), u)
            derivative = torch.autograd.forward_ad.unpack_dual(dual).tangent
        return (
            derivative,
            torch.func.jvp(solution, (h, u), (tangent, tangent))[1],
            torch.func.grad(loss)(h),
            torch.func.vmap(torch.func.grad(loss))(torch.stack([h, tangent])),
            torch.func.hessian(loss)(h),
        )

    mine = results(functional)
    assert all(q.abs().max() > 0.1 for q in mine)
    torch.testing.assert_close(mine, results(reference), rtol=1e-12, atol=1e-12)


def test_the_operator_itself_has_no_forward_mode_and_says_so():
    h, c = field((1, 1, 4, 4)), torch.tensor(0.5)
    message = "pdecnn::advection_diffusion has no forward-mode derivative. Use the function of the same name"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        torch.func.jvp(lambda h: OP(h, None, c, c, c, c, None, 2, 0.2, 1.0, 1.0, "periodic"), (h,), (h,))


def test_at_most_ten_thousand_steps():
    with pytest.raises(ValueError, match="must be an int from 1 to 10,000, got K=10001"):
        functional.advection_diffusion(torch.zeros(1, 1, 2, 2), 0.0, 0.0, 1.0, 1.0, K=10001)
