"""Tensors that no one makes on purpose, through every operator, against its definition in float64.

Strides of any kind and beyond 2^31, sizes beyond 2^31, NaN, infinities and denormal numbers. A new operator is one more
row of `OPERATORS`.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torture_log import LONG, note

from pdecnn import functional, reference
from pdecnn.kernels.global_layer import op as layer_op
from pdecnn.testing import assert_matches_reference

BOUNDARIES = ("periodic", "neumann", "dirichlet")


@dataclass(frozen=True)
class Operator:
    """How to call an operator and its definition with tensors alone.

    Attributes:
        fast: The operator.
        definition: What it is compared with.
        shapes: Of its tensors, from N, C, H, W.
        positive: Which of them must not be negative.
        differentiable: Whether `fast` has gradients.
    """

    fast: Any
    definition: Any
    shapes: Any
    positive: tuple[int, ...] = ()
    differentiable: bool = True


def _solver(boundary):
    def by(room):
        return lambda h, h_prev, u, v, D_x, D_y, f: room.advection_diffusion(
            h, u, v, D_x, D_y, f, h_prev=h_prev, K=2, dt=0.1, boundary=boundary
        )

    return Operator(by(functional), by(reference), lambda *s: [s] * 7, positive=(4, 5))


def _layer(boundary):
    steps = (True, "tanh", 0.5, 0.7, 2, 0.1, 1.0, 1.1, boundary, -1, True, True, "relu6")
    return Operator(
        lambda *q: torch.ops.pdecnn.global_layer(*[t.contiguous() if i > 1 else t for i, t in enumerate(q)], *steps),
        lambda *q: layer_op.default(*q, *steps),
        lambda N, C, H, W: [(N, C, H, W), (N, C, H, W), (4, C, 3, 3), (4, C), (C,), (C,)],
        differentiable=False,
    )


def _rooms(name, shapes, *options):
    return Operator(
        lambda *q: getattr(functional, name)(*q, *options), lambda *q: getattr(reference, name)(*q, *options), shapes
    )


def _product(N, C, H, W):
    return [(N, C, H, W), (2, 1, 3, 3), (2 * C,), (2 * C,), (N, 2 * C, H, W)]


OPERATORS = {
    **{f"solver, {b}": _solver(b) for b in BOUNDARIES},
    **{f"layer, {b}": _layer(b) for b in BOUNDARIES},
    **{f"depthwise, {b}": _rooms("depthwise", lambda *s: [s, (s[1], 3, 5)], b) for b in BOUNDARIES},
    **{f"filter, {b}": _rooms("spectral_filter", lambda *s: [s, s[1:]], b) for b in BOUNDARIES[:2]},
    "shared stencils": _rooms("shared_expand", lambda *s: [s, (3, 1, 3, 3)], 1),
    "shared stencils, every second": _rooms("shared_expand", lambda *s: [s, (3, 1, 3, 3)], 2),
    "product of shared stencils": _rooms("shared_expand_product", _product, 1),
}
BY_OPERATOR = pytest.mark.parametrize("name", OPERATORS)
SHAPES = [(2, 3, 4, 8), (1, 17, 3, 5), (2, 1, 1, 1), (2, 2, 5, 7), (1, 2, 3, 28)]


def strided(rng, shape):
    """Standard normal numbers with strides that a view may have: any order, gaps, repetitions, overlaps."""
    kind, sizes = rng.randrange(4), list(shape)
    if kind == 0:  # another order of the dimensions, with gaps
        order = rng.sample(range(len(shape)), len(shape))
        strides, step = [0] * len(shape), 1
        for d in order:
            strides[d] = step
            step *= sizes[d] + rng.randrange(3)
    elif kind == 1:  # repeated along some dimensions
        strides, step = [0] * len(shape), 1
        for d in reversed(range(len(shape))):
            if rng.random() < 0.6:
                strides[d] = step
                step *= sizes[d]
    else:  # anything
        strides = [rng.randrange(9) for _ in shape]
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    offset = rng.randrange(4)
    memory = torch.randn(offset + last + 1, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    return memory, strides, offset


def draw(rng, name, shape):
    """The tensors of an operator, all of them with strides of some kind."""
    operator, made = OPERATORS[name], []
    for i, size in enumerate(operator.shapes(*shape)):
        memory, strides, offset = strided(rng, size)
        memory = memory.abs() if i in operator.positive else memory
        made.append(torch.as_strided(memory, size, strides, offset))
    return made


def compare(name, tensors):
    """Values and gradients against float64; the tensors must stay as they are."""
    operator, before = OPERATORS[name], [q.clone() for q in tensors]
    terms = max(tensors[0].numel() // max(1, q.numel()) for q in tensors) * 15
    if operator.differentiable:
        assert_matches_reference(operator.fast, operator.definition, *tensors, steps=2, scale=float(terms) ** 0.5)
    else:
        found, expected = operator.fast(*tensors), operator.definition(*(q.double() for q in tensors))
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    for q, copy in zip(tensors, before, strict=True):
        assert torch.equal(q, copy), "an input was modified"


@BY_OPERATOR
def test_strides_of_any_kind(name):
    rng = random.Random(0)
    for shape in SHAPES:
        compare(name, draw(rng, name, shape))


@pytest.mark.slow
@BY_OPERATOR
def test_many_strides_of_any_kind(name):
    rng, number = random.Random(1), 500 if LONG else 20
    for _ in range(number):
        compare(name, draw(rng, name, _shape(rng)))
    note(f"strides of any kind, {name}: {number} calls agree with float64")


def _shape(rng):
    return rng.randrange(1, 4), rng.randrange(1, 19), rng.randrange(1, 9), rng.choice((1, 3, 7, 8, 9, 14, 16, 28))


INFINITE = (float("nan"), float("inf"), -float("inf"))


def spoil(name, rng, shape):
    """One number that is none: finite and close where the definition in float64 is finite, and nowhere else."""
    operator = OPERATORS[name]
    tensors = [q.clone(memory_format=torch.contiguous_format) for q in draw(rng, name, shape)]
    i = rng.randrange(len(tensors))
    value = abs(rng.choice(INFINITE)) if i in operator.positive else rng.choice(INFINITE)
    tensors[i].view(-1)[rng.randrange(tensors[i].numel())] = value
    with torch.no_grad():
        found, expected = operator.fast(*tensors).double(), operator.definition(*(q.double() for q in tensors))
    where = f"{value} in input {i}, shape {shape}"
    assert torch.equal(found.isfinite(), expected.isfinite()), where
    keep = expected.isfinite()
    torch.testing.assert_close(found[keep], expected[keep], rtol=1e-3, atol=1e-3, msg=where)


@BY_OPERATOR
def test_nan_and_infinity_stay_within_their_reach(name):
    rng = random.Random(2)
    for shape in SHAPES:
        for _ in range(4):
            spoil(name, rng, shape)


@pytest.mark.slow
@BY_OPERATOR
def test_much_nan_and_infinity(name):
    rng, number = random.Random(3), 1000 if LONG else 20
    for _ in range(number):
        spoil(name, rng, _shape(rng))
    note(f"NaN or infinity, {name}: {number} calls are finite where float64 is")


# inputs that an operator is linear in together
LINEAR = {"solver": (0, 1, 6), "depthwise": (0,), "filter": (0,), "shared": (0,), "product": (4,)}


@BY_OPERATOR
def test_denormal_numbers_are_not_lost(name):
    """Where an operator is linear, tiny inputs have tiny results: within some steps of the smallest number."""
    linear = LINEAR.get(name.split(",")[0].split(" ")[0])
    if linear is None:
        return compare_tiny(name)
    operator, rng = OPERATORS[name], random.Random(4)
    for shape in SHAPES:
        tensors = [q.clone() for q in draw(rng, name, shape)]
        for i in linear:
            tensors[i] = tensors[i] * 1e-41
        with torch.no_grad():
            found, expected = operator.fast(*tensors).double(), operator.definition(*(q.double() for q in tensors))
        assert expected.abs().max() < 1e-38
        smallest, terms = 1.4e-45, 64 * max(1, shape[2] * shape[3])
        assert ((found - expected).abs() <= terms * smallest).all(), (shape, (found - expected).abs().max())
        assert found.abs().max() > 0 or expected.abs().max() < terms * smallest
    return None


def compare_tiny(name):
    """All of them tiny: the result is that of float64 as well as any."""
    rng = random.Random(5)
    for shape in SHAPES:
        compare(name, [q * 1e-41 for q in draw(rng, name, shape)])


@pytest.fixture
def address_space(tmp_path):
    """32 GiB of addresses in a file, of which only what is touched takes memory or disk."""
    file = tmp_path / "sparse"
    with file.open("wb") as empty:
        empty.truncate(2**35)
    return torch.from_file(str(file), shared=True, size=2**33)


@BY_OPERATOR
def test_strides_beyond_two_to_the_31(name, address_space):
    shape, rng = (2, 2, 2, 8), random.Random(6)
    tensors = draw(rng, name, shape)
    for i, q in enumerate(tensors):
        if q.shape == shape:
            far = torch.as_strided(address_space, shape, (2**32 + 24, 2**31 + 8, 2**29, 1), i)
            tensors[i] = far.copy_(q.clone())
    compare(name, tensors)


@BY_OPERATOR
def test_sizes_that_no_memory_holds_are_refused(name):
    operator = OPERATORS[name]
    tensors = [torch.ones(1).expand(size) for size in operator.shapes(2**22, 2**10, 2**5, 2**5)]
    with pytest.raises((RuntimeError, ValueError), match=r"memory|large|overflow|allocate"):
        operator.fast(*tensors)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_more_numbers_than_two_to_the_31(boundary):
    """Two bytes each, all read from one number; far from the border the result is that of a small plane."""
    rows = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(row.split()[1]) for row in rows if row.startswith("MemAvailable")) / 2**20
    if available < 9:
        pytest.skip(f"needs 9 GiB of memory, there are {available:.1f}")
    h = torch.ones((), dtype=torch.bfloat16)
    out = functional.advection_diffusion(
        h.expand(1, 1, 2**16 + 1, 2**15), 0.5, 0.25, 1.0, 1.0, h.expand(1, 1, 2**16 + 1, 2**15), K=1, boundary=boundary
    )
    small = functional.advection_diffusion(
        h.expand(1, 1, 9, 8), 0.5, 0.25, 1.0, 1.0, h.expand(1, 1, 9, 8), K=1, boundary=boundary
    )
    assert out.numel() > 2**31
    for rows, few in ((slice(0, 4), slice(0, 4)), (slice(2**16 - 3, None), slice(5, None))):
        for columns in (slice(0, 4), slice(-4, None)):
            assert torch.equal(out[0, 0, rows, columns], small[0, 0, few, columns])
    middle = out[0, 0, 1:-1, 1:-1]
    for part in middle.split(4096):
        assert (part == small[0, 0, 4, 4]).all()
    note(f"a state of {out.numel()} numbers, {boundary}: right everywhere")
