"""A hyperbolic net whose weights are turned by an element of its group: other weights, the same logits."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pdecnn.models.hyperbolic import HyperbolicNet
from pdecnn.symmetry import Group, StageSymmetry, fold_norms, symmetry_of, transform
from pdecnn.symmetry.transform import apply_in_place
from pdecnn.viz.studio.drawing import bars, note, paint, table, tile, tiles
from pdecnn.viz.studio.nets import Net

MOST = 32  # rows and columns of a weight matrix that are drawn
SHOWN = 6  # matrices


@dataclass(frozen=True, eq=False)
class Turnable:
    """A net with its folded weights and the symmetry of each stage."""

    net: Net
    folded: HyperbolicNet
    stages: dict[int, StageSymmetry]
    x: Tensor


@dataclass(frozen=True, eq=False)
class Turned:
    """The weights before and after, by path; logits before and after, in float64; the largest difference."""

    weights: dict[str, tuple[Tensor, Tensor]]
    logits: tuple[Tensor, Tensor]
    difference: float
    moved: float  # relative change of all weights that may move


def open_turnable(net: Net, x: Tensor) -> Turnable:
    """The net if it is hyperbolic; else a TypeError that says so."""
    stages = symmetry_of(net.model)
    folded = fold_norms(copy.deepcopy(net.model).double().eval())
    return Turnable(net, folded, stages, x.double())


def element(group: Group, n: int, t: float, seed: int = 0) -> Tensor:
    """A way through the group from the identity at t = 0: `exp(t M)`; in a finite one, ever more exchanges of channels.

    Example:
        >>> from pdecnn.symmetry import Group
        >>> T = element(Group.O, 4, 0.7)
        >>> bool(torch.allclose(T @ T.T, torch.eye(4, dtype=T.dtype)))
        True
    """
    draw = torch.Generator().manual_seed(seed)
    if group is Group.TRIVIAL:
        return torch.eye(n, dtype=torch.float64)
    if group.monomial and group.orthogonal:
        order = torch.arange(n)
        pairs = torch.randint(n, (n, 2), generator=draw)
        for a, b in pairs[: round(t * n)].tolist():
            order[[a, b]] = order[[b, a]]
        return torch.eye(n, dtype=torch.float64)[order]
    M = torch.randn(n, n, generator=draw, dtype=torch.float64)
    if group.monomial:
        return torch.diag((t * M.diagonal()).exp())
    M = (M - M.T) if group.orthogonal else M
    found: Tensor = torch.linalg.matrix_exp(3 * t * M / n**0.5)
    return found


def outside(n: int, t: float, seed: int = 0) -> Tensor:
    """The same way through all invertible matrices: for most nets it leaves the group."""
    return element(Group.GL, n, t, seed + 1)


@torch.no_grad()
def turn(given: Turnable, t: float, stages: list[int], seed: int = 0, *, break_it: bool = False) -> Turned:
    """Turns the chosen stages by t."""
    unknown = [s for s in stages if s not in given.stages]
    if unknown:
        raise ValueError(f"There is no stage {unknown[0]}; there are {', '.join(map(str, given.stages))}.")
    T = {}
    for s in stages:
        known = given.stages[s]
        T[s] = outside(known.width, t, seed + s) if break_it else element(known.group, known.width, t, seed + s)
    after = copy.deepcopy(given.folded)
    if break_it:
        apply_in_place(after, T)
    else:
        after = transform(copy.deepcopy(given.net.model).double().eval(), T)
    pairs = {path: (m.weight, dict(_weighted(after))[path].weight) for path, m in _weighted(given.folded)}
    a, b = given.folded(given.x)[0], after(given.x)[0]
    difference = float((a - b).abs().max() / a.abs().max().clamp_min(1e-300))
    size = sum(float(w.square().sum()) for w, _ in pairs.values())
    moved = (sum(float((w - q).square().sum()) for w, q in pairs.values()) / max(size, 1e-300)) ** 0.5
    return Turned(pairs, (a, b), difference, moved)


def _weighted(model: nn.Module) -> list[tuple[str, nn.Conv2d | nn.Linear]]:
    return [(path, m) for path, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))]


def weight_pictures(found: Turned) -> str:
    """A few matrices from the first to the last layer, before and after, on one scale each; always the same ones."""
    broad = [path for path, (w, _) in found.weights.items() if len(w) <= w[0].numel()] or list(found.weights)
    chosen = [broad[round(i * (len(broad) - 1) / (SHOWN // 2 - 1))] for i in range(SHOWN // 2)]
    out = []
    for path in dict.fromkeys(chosen):
        before, after = found.weights[path]
        change = 100 * float((before - after).norm() / before.norm().clamp_min(1e-300))
        a, b = (w.flatten(1)[:MOST, :MOST] for w in (before, after))
        most = max(float(a.abs().max()), float(b.abs().max()))
        for w, when in ((a, "before"), (b, f"turned, moved {change:.0f} %")):
            out.append(tile(paint(w, low=-most, high=most, cmap="RdBu_r"), f"{path}, {when}"))
    return tiles(out, "pairs")


def logit_bars(found: Turned, net: Net) -> str:
    """Logits before and after, class by class."""
    a, b = (q.tolist() for q in found.logits)
    some = range(min(10, len(a)))
    names = [net.label(i) for i in some]
    return bars(names, [[a[i] for i in some], [b[i] for i in some]], ("before", "turned"))


def says(found: Turned, break_it: bool) -> str:
    """What happened, in a sentence."""
    stand = found.difference < 1e-9
    still = "stand still" if stand else "moved"
    text = (
        f"Weights moved by {100 * found.moved:.1f} %; logits {still}: the largest difference is {found.difference:.1e}."
    )
    if break_it and not stand:
        text += " This was no element of the group."
    return note(text, "says")


def group_table(given: Turnable) -> str:
    """The group of each stage, and what restricts it."""
    rows = [(s, known.label, known.group.dimension(known.width), known.reason) for s, known in given.stages.items()]
    return table(("stage", "group", "dimensions", "because of"), rows)
