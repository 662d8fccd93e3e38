"""Reaction-diffusion steps against what PyTorch has for them, and the three sweeps of the paper's Figure 1.

    python benchmarks/lowcost.py                # the bars and the sweeps -> benchmarks/results/lowcost.json and .png
    python benchmarks/lowcost.py --published    # the sweeps at the sizes of the paper -> results/lowcost-published.*
    python benchmarks/lowcost.py --calibrate    # the table that chooses the spectral method, kept in the package

All candidates of a comparison are timed in interleaved rounds. The sweeps divide the time of a fully coupled library
convolution by that of each candidate, forward only, as the paper; above 1 the candidate wins. The paper's sizes (batch
64, 64x64, 256 channels, on a GPU) are scaled down to batch 16, 32x32, 64 channels unless `--published` is given or
`--batch`, `--side` and `--channels` say otherwise; the JSON and the figure tell the sizes.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn import functional
from pdecnn.analysis.latency import Timing, environment, measure, threads
from pdecnn.kernels.spectral_filter import choice
from pdecnn.kernels.spectral_filter.methods import METHODS
from pdecnn.layers import ExplicitReactionDiffusion

RESULTS = Path(__file__).parent / "results"
TABLE = Path(choice.__file__).with_name("times.json")
Run = Callable[[], object]


def backward(function: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor) -> Run:
    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        function().backward(grad)  # type: ignore[no-untyped-call]

    return run


def rfft2_solve(v: Tensor, k: Tensor, h: float) -> Tensor:
    """The formulation of the paper: `irfft2(rfft2(v) / (1 + h |k^|^2))`."""
    k_hat = torch.fft.rfft2(k, s=v.shape[2:])
    out: Tensor = torch.fft.irfft2(
        torch.fft.rfft2(v) / (1 + h * (k_hat.real.square() + k_hat.imag.square())), s=v.shape[2:]
    )
    return out


class TwoPassStep(nn.Module):
    """The explicit step by two grouped convolutions, with the parameters of ours."""

    def __init__(self, ours: ExplicitReactionDiffusion) -> None:
        super().__init__()
        self.stencil, self.weight, self.norm, self.h = ours.stencil, ours.weight, ours.norm, ours.h

    def forward(self, y: Tensor) -> Tensor:
        """`y + h (-K^T K y + sigma(N(M y)))`."""
        C = y.shape[1]
        pad, conv = nn.functional.pad, nn.functional.conv2d
        z = conv(pad(y, (1, 1, 1, 1), mode="circular"), self.stencil[:, None], groups=C)
        z = conv(pad(z, (1, 1, 1, 1), mode="circular"), self.stencil.flip(1, 2)[:, None], groups=C)
        reaction = torch.relu(self.norm(conv(y, self.weight[:, :, None, None])))
        return y + self.h * (reaction - z)


def implicit_bar(n: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Forward and backward of the implicit solve, batch 64, 64 channels."""
    v, k = torch.randn(64, 64, n, n, requires_grad=True), (torch.rand(64, 3, 3) - 0.5).requires_grad_()
    grad = torch.randn(64, 64, n, n)
    torch.testing.assert_close(functional.implicit_diffusion(v, k, 0.1), rfft2_solve(v, k, 0.1), rtol=1e-4, atol=1e-4)
    timings = measure(
        {
            "ours": backward(lambda: functional.implicit_diffusion(v, k, 0.1), [v, k], grad),
            "rfft2": backward(lambda: rfft2_solve(v, k, 0.1), [v, k], grad),
        },
        rounds=rounds,
        max_seconds=seconds,
    )
    return summary(timings, "ours", "rfft2")


def explicit_bar(n: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Forward and backward of the whole explicit step in training mode, batch 64, 64 channels."""
    ours = ExplicitReactionDiffusion(64)
    theirs = TwoPassStep(ours)
    y, grad = torch.randn(64, 64, n, n, requires_grad=True), torch.randn(64, 64, n, n)
    torch.testing.assert_close(ours(y), theirs(y), rtol=1e-4, atol=1e-4)
    leaves = [y, ours.stencil, ours.weight]
    timings = measure(
        {
            "ours": backward(lambda: ours(y), leaves, grad),
            "two passes": backward(lambda: theirs(y), leaves, grad),
        },
        rounds=rounds,
        max_seconds=seconds,
    )
    return summary(timings, "ours", "two passes")


def coupled(batch: int, C: int, n: int, m: int, rounds: int, seconds: float) -> dict[str, float]:
    """time(fully coupled convolution) / time(candidate), forward."""
    y, kernel = torch.randn(batch, C, n, n), torch.randn(C, C, m, m) / (m * m * C) ** 0.5
    k, M = torch.randn(C, m, m) / m, torch.randn(C, C, 1, 1) / C**0.5
    g, g3 = functional.implicit_factors(k, 0.1, (n, n)), torch.rand(C, n, n)
    conv = nn.functional.conv2d
    with torch.no_grad():
        timings = measure(
            {
                "full": lambda: conv(y, kernel, padding=m // 2),
                "implicit": lambda: functional.spectral_filter(y, g),
                "implicit + 1x1": lambda: functional.spectral_filter(conv(y, M), g),
                "direct": lambda: functional.depthwise(y, k),
                "grouped": lambda: conv(y, k[:, None], padding=m // 2, groups=C),
                "circulant": lambda: functional.circulant_filter(y, g3),
            },
            rounds=rounds,
            max_seconds=seconds,
        )
    return {name: timings["full"].median / t.median for name, t in timings.items() if name != "full"}


def summary(timings: dict[str, Timing], ours: str, theirs: str) -> dict[str, Any]:
    ratio = timings[ours].speedup(timings[theirs])
    return {
        "ours_ms": 1e3 * timings[ours].median,
        "theirs_ms": 1e3 * timings[theirs].median,
        "speedup": ratio.median,
        "p20": ratio.p20,
        "p80": ratio.p80,
        "rounds": len(ratio.samples),
    }


def calibrate(sizes: list[int], rounds: int, seconds: float) -> None:
    """Times every method, forward and adjoint, on up to 16 x 32 planes of each size and writes the table."""
    forward, adjoint = torch.ops.pdecnn.spectral_filter.default, torch.ops.pdecnn.spectral_filter_backward.default
    fastest = choice._fastest
    rows: dict[str, dict[str, float]] = {}
    for n in sizes:
        batch = max(1, min(16, 2**21 // (32 * n * n)))
        v, g = torch.randn(batch, 32, n, n), torch.rand(32, n, n)

        def native(v: Tensor = v, g: Tensor = g) -> None:
            forward(v, g, "periodic")
            adjoint(v, v, g, "periodic")

        def by(name: str, v: Tensor = v, g: Tensor = g) -> Run:
            return lambda: (METHODS[name].filter(v, g), METHODS[name].adjoint(v, v, g))

        candidates: dict[str, Run] = {name: by(name) for name in METHODS if name != "dense" or n <= 24}
        candidates[choice.NATIVE] = native
        choice._fastest = lambda side, native: choice.NATIVE  # type: ignore[assignment]
        timings = measure(candidates, rounds=rounds, max_seconds=seconds)
        choice._fastest = fastest
        rows[str(n)] = {name: round(1e3 * t.p20, 4) for name, t in sorted(timings.items())}
        print(n, rows[str(n)], flush=True)
    TABLE.write_text(json.dumps({"environment": environment(), "milliseconds": rows}, indent=1) + "\n")


def sweep(batch: int, side: int, channels: int, limits: dict[str, Any]) -> dict[str, dict[int, dict[str, float]]]:
    """The three sweeps of Figure 1, each around the given sizes."""
    return {
        "image size": {n: coupled(batch, channels, n, 3, **limits) for n in (side // 4, side // 2, side, 2 * side)},
        "stencil size": {m: coupled(batch, channels, side, m, **limits) for m in (3, 5, 7)},
        "channels": {C: coupled(batch, C, side, 3, **limits) for C in (16, 32, 64, 128, 256)},
    }


def plot(sweeps: dict[str, dict[str, dict[str, float]]], sizes: str, path: Path) -> None:
    """The three panels of Figure 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(sweeps), figsize=(12, 3.6), constrained_layout=True)
    for axis, (title, points) in zip(axes, sweeps.items(), strict=True):
        x = [int(p) for p in points]
        for name in next(iter(points.values())):
            axis.plot(x, [row[name] for row in points.values()], marker="o", label=name)
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.set(xlabel=title, ylabel="time of full convolution / ours", yscale="log")
    figure.suptitle(sizes, fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibrate", action="store_true", help="measure the table of the package")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=6.0, help="at most this long for each comparison")
    parser.add_argument("--published", action="store_true", help="the sweeps alone, at the sizes of the paper")
    parser.add_argument("--batch", type=int, help="images of a sweep; 16")
    parser.add_argument("--side", type=int, help="side of the images of a sweep; 32")
    parser.add_argument("--channels", type=int, help="channels of a sweep; 64")
    args = parser.parse_args()
    batch, side, channels = (64, 64, 256) if args.published else (16, 32, 64)
    batch, side, channels = args.batch or batch, args.side or side, args.channels or channels
    limits: dict[str, Any] = {"rounds": args.rounds, "seconds": args.seconds}
    torch.manual_seed(0)
    with threads(args.threads):
        if args.calibrate:
            calibrate(args.sizes, **limits)
            return
        results: dict[str, Any] = {"environment": environment(), "threads": args.threads}
        if not args.published:
            results["implicit, forward + backward"] = {n: implicit_bar(n, **limits) for n in (8, 16, 24, 32, 48, 64)}
            results["explicit step, forward + backward"] = {n: explicit_bar(n, **limits) for n in (8, 16, 32)}
        sweeps = sweep(batch, side, channels, limits)
        results["sizes"] = {"batch": batch, "side": side, "channels": channels}
        results["full convolution / ours, forward"] = sweeps
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / ("lowcost-published.json" if args.published else "lowcost.json")
    file.write_text(json.dumps(results, indent=1) + "\n")
    sizes = f"batch {batch}, {side}x{side}, {channels} channels, 3x3"
    sizes += "" if (batch, side, channels) == (64, 64, 256) else " (the paper: batch 64, 64x64, 256 channels)"
    plot({k: {str(x): row for x, row in v.items()} for k, v in sweeps.items()}, sizes, file.with_suffix(".png"))
    print(json.dumps({k: v for k, v in results.items() if k != "environment"}, indent=1))


if __name__ == "__main__":
    main()
