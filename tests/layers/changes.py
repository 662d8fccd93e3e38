"""What users do to a Global layer after it was built: every change here must reach every way to run the layer."""

import copy
from types import MethodType

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from pdecnn.layers import GlobalLayer, serve_steps
from pdecnn.layers.coefficients import LearnedPair
from pdecnn.layers.step_norm import StepNorm

C = 5


def conv(**options):
    k, dilation = options.pop("kernel_size", 3), options.get("dilation", 1)
    return nn.Conv2d(C, C, k, **{"padding": dilation * (k // 2), "groups": C, **options})


def exchange(path, make):
    """A change that puts `make(old)` in the place of the module at `path`."""

    def change(layer):
        parent, _, name = path.rpartition(".")
        owner = layer.get_submodule(parent) if parent else layer
        setattr(owner, name, make(getattr(owner, name)))

    return change


def served(layer):
    """Statistics for K from 1 to 6, which differ."""
    if isinstance(layer.norm, nn.BatchNorm2d):
        serve_steps(layer, 1, 6)
    if isinstance(layer.norm, StepNorm):
        layer.norm.running_var *= torch.linspace(0.5, 2.0, 6)[:, None]


def assign(path, **attributes):
    def change(layer):
        module = layer.get_submodule(path) if path else layer
        for name, value in attributes.items():
            setattr(module, name, copy.deepcopy(value))

    return change


class Doubled(nn.Conv2d):
    def forward(self, h):
        return 2 * super().forward(h)


class Halved(nn.BatchNorm2d):
    def forward(self, h):
        return 0.5 * super().forward(h)


class Shifted(nn.ReLU):
    def forward(self, h):
        return super().forward(h) + 0.25


class Swapped(LearnedPair):
    def forward(self, h):
        return super().forward(h)[::-1]


class Scaled(nn.Module):
    def forward(self, w):
        return 0.5 * w


def as_class(cls):
    """Makes the module at a path an instance of a subclass with the same state."""

    def make(old):
        old.__class__ = cls
        return old

    return make


def method(path, name, function):
    """A change that gives one instance a method of its own."""

    def change(layer):
        owner = layer.get_submodule(path) if path else layer
        setattr(owner, name, MethodType(function, owner))

    return change


def half_solved(layer, *args, **kwargs):
    return 0.5 * GlobalLayer.solve(layer, *args, **kwargs)


def constant_coefficients(layer, h):
    return 0.1, 0.0, 0.2, 0.0


def half_guess(layer, x):
    return tuple(0.5 * q for q in GlobalLayer.first_guess(layer, x))


def shifted_convolution(op, h):
    return nn.Conv2d.forward(op, h) + 0.25


class Overridden(GlobalLayer):
    def solve(self, h, x, coefficients, K=None):
        return h + 0.5 * super().solve(h, x, coefficients)


class OtherCoefficients(GlobalLayer):
    def coefficients(self, h):
        u, v, D_x, D_y = super().coefficients(h)
        return v, u, D_x + 0.1, D_y


class OtherForward(GlobalLayer):
    def forward(self, x):
        return super().forward(x) + 1


class OtherGuess(GlobalLayer):
    def first_guess(self, x):
        h, x = super().first_guess(x)
        return h + 0.5, x


def subclass(cls):
    def change(layer):
        layer.__class__ = cls

    return change


def hook(path, kind, result=None):
    def change(layer):
        getattr(layer.get_submodule(path) if path else layer, f"register_{kind}")(result)

    return change


def add_quarter(module, args, output):
    return output + 0.25


def halve_input(module, args):
    return tuple(0.5 * q for q in args)


CHANGES = {
    "nothing": lambda layer: None,
    # convolutions
    "circular": assign("velocity.op_x", padding_mode="circular", _reversed_padding_repeated_twice=[1, 1, 1, 1]),
    "reflected": assign("diffusion.op_y", padding_mode="reflect", _reversed_padding_repeated_twice=[1, 1, 1, 1]),
    "dilated": exchange("velocity.op_y", lambda op: conv(dilation=2)),
    "padded by name": exchange("velocity.op_y", lambda op: conv(padding="same")),
    "strided": exchange("velocity.op_x", lambda op: nn.Sequential(conv(stride=2), nn.Upsample((9, 8)))),
    "strided and padded": exchange("velocity.op_x", lambda op: conv(stride=2, padding=(5, 5))),
    "mixed channels": exchange("diffusion.op_x", lambda op: conv(groups=1)),
    "another side": exchange("diffusion.op_x", lambda op: conv(kernel_size=5)),
    "oblong": exchange("velocity.op_x", lambda op: nn.Conv2d(C, C, (3, 1), padding=(1, 0), groups=C)),
    "one bias": exchange("velocity.op_x", lambda op: conv(bias=True)),
    "subclassed convolution": exchange("velocity.op_y", as_class(Doubled)),
    "parametrized": lambda layer: parametrize.register_parametrization(layer.velocity.op_x, "weight", Scaled()),
    "weight norm": lambda layer: parametrizations.weight_norm(layer.diffusion.op_x),
    "pruned": torch.no_grad()(lambda layer: prune.l1_unstructured(layer.velocity.op_x, "weight", 0.5)),
    "method of a part": method("diffusion.op_y", "forward", shifted_convolution),
    # pairs
    "subclassed pair": exchange("velocity", as_class(Swapped)),
    "gated": assign("velocity", gated=True),
    "two activations": assign("diffusion", act=nn.ReLU6()),
    "shared convolution": lambda layer: setattr(layer.velocity, "op_y", layer.velocity.op_x),
    # norms
    "group norm": exchange("velocity.norm_x", lambda norm: nn.GroupNorm(1, C)),
    "no norm": exchange("diffusion.norm_x", lambda norm: nn.Identity()),
    "no output norm": exchange("norm", lambda norm: nn.Identity()),
    "subclassed norm": exchange("norm", as_class(Halved)),
    "no statistics": exchange("velocity.norm_y", lambda norm: nn.BatchNorm2d(C, track_running_stats=False)),
    "no affine": exchange("norm", lambda norm: nn.BatchNorm2d(C, affine=False)),
    "wrapped norm": exchange("norm", nn.Sequential),
    "parametrized norm": lambda layer: parametrize.register_parametrization(layer.norm, "weight", Scaled()),
    "average of all batches": assign("velocity.norm_x", momentum=None),
    "eps": assign("velocity.norm_x", eps=0.5),
    "statistics of each K": served,
    # activations
    "silu": assign("", act=nn.SiLU()),
    "tanh": lambda layer: [setattr(m, "act", nn.Tanh()) for m in (layer, layer.velocity, layer.diffusion)],
    "clamp": lambda layer: [setattr(m, "act", nn.Hardtanh()) for m in (layer, layer.velocity, layer.diffusion)],
    "other clamp": assign("", act=nn.Hardtanh(-0.5, 0.25)),
    "linear": assign("", act=nn.Identity()),
    "subclassed activation": exchange("act", as_class(Shifted)),
    # the rest of the layer
    "first guess": assign("", init=nn.Conv2d(C, C, 1)),
    "no source": assign("", source=None),
    "module source": assign("", source=nn.Conv2d(C, C, 1)),
    "source of each step": assign("", source_each_step=True),
    "input before": assign("", init=nn.Conv2d(C, C, 1), h_prev="input"),
    "residual": assign("", residual=True, act=nn.Identity()),
    "steps and spacings": assign("", K=3, dt=0.1, dx=1.5, dy=0.75),
    "neumann": assign("", boundary="neumann"),
    "dirichlet": assign("", boundary="dirichlet"),
    "against the index": assign("", flow_sign=-1),
    "upwind": assign("", upwind=True),
    "bounded": assign("", velocity_bound=0.5),
    "dilated steps": assign("", dilation=2),
    "subclass with solve": subclass(Overridden),
    "subclass with coefficients": subclass(OtherCoefficients),
    "subclass with forward": subclass(OtherForward),
    "subclass with first_guess": subclass(OtherGuess),
    "own solve": method("", "solve", half_solved),
    "own coefficients": method("", "coefficients", constant_coefficients),
    "own first_guess": method("", "first_guess", half_guess),
    # hooks that change what passes
    "hook on a convolution": hook("velocity.op_x", "forward_hook", add_quarter),
    "hook before a convolution": hook("diffusion.op_y", "forward_pre_hook", halve_input),
    "hook on a norm": hook("velocity.norm_y", "forward_hook", add_quarter),
    "hook on the output norm": hook("norm", "forward_hook", add_quarter),
    "hook on an activation": hook("diffusion.act", "forward_hook", add_quarter),
    "hook on the source": hook("source", "forward_hook", add_quarter),
    "hook on the first guess": hook("init", "forward_hook", add_quarter),
    "hook before a pair": hook("velocity", "forward_pre_hook", halve_input),
    "hook on the layer": hook("", "forward_hook", add_quarter),
    "hook before the layer": hook("", "forward_pre_hook", halve_input),
}
