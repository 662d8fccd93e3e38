"""Global layers for tests: one for every option, inputs, and norms that do something."""

import copy

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pdecnn.layers import BasicBlock, GlobalLayer
from pdecnn.layers.blocks import ResidualChain

OPTIONS = {
    "default": {},
    "biased": {"coef_bias": True},
    "biased velocity alone": {"coef_bias": (True, False)},
    "pointwise": {"velocity": "pointwise", "diffusion": "pointwise"},
    "full": {"velocity": "full", "diffusion": "full"},
    "residual coefficients": {"velocity": "residual", "diffusion": "residual"},
    "bottleneck": {"velocity": "bottleneck", "diffusion": "bottleneck"},
    "identity": {"velocity": "identity", "diffusion": "identity"},
    "dot": {"velocity": "dot", "diffusion": "dot"},
    "channel": {"velocity": "channel", "diffusion": "channel"},
    "numbers": {"velocity": (0.5, -0.25), "diffusion": 1.0},
    "module": {"velocity": nn.Conv2d(4, 4, 3, padding=1), "diffusion": 2},
    "5x5": {"kernel_size": 5},
    "no source": {"source": "none"},
    "residual source": {"source": "residual"},
    "residual source each step": {"source": "residual_each_step"},
    "module source": {"source": ResidualChain(4)},
    "block init": {"init": BasicBlock(4, 4)},
    "strided init": {"init": BasicBlock(4, 4, stride=2)},
    "input before": {"init": BasicBlock(4, 4), "h_prev": "input"},
    "silu": {"act_layer": nn.SiLU},
    "group norm": {"norm_layer": lambda C, **kwargs: nn.GroupNorm(2, C, **kwargs)},
    "residual": {"residual": True, "drop_path": 0.5},
    "neumann": {"boundary": "neumann"},
    "dirichlet": {"boundary": "dirichlet"},
    "mirrored": {"flow_sign": -1},
    "eps = C": {"coef_bn_eps": "channels"},
    "bounded": {"velocity_bound": 0.5},
    "bounded channel": {"velocity": "channel", "velocity_bound": True},
    "upwind": {"upwind": True},
    "upwind numbers": {"velocity": 0.5, "diffusion": 0.1, "upwind": True},
    "dilated": {"dilation": 2, "velocity": "channel"},
    "anisotropic": {"dx": 0.5, "dy": 2.0, "dt": 0.1},
}


def make(name, **more):
    """A layer of 4 channels with the named options; modules among them are its own."""
    return GlobalLayer(4, **copy.deepcopy(OPTIONS[name]), **more)


def sample(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def randomised(layer, seed=0):
    """The layer in eval mode with norms that do something: random affine parameters and running statistics."""
    g = torch.Generator().manual_seed(seed)
    for m in layer.modules():
        if isinstance(m, nn.BatchNorm2d):
            for q in (m.weight.data, m.bias.data, m.running_mean):
                q.copy_(torch.randn(q.shape, generator=g))
            m.running_var.copy_(torch.rand(m.running_var.shape, generator=g) + 0.5)
    return layer.eval()


class Operators(TorchDispatchMode):
    """While entered, notes the operators of pdecnn that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "pdecnn":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))
