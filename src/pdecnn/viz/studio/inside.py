"""Inside the PDE layers of a net, for one image: first guess, flow, diffusion, every state, stability, reach."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.layers import GlobalLayer
from pdecnn.layers.steps import served_steps, with_steps
from pdecnn.layers.transport import MAX_K, Transport
from pdecnn.reference.courant import von_neumann_number
from pdecnn.viz.studio.nets import Net

MOST = 12  # steps that can be looked at
Layer = GlobalLayer | Transport


@dataclass(frozen=True, eq=False)
class LayerView:
    """One layer for one image; maps are `(C, H, W)`."""

    path: str
    K: int
    given: Tensor  # what it was given, (1, C, H, W)
    states: tuple[Tensor, ...]  # h^0, the first guess, to h^MOST
    u: Tensor
    v: Tensor
    D_x: Tensor
    D_y: Tensor
    courant: Tensor  # |A_x| + |A_y|
    unstable: Tensor  # where some wave would grow

    def name(self) -> str:
        """What it is called on the page."""
        C, H, W = self.states[0].shape
        return f"{self.path}, {C} channel{'s' * (C > 1)} of {H}x{W}, K = {self.K}"


@dataclass(frozen=True)
class Answer:
    """What the net says with K steps in every layer."""

    K: int
    best: int
    confidence: float
    of_own: float  # confidence in the class that it names with its own K


@dataclass(frozen=True, eq=False)
class Inside:
    """What `look` found; the model is a copy of the net's."""

    net: Net
    model: nn.Module
    x: Tensor
    layers: tuple[LayerView, ...]
    answers: tuple[Answer, ...]
    probabilities: Tensor
    steps: int


def pde_layers(model: nn.Module) -> dict[str, Layer]:
    """The layers of a model that can be looked into, by path."""
    return {
        path: m
        for path, m in model.named_modules()
        if isinstance(m, GlobalLayer) or (isinstance(m, Transport) and m.axes == 2)
    }


def look(net: Net, x: Tensor) -> Inside:
    """Runs the net on one image and notes what its PDE layers do."""
    model = copy.deepcopy(net.model).eval()
    layers = pde_layers(model)
    if not layers:
        raise ValueError(
            f"{net.name} has no Global layer to look into. Try cifar_resnet_tiny_global.cifar10, "
            "mnist_toy_global.mnist, or the folder of a condensed net."
        )
    with torch.no_grad():
        given, logits = _inputs(model, layers, x)
        answers = tuple(_answers(model, x, int(logits.argmax())))
        views = tuple(_view(path, layer, given[path]) for path, layer in layers.items() if path in given)
    steps = max(layer.K for layer in layers.values())
    return Inside(net, model, x, views, answers, logits.softmax(1)[0], steps)


def reach(inside: Inside, number: int, y: int, x: int, K: int) -> tuple[Tensor, Tensor]:
    """How much one pixel of the state after K steps depends on each pixel of the layer's input and of the image.

    Both are mean absolute gradients over channels, `(H, W)`.
    """
    view = inside.layers[number]
    layer = pde_layers(inside.model)[view.path]
    H, W = view.states[0].shape[1:]
    if not (0 <= y < H and 0 <= x < W):
        raise ValueError(f"The map has pixels 0 to {W - 1} across and 0 to {H - 1} down, got {x}, {y}.")
    image = inside.x.clone().requires_grad_()
    with torch.enable_grad():
        given, _ = _inputs(inside.model, {view.path: layer}, image)
        last = list(_states(layer, given[view.path], K))[-1]
        found = torch.autograd.grad(last[0, :, y, x].sum(), [given[view.path], image])
    return found[0].abs().mean((0, 1)), found[1].abs().mean((0, 1))


def _inputs(model: nn.Module, layers: dict[str, Layer], x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    given: dict[str, Tensor] = {}
    hooks = [layer.register_forward_pre_hook(_keeper(given, path)) for path, layer in layers.items()]
    try:
        out: Any = model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return given, out


def _keeper(given: dict[str, Tensor], path: str) -> Any:
    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        given.setdefault(path, args[0])

    return keep


def _states(layer: Layer, given: Tensor, K: int) -> Iterator[Tensor]:
    """`h^0 ... h^K`."""
    layer = copy.copy(layer)  # another number of steps, the same weights
    if isinstance(layer, GlobalLayer):
        if K:
            layer.set_steps(K)
            yield from layer.trajectory(given)
        else:
            yield layer.first_guess(given)[0]
        return
    yield given
    for k in range(1, min(K, MAX_K) + 1):
        layer.set_steps(k)
        yield layer(given)


def _view(path: str, layer: Layer, given: Tensor) -> LayerView:
    states = tuple(h[0] for h in _states(layer, given, MOST))
    if isinstance(layer, GlobalLayer):
        h = layer.first_guess(given)[0]
        fields = [torch.as_tensor(c).expand(h.shape)[0] for c in layer.coefficients(h)]
        dx, dy = layer.spacings
        A_x, A_y = fields[0].double() * layer.dt / dx, fields[1].double() * layer.dt / dy
        B_x, B_y = fields[2].double() * layer.dt / dx**2, fields[3].double() * layer.dt / dy**2
        unstable = von_neumann_number(A_x, A_y, B_x, B_y) > 1
    else:
        pairs = (layer.velocity[1], layer.velocity[0], layer.diffusion[1], layer.diffusion[0])  # x is the last axis
        fields = [c.detach().view(-1, 1, 1).expand(states[0].shape) for c in pairs]
        A_x, A_y = fields[0].double(), fields[1].double()
        unstable = _growing(layer).view(-1, 1, 1).expand(states[0].shape)
    u, v, D_x, D_y = fields
    return LayerView(path, layer.K, given, states, u, v, D_x, D_y, A_x.abs() + A_y.abs(), unstable)


def _growing(layer: Transport) -> Tensor:
    """The channels in which one step makes some wave larger, by the spectrum of its stencil."""
    step = copy.copy(layer)
    step.set_steps(1)
    gain: Tensor = torch.fft.fft2(step.kernel().detach().double()[:, 0], s=(64, 64)).abs()
    return gain.amax((-2, -1)) > 1 + 1e-6


def _answers(model: nn.Module, x: Tensor, own: int) -> Iterator[Answer]:
    most = min([MOST, *(MAX_K for m in model.modules() if isinstance(m, Transport))])
    least, most = served_steps(model) or (1, most)
    for K in range(least, min(most, MOST) + 1):
        with with_steps(model, K):
            p = model(x).softmax(1)[0]
        yield Answer(K, int(p.argmax()), float(p.max()), float(p[own]))
