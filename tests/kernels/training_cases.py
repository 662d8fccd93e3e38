"""A Global layer in training: by the operator and, for comparison, by torch's modules and the solver's definition."""

import torch
from norm_cases import ACTS, KINKS, randn
from torch import nn

from pdecnn import reference
from pdecnn.kernels.global_layer.arguments import Steps

STEPS = {"K": 3, "dt": 0.2, "dx": 1.0, "dy": 1.25}


def options(act="relu", *, D=None, has_source=True, previous_is_input=False, boundary="periodic", flow_sign=1, **steps):
    """The operator's options in the order of its schema."""
    steps = {"K": 5, "dt": 0.2, "dx": 1.0, "dy": 1.0} | steps
    return Steps(*(D or (0.0, 0.0)), *steps.values(), boundary, flow_sign, has_source, previous_is_input, act)


def global_training(h, x, weight, bias, gamma, beta, eps, act="relu", **others):
    used = others.get("has_source", True) or others.get("previous_is_input", False)
    x = None if x is h or not used else x
    return torch.ops.pdecnn.global_training(h, x, weight, bias, gamma, beta, eps, *options(act, **others))


def sample(N, C, H, W, k=3, *, M=4, other=True, bias=True, seed=0):
    """`h, x, weight, bias, gamma, beta` in float64; velocities and diffusivities of about 0.3."""
    h = 0.4 + randn(N, C, H, W, seed=seed)
    x = randn(N, C, H, W, seed=seed + 1) if other else h
    weight, bias = randn(M, C, k, k, seed=seed + 2), randn(M, C, seed=seed + 3) if bias else None
    return [h, x, weight, bias, 0.3 * randn(M, C, seed=seed + 4), 0.2 + 0.1 * randn(M, C, seed=seed + 5)]


def by_modules(
    h, x, weight, bias, gamma, beta, eps, act, *, D=None, has_source=True, previous_is_input=False, flow_sign=1, **steps
):
    """The same by torch's convolution and batch norm and the solver's definition; the variance is unbiased."""
    C, k = h.shape[1], weight.shape[-1]
    maps, means, variances = [], [], []
    for m in range(len(weight)):
        q = torch.conv2d(h, weight[m].unsqueeze(1), None if bias is None else bias[m], 1, k // 2, 1, C)
        norm = nn.BatchNorm2d(C, eps=eps[m], momentum=1.0).to(h.dtype)
        maps.append(ACTS[act](torch.func.functional_call(norm, {"weight": gamma[m], "bias": beta[m]}, (q,))))
        means.append(norm.running_mean)
        variances.append(norm.running_var)
    f, h_prev = x if has_source else None, x if previous_is_input else None
    maps[:2] = [flow_sign * q for q in maps[:2]]
    out = reference.advection_diffusion(h, *maps, *(D or ()), f, h_prev=h_prev, **steps)
    return out, torch.stack(means), torch.stack(variances)


def results(function, tensors, eps, act, chosen, dtype, memory_format=torch.contiguous_format):
    """Output, statistics and all gradients; zero for an input that nothing depends on."""
    own = tensors[1] is tensors[0]
    leaves = [None if q is None else q.to(dtype).requires_grad_() for q in tensors]
    h = leaves[0] = leaves[0].detach().clone(memory_format=memory_format).requires_grad_()
    out, mean, var = function(h, h if own else leaves[1], *leaves[2:], eps, act, **chosen)
    given = [q for i, q in enumerate(leaves) if q is not None and not (own and i == 1)]
    gradients = torch.autograd.grad(out, given, randn(*h.shape, seed=77).to(dtype), allow_unused=True)
    return [out, mean, var, *(torch.zeros_like(q) if g is None else g for g, q in zip(gradients, given, strict=True))]


def compare(tensors, eps, act, options, memory_format=torch.contiguous_format):
    """Mine is as near to the exact result as torch's modules in float32 are, or as rounding allows."""
    exact = results(by_modules, tensors, eps, act, options, torch.float64)
    theirs = results(by_modules, tensors, eps, act, options, torch.float32)
    mine = results(global_training, tensors, eps, act, options, torch.float32, memory_format)
    count = tensors[0].numel() // tensors[0].shape[1]
    mine[2] = mine[2] * (count / (count - 1))
    for i, (a, b, c) in enumerate(zip(mine, theirs, exact, strict=True)):
        size = max(1.0, c.abs().max().item())
        error, other = (a.double() - c).abs().max().item(), (b.double() - c).abs().max().item()
        assert error <= max(4 * other, 2e-5 * size), (i, error, other)
    return mine


def away_from_kinks(tensors, eps, act, margin=1e-4):
    """Whether no coefficient is so near a kink of the activation that rounding decides on which side."""
    kinks = KINKS.get(act, ())
    h, _, weight, _, gamma, beta = tensors
    for m in range(len(weight)):
        q = torch.conv2d(h, weight[m].unsqueeze(1), None, 1, weight.shape[-1] // 2, 1, h.shape[1])
        y = nn.functional.batch_norm(q, None, None, gamma[m], beta[m], training=True, eps=eps[m])
        if any(((y - kink).abs() < margin).any() for kink in kinks):
            return False
    return True
