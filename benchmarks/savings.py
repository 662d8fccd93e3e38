"""How much time a Global net saves: time(original) / time(Global), both prepared alike, in interleaved rounds.

    python benchmarks/savings.py                       # the ResNet-32 pair
    python benchmarks/savings.py wrn40_4 densenet      # pairs by name; 'all' for all of them
    python benchmarks/savings.py --draw                # nothing is timed: the README's picture from the results

Results are merged by pair into benchmarks/results/savings.json. Inference is timed on what
`pdecnn.optimize_for_inference` returns, a training step is forward, cross-entropy, backward and SGD with momentum.
Either way each network runs in the memory format that is faster for it, and freed memory is kept, as by `pdecnn train`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

import pdecnn
from pdecnn.analysis import latency
from pdecnn.training import keep_memory

RESULTS = Path(__file__).parent / "results" / "savings.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "savings.png"


@dataclass(frozen=True)
class Pair:
    """A network and the Global net that replaces it; `target` is the ratio that is asked for."""

    baseline: str
    condensed: str
    side: int
    target: float | None = None


PAIRS = {
    "resnet32": Pair("cifar_resnet32", "cifar_resnet32_global", 32, 3.0),
    "wrn40_4": Pair("cifar_wrn40_4", "cifar_wrn40_4_global", 32),
    "densenet": Pair("cifar_densenet_bc100", "cifar_densenet_bc100_global", 32),
    "darts": Pair("cifar_darts", "cifar_darts_global", 32),
    "mobilenetv2": Pair("mobilenetv2_100", "mobilenetv2_100_global", 224),
    "mobilenetv3": Pair("mobilenetv3_large_100", "mobilenetv3_large_100_global", 224),
    "efficientnet": Pair("efficientnet_b0", "efficientnet_b0_global", 224),
}
SETTINGS = (("inference", 1), ("inference", 64), ("training", 64))


def inference(net: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    served = pdecnn.optimize_for_inference(net, x)
    return lambda: served(x)


def training(net: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    net.train()
    target = torch.zeros(len(x), dtype=torch.long)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def candidates(name: str, mode: str, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is timed for one network, by memory format; inference has chosen its own."""
    if mode == "inference":
        return {"chosen": inference(timm.create_model(name).eval(), x)}
    steps = {}
    for memory_format in (torch.contiguous_format, torch.channels_last):
        net = timm.create_model(name).to(memory_format=memory_format)  # type: ignore[call-overload]
        steps[str(memory_format).removeprefix("torch.")] = training(net, x.contiguous(memory_format=memory_format))
    return steps


def compare(pair: Pair, mode: str, batch: int, threads: int, rounds: int, max_seconds: float) -> dict[str, Any]:
    x = torch.randn(batch, 3, pair.side, pair.side)
    with latency.threads(threads), torch.set_grad_enabled(mode == "training"):
        steps = {name: candidates(name, mode, x) for name in (pair.baseline, pair.condensed)}
        timed = {f"{name} {form}": step for name, forms in steps.items() for form, step in forms.items()}
        timings = latency.measure(timed, rounds=rounds, warmup=2, max_seconds=max_seconds)

    def faster_format(name: str) -> str:
        return min(steps[name], key=lambda form: timings[f"{name} {form}"].median)

    formats = {"baseline": faster_format(pair.baseline), "global": faster_format(pair.condensed)}
    baseline = timings[f"{pair.baseline} {formats['baseline']}"]
    condensed = timings[f"{pair.condensed} {formats['global']}"]
    return {
        "mode": mode,
        "batch": batch,
        "threads": threads,
        **({"memory_formats": formats} if mode == "training" else {}),
        "baseline_seconds": baseline.to_dict(),
        "global_seconds": condensed.to_dict(),
        "ratio": condensed.speedup(baseline).to_dict(),
    }


def costs(pair: Pair) -> dict[str, Any]:
    counts = {}
    for name in (pair.baseline, pair.condensed):
        with torch.device("meta"):
            net = timm.create_model(name)
        counts[name] = pdecnn.profile(net, torch.zeros(1, 3, pair.side, pair.side, device="meta"))
    a, b = counts[pair.baseline], counts[pair.condensed]
    return {
        "parameters_ratio": a.params / b.params,
        "macs_ratio": {"exact": a.exact / b.exact, "conv_fc": a.conv_fc / b.conv_fc, "thop": a.thop / b.thop},
    }


def show(name: str, result: dict[str, Any]) -> Table:
    table = Table(title=f"{name}: {result['baseline']} / {result['global']}, MACs {result['macs_ratio']['exact']:.2f}x")
    for header in ("mode", "batch", "threads", "original, ms", "Global, ms", "ratio, median", "p20 - p80", "asked"):
        table.add_column(header, justify="right")
    for m in result["measurements"]:
        milliseconds = (f"{1e3 * m[k]['median']:.2f}" for k in ("baseline_seconds", "global_seconds"))
        ratio = m["ratio"]
        spread = f"{ratio['p20']:.2f} - {ratio['p80']:.2f}"
        asked = "" if result["target"] is None else f"{result['target']:.1f}"
        row = (m["mode"], str(m["batch"]), str(m["threads"]), *milliseconds, f"{ratio['median']:.2f}x", spread, asked)
        table.add_row(*row)
    return table


def draw(result: dict[str, Any], picture: Path) -> None:
    """Bars of the original net and the Global net, each as a share of the original."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    one_thread = {(m["mode"], m["batch"]): m for m in result["measurements"] if m["threads"] == 1}
    labels = {
        ("inference", 1): "inference,\nbatch 1",
        ("inference", 64): "inference,\nbatch 64",
        ("training", 64): "training step,\nbatch 64",
    }
    bars = {"parameters": 1 / result["parameters_ratio"], "multiply-adds": 1 / result["macs_ratio"]["exact"]}
    bars |= {labels[key]: 1 / m["ratio"]["median"] for key, m in one_thread.items()}
    figure, axes = plt.subplots(figsize=(7.6, 3.2), layout="constrained")
    axes.bar(range(len(bars)), 1.0, width=0.75, color="#d5dbe3", label=result["baseline"])
    axes.bar(range(len(bars)), list(bars.values()), width=0.75, color="#2a6f97", label=f"{result['global']}, K = 5")
    for i, share in enumerate(bars.values()):
        axes.text(i, share + 0.02, f"{1 / share:.1f}x less", ha="center", va="bottom")
    axes.set_xticks(range(len(bars)), list(bars))
    axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    axes.set_ylim(0, 1.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=2, frameon=False, loc="upper left")
    axes.set_title(f"one thread of {result['environment']['cpu']}, torch {result['environment']['torch']}", fontsize=9)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)
    plt.close(figure)


def run(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PAIRS)}, or 'all'.")] = None,
    rounds: Annotated[int, typer.Option(help="Samples of each network and setting.")] = 20,
    max_seconds: Annotated[float, typer.Option(help="Limit per setting; never fewer than 3 rounds.")] = 20.0,
    threads: Annotated[list[int] | None, typer.Option(help="Numbers of threads; 1 and 2 by default.")] = None,
    output: Annotated[Path, typer.Option(help="Where the results are merged.")] = RESULTS,
    only_draw: Annotated[bool, typer.Option("--draw", help="Draw the picture from the results.")] = False,
) -> None:
    if only_draw:
        draw(json.loads(output.read_text())["resnet32"], PICTURE)
        return
    chosen = list(PAIRS) if names == ["all"] else (names or ["resnet32"])
    unknown = [name for name in chosen if name not in PAIRS]
    if unknown:
        raise typer.BadParameter(f"no pair named {unknown[0]!r}; there are {', '.join(PAIRS)}.", param_hint="NAMES")
    results = json.loads(output.read_text()) if output.exists() else {}
    keep_memory()
    torch.manual_seed(0)
    for name in chosen:
        pair = PAIRS[name]
        settings = [(mode, batch, n) for mode, batch in SETTINGS for n in threads or (1, 2)]
        results[name] = {
            "baseline": pair.baseline,
            "global": pair.condensed,
            "target": pair.target,
            **costs(pair),
            "environment": latency.environment(),
            "measurements": [compare(pair, *setting, rounds, max_seconds) for setting in settings],
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=1) + "\n")
        Console().print(show(name, results[name]))


if __name__ == "__main__":
    typer.run(run)
