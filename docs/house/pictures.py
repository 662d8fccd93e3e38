"""Plots of what was measured and of the equations, drawn when the pages are built, on light and on dark paper."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

from house import results
from pdecnn import reference

LIGHT = {"ink": "#3b4250", "faint": "#c9ced6"}
DARK = {"ink": "#c3c9d3", "faint": "#4a515d"}
BLUE, ORANGE, GREEN, RED, GREY = "#3b8ec2", "#e08a3c", "#3fa27a", "#cf5c60", "#8b95a3"
FAMILY = {"pde": BLUE, "paper": ORANGE, "separable": GREEN, "depthwise": GREEN, "pruned": GREY, "nothing": RED}


def save(name: str, folder: Path) -> list[Path]:
    """Draws a picture twice, for light and for dark pages."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for theme, colours in (("light", LIGHT), ("dark", DARK)):
        ink = colours["ink"]
        style = {
            "font.size": 10,
            "svg.hashsalt": "pdecnn",
            "text.color": ink,
            "axes.labelcolor": ink,
            "axes.edgecolor": ink,
            "xtick.color": ink,
            "ytick.color": ink,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 10,
            "grid.color": colours["faint"],
            "grid.linewidth": 0.6,
            "legend.frameon": False,
        }
        with matplotlib.rc_context(style):
            figure = PICTURES[name](colours)
            paths.append(folder / f"{name}-{theme}.svg")
            figure.savefig(paths[-1], transparent=True, metadata={"Date": None})
    return paths


def panels(columns: int, width: float, height: float, rows: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure with axes side by side."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def frontier(colours: dict[str, str]) -> Figure:
    """The frontier on Fashion-MNIST."""
    return frontier_of("fashion", colours)


def frontier_cifar10(colours: dict[str, str]) -> Figure:
    """The frontier on CIFAR-10."""
    return frontier_of("cifar10", colours)


def frontier_of(name: str, colours: dict[str, str]) -> Figure:
    """Test accuracy against milliseconds of one image, with the line that nothing is left of and above."""
    data = results.read(f"frontier-{name}")
    figure, both = panels(2, 9.0, max(4.6, 0.2 * len(data["nets"])), sharey=True)
    ends: list[float] = []
    for axes, runtime in zip(both, ("onnx", "optimized"), strict=True):
        points = {
            name: (net["times"][runtime]["1"]["ms"], results.seed_mean(net, "test"))
            for name, net in data["nets"].items()
            if runtime in net.get("times", {}) and net["seeds"]
        }
        teacher = (data["teacher"]["times"][runtime]["1"]["ms"], data["teacher"]["test"])
        best = frontier_line([*points.values(), teacher])
        axes.step(*zip(*best, strict=True), where="post", color=colours["ink"], linewidth=1, alpha=0.5)
        axes.scatter(*teacher, marker="*", s=110, color=colours["ink"])
        points["teacher"] = teacher
        accuracies = [accuracy for _, accuracy in points.values()]
        gap = (0.034 if len(points) < 20 else 0.03) * (max(accuracies) - min(accuracies))
        slots = spread(accuracies, gap)
        right = 1.12 * max(ms for ms, _ in points.values())
        for (name, (ms, accuracy)), slot in zip(points.items(), slots, strict=True):
            colour = next((c for word, c in FAMILY.items() if name.startswith(word)), colours["ink"])
            if name != "teacher":
                axes.scatter(ms, accuracy, s=34, color=colour, zorder=3)
            line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6, "relpos": (0, 0.5)}
            axes.annotate(name, (ms, accuracy), (right, slot), fontsize=7.5, color=colour, va="center", arrowprops=line)
        axes.set_xlim(0, 1.75 * right)
        ends += [min(slots) - gap, max(slots) + gap]
        axes.set_xlabel("ms for one image", loc="left")
        axes.set_title({"onnx": "ONNX Runtime, plain operators", "optimized": "PyTorch, optimized"}[runtime])
    both[0].set_ylabel("test accuracy, %")
    both[0].set_ylim(min(ends), max(ends))  # labels stay below the title
    return figure


def spread(values: list[float], gap: float) -> list[float]:
    """The values moved as little as keeps them in order and at least `gap` apart.

    Example:
        >>> spread([1.0, 1.0, 3.0], 1.0)
        [0.5, 1.5, 3.0]
    """
    groups: list[list[float]] = []  # of values that touch: [mean, count]
    for value in sorted(values):
        groups.append([value, 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (b, m), (a, n) = groups.pop(), groups.pop()
            groups.append([(a * n + b * m) / (n + m), n + m])
    placed = [mean + gap * (i - (n - 1) / 2) for mean, n in groups for i in range(int(n))]
    order = sorted(range(len(values)), key=values.__getitem__)
    return [placed[order.index(i)] for i in range(len(values))]


def frontier_line(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those of which none is both faster and at least as good.

    Example:
        >>> frontier_line([(2.0, 80.0), (1.0, 70.0), (3.0, 75.0)])
        [(1.0, 70.0), (2.0, 80.0)]
    """
    best: list[tuple[float, float]] = []
    for ms, accuracy in sorted(points):
        if not best or accuracy > best[-1][1]:
            best.append((ms, accuracy))
    return best


def savings(colours: dict[str, str]) -> Figure:
    """How many times smaller and faster the Global nets are."""
    data = results.read("savings")
    names = [results.NETWORKS.get(k, k) for k in data]
    bars: dict[str, tuple[list[float], str]] = {
        "parameters": ([d["parameters_ratio"] for d in data.values()], GREY),
        "multiply-adds": ([d["macs_ratio"]["exact"] for d in data.values()], GREEN),
        "latency, batch 1": ([results.ratios(d, "inference", 1)[0] for d in data.values()], BLUE),
        "training step, batch 64": ([results.ratios(d, "training", 64)[0] for d in data.values()], ORANGE),
    }
    figure, axes = panels(1, 8.0, 3.4)
    for i, (label, (values, colour)) in enumerate(bars.items()):
        axes.bar([x + 0.2 * (i - 1.5) for x in range(len(names))], values, 0.19, label=label, color=colour)
    axes.axhline(1, color=colours["ink"], linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(names)), [n.replace("-BC", "\nBC").replace("V3-", "V3\n") for n in names], fontsize=8.5)
    axes.set_ylabel("times less")
    axes.legend(ncols=2, fontsize=8.5)
    return figure


def scaling(colours: dict[str, str]) -> Figure:
    """Time and memory of one call against each size; a line of dots is linear."""
    data, axes_names = results.read("scaling"), ("pixels", "channels", "batch", "K")
    parts = {"solver": BLUE, "layer": ORANGE, "net": GREEN, "training": GREY}
    figure, grid = panels(len(axes_names), 9.0, 4.6, rows=2, sharex="col")
    for column, name in enumerate(axes_names):
        for row, (cost, scale) in enumerate((("seconds", 1e3), ("bytes", 1e-6))):
            axes = grid[row, column]
            for part, colour in parts.items():
                if found := data.get(part, {}).get(name):
                    sizes = [s**2 if name == "pixels" else s for s in found["sizes"]]
                    axes.loglog(sizes, [scale * v or None for v in found[cost]], "o-", ms=3, color=colour, label=part)
            (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
            axes.loglog([low, high], [bottom, bottom * high / low], ":", color=colours["ink"], linewidth=0.8)
            axes.set(xlim=(low, high), ylim=(bottom, top))
            axes.grid()
        grid[1, column].set_xlabel("pixels of the map" if name == "pixels" else name)
    grid[0, 0].set_ylabel("ms")
    grid[1, 0].set_ylabel("memory, MB")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(parts), fontsize=8.5)
    return figure


def solver(colours: dict[str, str]) -> Figure:
    """Times faster than the loop, by size of the feature map and K."""
    rows = [r for r in results.read("global_solver")["rows"] if r["threads"] == 1]
    shapes = list(dict.fromkeys(tuple(r["shape"]) for r in rows))
    steps = sorted({r["K"] for r in rows})
    figure, both = panels(2, 8.6, 3.2, sharey=True)
    for axes, mode, title in zip(both, ("forward", "training"), ("forward", "forward + backward"), strict=True):
        for i, (K, colour) in enumerate(zip(steps, (GREY, BLUE, ORANGE), strict=False)):
            found = {tuple(r["shape"]): r["ratios"][f"{mode}: roll / fused"]["median"] for r in rows if r["K"] == K}
            axes.bar(
                [x + 0.27 * (i - 1) for x, s in enumerate(shapes) if s in found],
                [found[s] for s in shapes if s in found],
                0.25,
                color=colour,
                label=f"K = {K}",
            )
        axes.set_xticks(
            range(len(shapes)), ["x".join(map(str, s)) for s in shapes], rotation=35, ha="right", fontsize=8
        )
        axes.set_title(title)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
    both[0].set_ylabel("times faster than the loop")

    both[1].legend(fontsize=8.5)
    return figure


def runtimes(colours: dict[str, str]) -> Figure:
    """One image through ResNet-32 and its Global net."""
    rows = [r for r in results.read("deploy")["rows"] if r["batch"] == 1]
    figure, axes = panels(1, 7.0, 2.6)
    ms = {(r["model"], r["runtime"]): r["p50_ms"] for r in rows}
    nets = {"cifar_resnet32": GREY, "cifar_resnet32_global": BLUE}
    names = [n for n in dict.fromkeys(r["runtime"] for r in rows) if all((model, n) in ms for model in nets)]
    for i, (model, colour) in enumerate(nets.items()):
        values = [ms[model, n] for n in names]
        bars = axes.barh([y + 0.38 * i for y in range(len(names))], values, 0.36, color=colour, label=model)
        axes.bar_label(bars, [f"{v:.2f}" for v in values], padding=3, fontsize=8, color=colours["ink"])
    axes.set_yticks([y + 0.19 for y in range(len(names))], [results.RUNTIMES.get(n, n) for n in names])
    axes.invert_yaxis()
    axes.set_xlabel("ms for one image, one thread")
    axes.legend(fontsize=8.5)
    return figure


def lowcost(colours: dict[str, str]) -> Figure:
    """The sweeps of Figure 1 of the low-cost paper."""
    data = results.read("lowcost")["full convolution / ours, forward"]
    figure, all_axes = panels(len(data), 9.0, 3.0, sharey=True)
    for axes, (what, points) in zip(all_axes, data.items(), strict=True):
        for name, colour in zip(next(iter(points.values())), (BLUE, GREY, GREEN, ORANGE, RED), strict=False):
            found = [(int(x), cell[name]) for x, cell in points.items() if name in cell]
            axes.plot(*zip(*found, strict=True), marker="o", markersize=3.5, color=colour, label=name)
        axes.axhline(1, color=colours["ink"], linewidth=0.8, linestyle=":")
        axes.set_xlabel(what)
        axes.set_yscale("log")
        axes.grid(axis="y")
    all_axes[0].set_ylabel("full convolution / ours")
    all_axes[0].legend(fontsize=8)
    return figure


def curves(colours: dict[str, str]) -> Figure:
    """Training accuracy of our own runs, epoch by epoch."""
    figure, axes = panels(1, 7.6, 5.4)
    for run in results.runs():
        curve = run.get("curve", [])
        epochs = next(iter(curve.values())) if isinstance(curve, dict) else curve
        found = [(e["epoch"], e["train_accuracy"]) for e in epochs if e.get("train_accuracy") is not None]
        if len(found) > 5:
            recipe, style = run["recipe"], "-" if len(axes.lines) < 10 else "--"  # there are ten colours
            null = ", null" * bool(recipe["model"]["kwargs"].get("no_global"))
            name = f"{run['model']}{null}, {run['epochs']} epochs of {recipe['optimizer']['name']}"
            axes.plot(*zip(*found, strict=True), style, linewidth=1.4, label=name)
    axes.set_xlabel("epoch (of the last cycle, where there were several)")
    axes.set_ylabel("training accuracy, %")
    axes.set_xscale("log")
    axes.grid()
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return figure


def transport(colours: dict[str, str]) -> Figure:
    """A blob after K steps: carried along, smoothed, both, and around a vortex."""
    n = 48
    y, x = torch.meshgrid(torch.arange(n) + 0.5, torch.arange(n) + 0.5, indexing="ij")
    h = torch.exp(-((x - 15) ** 2 + (y - 24) ** 2) / 18)[None, None]
    around = ((y - n / 2)[None, None] / 14, -(x - n / 2)[None, None] / 14)
    cases: dict[str, tuple[Any, Any, float]] = {
        "u = 1: carried along": (1.0, 0.0, 0.02),
        "D = 1: smoothed": (0.0, 0.0, 1.0),
        "both": (1.0, 0.0, 0.5),
        "u, v around the centre": (*around, 0.05),
    }
    figure, axes = panels(4, 8.0, 5.6, rows=3)
    for column, (title, (u, v, D)) in enumerate(cases.items()):
        axes[0, column].set_title(title, fontsize=9)
        for row, K in enumerate((0, 25, 75)):
            state = reference.advection_diffusion(h, u, v, D, D, K=K) if K else h
            a = axes[row, column]
            a.imshow(state[0, 0], cmap="magma", vmin=0, vmax=1 if row == 0 else float(state.max()))
            a.set(xticks=[], yticks=[])
            a.spines[:].set_visible(False)
            if column == 0:
                a.set_ylabel(f"K = {K}" if K else "first guess", fontsize=9)
    return figure


def reach(colours: dict[str, str]) -> Figure:
    """Which pixels have a say in one pixel, by the number of steps."""
    figure, axes = panels(4, 8.0, 2.3)
    pulse = torch.zeros(1, 1, 23, 23, dtype=torch.float64)
    pulse[..., 11, 11] = 1
    for a, K in zip(axes, (1, 3, 5, 10), strict=True):
        state = reference.advection_diffusion(pulse, 0.4, 0.2, 1.0, 1.0, K=K)[0, 0]
        a.imshow(torch.where(state.abs() > 1e-12, state.abs().log10(), torch.nan), cmap="viridis", vmin=-5, vmax=0)
        a.set(xticks=[], yticks=[], title=f"K = {K}")
        a.spines[:].set_color(colours["faint"])
        a.spines[:].set_visible(True)
    return figure


def courant(colours: dict[str, str]) -> Figure:
    """The largest value after 20 steps, for velocities from calm to wild."""
    torch.manual_seed(0)
    figure, axes = panels(1, 6.4, 3.0)
    size = (1, 8, 32, 32)
    h, direction = torch.rand(size, dtype=torch.float64) - 0.5, torch.rand((2, *size), dtype=torch.float64)
    speeds = torch.linspace(0.2, 8, 40).tolist()
    for D, colour in ((0.0, RED), (0.3, ORANGE), (1.0, BLUE)):
        top = []
        for speed in speeds:
            u, v = speed * direction
            top.append(float(reference.advection_diffusion(h, u, v, D, D, K=20).abs().max()))
        axes.plot(speeds, top, color=colour, label=f"D = {D:g}")
    axes.axhline(float(h.abs().max()), color=colours["ink"], linewidth=0.8, linestyle=":")
    axes.set(yscale="log", xlabel="largest velocity u, v (rough fields, dt = 0.2)", ylabel="largest |h| after 20 steps")
    axes.legend()
    return figure


def amplification(colours: dict[str, str]) -> Figure:
    """What one step does to a wave, explicit and implicit."""
    figure, axes = panels(1, 6.4, 3.0)
    symbol = torch.linspace(0, 4, 200)
    for h, colour in ((0.25, GREEN), (1.0, BLUE)):
        axes.plot(symbol, 1 - h * symbol, color=colour, label=f"explicit, h = {h:g}")
        axes.plot(symbol, 1 / (1 + h * symbol), color=colour, linestyle="--", label=f"implicit, h = {h:g}")
    axes.axhspan(-1, 1, color=colours["faint"], alpha=0.25, linewidth=0)
    axes.set(xlabel=r"symbol $|\hat k(\omega)|^2$ of a wave", ylabel="factor of a step", ylim=(-3.2, 1.3))
    axes.legend(fontsize=8.5)
    return figure


def smoothing(colours: dict[str, str]) -> Figure:
    """One explicit and one implicit step of the same stencil on an image of the package."""
    from pdecnn.training import load_dataset

    picture = load_dataset("fashion-mini").test.x[3:4].double() / 255
    laplacian = torch.tensor([[[0, 1, 0], [1, -4, 1], [0, 1, 0]]], dtype=torch.float64) / 4
    zero = torch.zeros_like(picture)
    frames = {"the image": picture}
    for h in (0.4, 5.0):
        frames[f"explicit, h = {h:g}"] = reference.explicit_step(picture, laplacian, zero, h)
        frames[f"implicit, h = {h:g}"] = reference.implicit_step(picture, laplacian, zero, h)
    figure, axes = panels(len(frames), 8.6, 2.1)
    for a, (title, frame) in zip(axes, frames.items(), strict=True):
        a.imshow(frame[0, 0], cmap="gray", vmin=0, vmax=1)
        a.set(xticks=[], yticks=[])
        a.set_title(title, fontsize=9)
        a.spines[:].set_visible(False)
    return figure


PICTURES: dict[str, Callable[[dict[str, str]], Figure]] = {
    f.__name__: f
    for f in (
        *(frontier, frontier_cifar10, savings, scaling, solver, runtimes, lowcost, curves),
        *(transport, reach, courant, amplification, smoothing),
    )
}
