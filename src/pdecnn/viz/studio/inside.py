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
from pdecnn.viz.studio import drawing
from pdecnn.viz.studio.drawing import Chart, Series, arrows, frame_pixels, paint, tile, tiles
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
        return f"{self.path}, {C} channels of {H}x{W}, K = {self.K}"


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


def of_channel(q: Tensor, channel: int) -> Tensor:
    """One channel of a map `(C, H, W)`, or the mean of all for -1."""
    return q.float().mean(0) if channel < 0 else q[min(channel, len(q) - 1)].float()


def fields(view: LayerView, channel: int) -> str:
    """First guess, flow as arrows, D, and the Courant numbers with the unstable pixels framed."""
    guess, u, v = (of_channel(q, channel) for q in (view.states[0], view.u, view.v))
    D = of_channel((view.D_x + view.D_y) / 2, channel)
    courant = view.courant.amax(0) if channel < 0 else view.courant[min(channel, len(view.courant) - 1)]
    unstable = view.unstable.any(0) if channel < 0 else view.unstable[min(channel, len(view.unstable) - 1)]
    fastest = float((u**2 + v**2).sqrt().max())
    share = 100 * float(view.unstable.double().mean())
    marked = (
        f"{int(unstable.sum())} of {unstable.numel()} pixels framed: a wave would grow"
        if unstable.any()
        else "stable everywhere"
    )
    return tiles(
        [
            tile(paint(guess), f"first guess h⁰, {_range(guess)}"),
            tile(paint(guess, cmap="Greys_r"), f"flow (u, v), fastest {fastest:.3g}", arrows(u, v)),
            tile(paint(D, low=0.0, cmap="magma"), f"D, {_range(D)}"),
            tile(
                paint(courant, low=0.0, high=max(1.0, float(courant.max())), cmap="cividis"),
                f"Courant number, up to {float(courant.max()):.2f}; {marked}",
                frame_pixels(unstable),
            ),
        ]
    ) + drawing.note(f"Over all channels and pixels, {share:.1f} % of the coefficients are in the unstable region.")


def state(view: LayerView, channel: int, k: int, mark: tuple[int, int] | None = None) -> str:
    """The state h^k beside what it has changed since h⁰; all k share one scale."""
    k = min(k, len(view.states) - 1)
    shown = [of_channel(h, channel) for h in view.states[: max(view.K, k) + 1]]
    finite = torch.stack(shown)[torch.stack(shown).isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    change = shown[k] - shown[0]
    most = float(change[change.isfinite()].abs().max()) if change.isfinite().any() else 1.0
    spot = "" if mark is None else frame_pixels(_only(shown[k].shape, *mark), "#ffffff")
    own = ", what the layer gives on" if k == view.K else ""
    return tiles(
        [
            tile(paint(shown[k], low=low, high=high), f"h^{k}{own}, {_range(shown[k])}", spot),
            tile(paint(change, low=-most, high=most, cmap="RdBu_r"), f"h^{k} - h^0, up to ±{most:.3g}"),
        ],
        "two",
    )


def reach_pictures(inside: Inside, number: int, y: int, x: int, K: int) -> str:
    """Where the pixel's value comes from, in the layer's input and in the image, as logarithms of shares."""
    inner, outer = reach(inside, number, y, x, K)
    H, W = inside.layers[number].states[0].shape[1:]
    marks = (frame_pixels(_only(inner.shape, int(y * inner.shape[0] / H), int(x * inner.shape[1] / W)), "#ffffff"), "")
    names = (f"the layer's input, K = {K}", "the image")
    out = []
    for field, name, mark in zip((inner, outer), names, marks, strict=True):
        share = field / field.sum().clamp_min(1e-30)
        count = int((field > 0).sum())
        out.append(
            tile(
                paint(share.clamp_min(1e-6).log10(), low=-6.0, high=0.0, cmap="inferno"),
                f"pixel ({x}, {y}) depends on {count} of {field.numel()} pixels of {name}",
                mark,
            )
        )
    return tiles(out, "two")


def confidence_chart(inside: Inside) -> str:
    """Confidence against K, and what the net answers with each."""
    own = inside.net.label(int(inside.probabilities.argmax()))
    K = [a.K for a in inside.answers]
    notes = [f"K = {a.K}: {inside.net.label(a.best)}, {100 * a.confidence:.1f} %" for a in inside.answers]
    series = [
        Series("its answer", K, [100 * a.confidence for a in inside.answers], drawing.BLUE, True, notes),
        Series(
            own,
            K,
            [100 * a.of_own for a in inside.answers],
            drawing.PALETTE[1],
            True,
            [f"K = {a.K}: {own}, {100 * a.of_own:.1f} %" for a in inside.answers],
        ),
    ]
    series = series[: 1 + any(a.confidence != a.of_own for a in inside.answers)]
    about = Chart(
        "K in every layer", "confidence, %", "confidence against K", [(inside.steps, "its own K")], whole=True
    )
    changed = [a for a in inside.answers if a.best != int(inside.probabilities.argmax())]
    text = ", ".join(f"K = {a.K}: {inside.net.label(a.best)}" for a in changed)
    return drawing.chart(series, about) + drawing.note(
        f"Other answers: {text}." if changed else "The answer is the same for every K."
    )


def verdict(inside: Inside, classes: int = 5) -> str:
    """The answer in a sentence, and the likeliest classes."""
    best = inside.probabilities.topk(min(classes, len(inside.probabilities)))
    names = [inside.net.label(int(i)) for i in best.indices]
    head = f"It says {names[0]}, {100 * float(best.values[0]):.1f} %."
    rows = list(zip(names, (f"{100 * float(p):.2f}" for p in best.values), strict=True))
    random = "" if inside.net.found.weights else " Its weights are random: the answer means nothing."
    return drawing.note(head + random, "says") + drawing.table(("class", "%"), rows)


def _only(shape: Any, y: int, x: int) -> Tensor:
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[y, x] = True
    return mask


def _range(q: Tensor) -> str:
    finite = q[q.isfinite()]
    return f"{float(finite.min()):.3g} to {float(finite.max()):.3g}" if len(finite) else "nothing finite"
