"""Every native operator against plain torch on awkward shapes: run as a script, in a process with its own library.

The environment chooses the library and the instruction set; the argument is the kernel that must be in use.
"""

import sys
from itertools import product

import torch
from solver_cases import BOUNDARIES, DTYPES, LAYOUTS, compare, fields

from pdecnn import functional, kernels, reference
from pdecnn.functional import shared_stencils as shared_expand
from pdecnn.kernels.global_layer import norm, op, training
from pdecnn.kernels.spectral_filter import choice
from pdecnn.layers import GlobalLayer
from pdecnn.layers.global_fusion import covered


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check_solver(dtypes):
    shapes = [(1, 1, 1, 1), (2, 3, 1, 5), (1, 18, 4, 1), (1, 17, 3, 7), (2, 3, 2, 8), (1, 2, 3, 28), (1, 2, 2, 56)]
    for i, (shape, boundary) in enumerate(product(shapes, BOUNDARIES)):
        for dtype in dtypes:
            compare(fields(shape, dtype, [LAYOUTS[i % 7]] * 7), K=1 + i % 3, boundary=boundary)
            compare(fields(shape, dtype, LAYOUTS, ("channel", "0-d", "map", "channel")), K=2, boundary=boundary)
    for boundary, layout in product(BOUNDARIES, LAYOUTS[:2]):
        compare(fields((1, 2, 40, 9), torch.float32, [layout] * 7), K=2, boundary=boundary)
        compare(fields((0, 2, 4, 8), torch.float32, [layout] * 7), K=2, boundary=boundary)
    compare(fields((6, 25, 2, 8), torch.float32, ["channels_last"] * 7), K=2)
    inputs = fields((2, 20, 5, 14), torch.float32, ["channels_last"] * 7)
    inputs[1] = inputs[6] = None
    compare(inputs)


@torch.no_grad()
def check_global_layer(_):
    for i, (W, C) in enumerate(product((1, 7, 8, 9, 16, 32), (1, 3, 18))):
        options = {
            "kernel_size": (1, 3, 5)[i % 3],
            "boundary": BOUNDARIES[i // 3 % 3],
            "h_prev": ("init", "input")[i % 2],
        }
        layer = GlobalLayer(C, K=1 + i % 3, diffusion=("depthwise", 0.5)[i // 2 % 2], coef_bias=True, **options).eval()
        for h_layout, x_layout in product(LAYOUTS, ("contiguous", "channels_last")):
            layouts = [h_layout, x_layout] + ["contiguous"] * 5
            h, x = fields((2, C, 4, W), torch.float32, layouts)[:2]
            found = covered(layer)
            expected = op.default(h, x, *found.fold(), False, found.output_act, *found.steps)
            torch.testing.assert_close(found.infer(h, x), expected, rtol=1e-5, atol=1e-5)
    _norms()
    _training()


def same(room_function, reference_function, tensors, *arguments):
    results = []
    for function in (room_function, reference_function):
        leaves = [q.detach().requires_grad_() for q in tensors]
        out = function(*leaves, *arguments)
        out = out if isinstance(out, tuple) else (out,)
        grads = [randn(*q.shape, seed=5) for q in out]
        results.append((*out, *torch.autograd.grad(out, leaves, grads)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-3)


def check_depthwise(_):
    for size, m, boundary in product([(1,), (7,), (1, 9), (9, 1), (5, 17), (2, 3, 4)], (1, 3, 7), BOUNDARIES):
        same(
            functional.depthwise,
            reference.depthwise,
            (randn(2, 3, *size), randn(3, *[m] * len(size), seed=1)),
            boundary,
        )
    same(functional.depthwise, reference.depthwise, (randn(0, 3, 4, 4), randn(3, 3, 3)), "periodic")


def _norms():
    for i, (H, W, kind) in enumerate(product((1, 4, 9), (1, 8, 19, 32), ((1, 1), (2, 3), (4, 3), (2, 5), (4, 5)))):
        M, k = kind
        C = (1, 3, 18)[i % 3]
        weight = None if k == 1 else randn(M, C, k, k, seed=1)
        h = randn(3, C, H, W).contiguous(memory_format=(torch.contiguous_format, torch.channels_last)[i // 3 % 2])
        arguments = (h, weight, None, randn(M, C, seed=2), randn(M, C, seed=3), [0.1] * M, "identity")
        maps, mean, var = torch.ops.pdecnn.depthwise_norm(*arguments)
        torch.testing.assert_close((maps, mean, var), norm.forward_default(*arguments), rtol=1e-4, atol=1e-4)
        grads = [randn(*h.shape, seed=4 + m).contiguous() for m in range(M)]
        found = torch.ops.pdecnn.depthwise_norm_backward(grads, mean, var, *arguments)
        expected = norm.backward_default(grads, mean, var, *arguments)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def _training():
    for i, (H, W, k) in enumerate(product((1, 4, 9), (7, 8, 19, 28), (3, 5))):
        C, M, layout = (1, 3, 18)[i % 3], (2, 4)[i % 2], (torch.contiguous_format, torch.channels_last)[i // 3 % 2]
        h, x = (0.3 * randn(3, C, H, W, seed=s).contiguous(memory_format=layout) for s in (0, 1))
        x = x if i % 4 else None
        parameters = (randn(M, C, k, k, seed=1), None, 0.2 * randn(M, C, seed=2), 0.3 * randn(M, C, seed=3), [0.1] * M)
        roles = (i % 3 > 0, x is not None and i // 2 % 2 == 0)
        steps = (
            0.5,
            0.7,
            1 + i % 3,
            0.1,
            1.0,
            1.1,
            "periodic",
            (1, -1)[i // 4 % 2],
            *roles,
            ("relu6", "tanh")[i // 5 % 2],
        )
        arguments = (h, x, *parameters, *steps)
        out, mean, var = torch.ops.pdecnn.global_training(*arguments)
        torch.testing.assert_close((out, mean, var), training.forward_default(*arguments), rtol=1e-4, atol=1e-4)
        grad = randn(3, C, H, W, seed=4)
        found = torch.ops.pdecnn.global_training_backward(grad, mean, var, *arguments)
        expected = training.backward_default(grad, mean, var, *arguments)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def check_shared_expand(_):
    for H, W, f, stride in product((1, 4, 9), (1, 8, 19), (1, 3), (1, 2)):
        u, stencils = randn(2, 3, H, W), randn(f, 1, 3, 3, seed=1)
        shape = shared_expand.op.output_shape(u, stencils, stride)
        for name in ("shared_expand", "shared_expand_moments"):
            same(getattr(shared_expand, name), getattr(reference, name), (u, stencils), stride)
        tensors = (u, stencils, randn(shape[1], seed=2), randn(shape[1], seed=3), randn(*shape, seed=4))
        same(shared_expand.shared_expand_product, reference.shared_expand_product, tensors, stride)


def check_spectral_filter(_):
    choice._fastest = lambda side, native: "native" if native else "fft"  # whatever is faster at these sizes
    for size, boundary in product(
        [(1, 1), (1, 9), (8, 8), (5, 17), (16, 16), (33, 7), (40,), (64, 64)], BOUNDARIES[:2]
    ):
        same(
            functional.spectral_filter,
            reference.spectral_filter,
            (randn(2, 3, *size), randn(3, *size, seed=1)),
            boundary,
        )


def main(expected_kernel):
    rows = [row for row in kernels.available() if row.device == "cpu"]
    assert {row.kernel for row in rows} == {expected_kernel}, rows
    checks = [check for name, check in globals().items() if name.startswith("check_")]
    assert len(checks) == len(rows)
    # the definition in bfloat16 rounds at every operation, the functional once
    dtypes = DTYPES[:2] if expected_kernel == "reference" else DTYPES
    for check in checks:
        check(dtypes)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.write("all cases pass\n")
