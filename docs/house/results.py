"""Tables of what was measured, from the JSON files in `benchmarks/results` and `results`: nothing is copied by hand."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

ROOT = Path(__file__).parents[2]
NETWORKS = {
    "resnet32": "ResNet-32",
    "wrn40_4": "WRN-40-4",
    "densenet": "DenseNet-BC-100",
    "darts": "DARTS",
    "mobilenetv2": "MobileNetV2",
    "mobilenetv3": "MobileNetV3-large",
    "efficientnet": "EfficientNet-B0",
}
RUNTIMES = {"eager": "PyTorch", "optimized": "PyTorch, optimized", "onnx": "ONNX", "onnx-fused": "ONNX, our operators"}


def read(name: str, folder: str = "benchmarks/results") -> Any:
    """A file of results."""
    return json.loads((ROOT / folder / f"{name}.json").read_text(encoding="utf-8"))


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; all columns but the first are numbers.

    Example:
        >>> print(markdown(["a", "b"], [["x", 1]]))
        | a | b |
        |:---|---:|
        | x | 1 |
    """
    rule = "|:---|" + "---:|" * (len(header) - 1)
    lines = ["| " + " | ".join(header) + " |", rule]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def times(ratio: float | None) -> str:
    """A ratio, as `2.9x`."""
    return "" if ratio is None else f"{ratio:.2f}x"


def frontier() -> str:
    """The frontier on Fashion-MNIST."""
    return frontier_of("fashion")


def frontier_cifar10() -> str:
    """The frontier on CIFAR-10."""
    return frontier_of("cifar10")


def frontier_of(name: str) -> str:
    """Accuracy, size and speed of every network of a frontier, best first."""
    data = read(f"frontier-{name}")
    header = ["network", "parameters", "seeds", "test, %", "held, %", "ONNX, 1", "ONNX, 64", "fused, 1", "PyTorch, 1"]
    columns = [("onnx", "1"), ("onnx", "64"), ("onnx-fused", "1"), ("optimized", "1")]
    trained = ((name, net) for name, net in data["nets"].items() if net["seeds"])
    nets = sorted(trained, key=lambda item: -seed_mean(item[1], "test"))
    return markdown(
        header,
        [
            [
                f"`{name}`",
                f"{net['params']:,}",
                len(net["seeds"]),
                f"{seed_mean(net, 'test'):.2f}",
                f"{seed_mean(net, 'held'):.2f}",
                *(times(net["times"].get(r, {}).get(b, {}).get("speedup")) for r, b in columns),  # 8 bits: ONNX alone
            ]
            for name, net in nets
            if net.get("times")
        ],
    )


def seed_mean(net: dict[str, Any], split: str) -> float:
    """Accuracy of a network of the frontier, over its seeds."""
    return mean(float(seed[split]) for seed in net["seeds"].values())


def solver() -> str:
    """The K steps alone, against what one would write otherwise."""
    rows = []
    for row in read("global_solver")["rows"]:
        if row["K"] != 5 or row["threads"] != 1:
            continue
        ratio = {name: value["median"] for name, value in row["ratios"].items()}
        rows.append(
            [
                "x".join(map(str, row["shape"])),
                f"{1e3 * row['seconds']['forward fused']['median']:.2f} ms",
                *(
                    times(ratio.get(key))
                    for key in ("forward: roll / fused", "forward: compile / fused", "forward: fused / copy")
                ),
                times(ratio.get("training: roll / fused")),
            ]
        )
    header = ["feature map", "forward", "against the loop", "against torch.compile", "in copies", "forward + backward"]
    return markdown(header, rows)


def savings() -> str:
    """How many times smaller and faster each Global net of the paper is."""
    header = ["network", "parameters", "multiply-adds", "inference, 1", "inference, 64", "training step, 64"]
    rows = []
    for key, data in read("savings").items():
        rows.append(
            [
                NETWORKS.get(key, key),
                f"{data['parameters_ratio']:.1f}x",
                f"{data['macs_ratio']['exact']:.1f}x",
                *(
                    ", ".join(f"{r:.1f}x" for r in ratios(data, mode, batch))
                    for mode, batch in (("inference", 1), ("inference", 64), ("training", 64))
                ),
            ]
        )
    return markdown(header, rows)


def scaling() -> str:
    """The exponents of time and memory."""
    rows = []
    for part, sweeps in read("scaling").items():
        if part == "environment":
            continue
        for axis, row in sweeps.items():
            first, last = (row["sizes"][i] for i in (0, -1))
            span = f"{row['seconds'][0]:.2g} to {row['seconds'][-1]:.2g}"
            slopes = ("" if q is None else f"{q:.2f}" for q in (row["slope"], row.get("slope_bytes")))
            rows.append([f"{part}, {axis}", f"{first} to {last}", span, *slopes])
    return markdown(["what, against what", "sizes", "seconds", "exponent of time", "of memory"], rows)


def prediction() -> str:
    """How far predicted milliseconds are from measured ones."""
    rows = []
    for name, found in read("prediction")["nets"].items():
        for runtime, row in found.items():
            errors = [100 * abs(r["error"]) for r in row["plans"]]
            cells = (f"{row['ms']:.2f}", len(errors), f"{median(errors):.1f} %", f"{max(errors):.1f} %")
            rows.append([f"`{name}`, {RUNTIMES.get(runtime, runtime)}", *cells])
    return markdown(["network", "ms before", "plans", "median error", "largest error"], rows)


def ratios(data: dict[str, Any], mode: str, batch: int) -> list[float]:
    """How many times faster, on one thread and on two."""
    found = [m for m in data["measurements"] if (m["mode"], m["batch"]) == (mode, batch)]
    return [m["ratio"]["median"] for m in sorted(found, key=lambda m: m["threads"])]


def runtimes() -> str:
    """ResNet-32 and its Global net in four runtimes."""
    rows = read("deploy")["rows"]
    return markdown(
        ["network", "runtime", "batch", "median, ms", "p90, ms", "against ResNet-32 in ONNX"],
        [
            [
                f"`{r['model']}`",
                RUNTIMES.get(r["runtime"], r["runtime"]),
                r["batch"],
                f"{r['p50_ms']:.2f}",
                f"{r['p90_ms']:.2f}",
                times(r["faster"]),
            ]
            for r in rows
        ],
    )


def edge() -> str:
    """Networks as one C file."""
    header = ["network", "SRAM, bytes", "weights, bytes", "MACs", "instructions, Cortex-M4", "code, bytes"]
    keys = ["sram", "weights", "macs", "cortex-m4 instructions", "cortex-m4 code"]
    rows = read("edge")["rows"]
    return markdown(header, [[f"`{r['model']}`", *(f"{r[k]:,}" if r.get(k) else "" for k in keys)] for r in rows])


def demo() -> str:
    """The embedded example, seed by seed."""
    header = [
        "seed",
        "teacher, %",
        "fitted, %",
        "distilled, %",
        "parameters",
        "MACs",
        "PyTorch, 1",
        "ONNX, 1",
        "seconds",
    ]
    rows = []
    for run in read("condense_fashion")["runs"]:
        accuracy = run["accuracies"]
        rows.append(
            [
                run["seed"],
                *(f"{accuracy[k]:.1f}" for k in ("teacher", "fitted, no labels", "distilled")),
                *(times(run[k]) for k in ("params_ratio", "macs_ratio")),
                times(run["speedups"]["batch_1"]),
                times(run["onnx_speedups"]["batch_1"]),
                f"{run['seconds']:.0f}",
            ]
        )
    return markdown(header, rows)


def photographs() -> str:
    """Condensed networks of photographs, each beside its null."""
    rows = []
    made = {
        "condense_imagenette_resnet18": "`pde`",
        "condense_imagenette_resnet18_224": "a search for half of its ms, which took fewer inner channels",
        "condense_imagenette": "`paper`",
        "condense_imagenette_lite0": "a search among blocks for 66 % of its ms",
        "condense_imagenette_lite0_inner": "a search for 65 %, which took fewer inner channels",
    }
    for name, what in made.items():
        for model, net in read(name)["nets"].items():
            took = net["times"]
            before, after = net["job"]["params"]["before"], net["job"]["params"]["after"]
            accuracy, null = net["job"]["accuracies"], net["null"]
            shown = [
                ("as it was", accuracy["teacher"], before, "teacher"),
                (what, accuracy["distilled"], after, "condensed"),
            ]
            if null["accuracies"]:  # else no layer was put in: the net is its own null
                shown.append(("`nothing` (the null)", null["accuracies"]["distilled"], null["params"], "null"))
            for label, percent, params, key in shown:
                rows.append([f"`{model}`, {label}", f"{percent:.1f}", f"{params:,}", f"{took['onnx_ms'][key]:.1f}"])
    return markdown(["network", "accuracy, %", "parameters", "ONNX, batch 1, ms"], rows)


def coverage() -> str:
    """How many networks condense serves, and why it refuses the others."""
    data = read("condense_coverage")
    refused = [name for name, m in data["models"].items() if m["outcome"] == "refused"]
    count = data["summary"]
    rows = [["condensed, run and exported", count["condensed"]], ["refused with the reason", count["refused"]]]
    table = markdown(["outcome", "networks"], [*rows, ["failed", count["failed"]]])
    return f"{table}\n\nRefused: {', '.join(f'`{n}`' for n in refused)}."


def hyperbolic() -> str:
    """Shared stencils, their norm and the product as one pass."""
    data = read("hyperbolic")
    return markdown(
        ["stage", "derivatives", "whole block"],
        [
            [
                f"{r['channels']} channels, {r['side']}x{r['side']}",
                times(r["speedup"]["derivatives"]["median"]),
                times(r["speedup"]["block"]["median"]),
            ]
            for r in data["rows"]
        ],
    )


def lowcost() -> str:
    """Reaction-diffusion steps, forward and backward, against the same step in torch's operators."""
    data, rows = read("lowcost"), []
    for what in ("implicit", "explicit step"):
        for side, cell in data[f"{what}, forward + backward"].items():
            ours, theirs = f"{cell['ours_ms']:.1f}", f"{cell['theirs_ms']:.1f}"
            rows.append([f"{what}, {side}x{side}", ours, theirs, times(cell["speedup"])])
    return markdown(["step", "ours, ms", "torch, ms", "faster"], rows)


def training() -> str:
    """What a training step costs: the loop around it, the allocator, the compiler, the depth-wise kernel, an epoch."""
    rows = []
    for part, by_threads in read("training").items():
        for count, found in by_threads.items():
            rows += [[f"{what}, {count}", figure] for what, figure in TRAINING[part](found)]
    return markdown(["what, on how many threads", ""], rows)


def _loop(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (f"`{found['model']}`, batch {found['batch']}: the loop over bare steps", f"{found['loop_over_bare']:.2f}"),
        ("of it waiting for images", f"{100 * found['data_share']:.1f} %"),
    ]


def _allocator(found: dict[str, Any]) -> list[tuple[str, str]]:
    nets = {name: row for name, row in found.items() if isinstance(row, dict) and "keep_over_system" in row}
    what = "a step with freed memory kept, of the time without"
    return [(f"`{name}`: {what}", f"{row['keep_over_system']:.2f}") for name, row in nets.items()]


def _steps(found: dict[str, Any]) -> list[tuple[str, str]]:
    what = "a step of ResNet-32-Global, times faster than ResNet-32"
    return [(f"{what}, {label}", times(row["ratio"]["median"])) for label, row in found["ratios"].items()]


def _in_place(found: dict[str, Any]) -> list[tuple[str, str]]:
    what = "a step with activations in place, times faster than beside their inputs"
    return [(f"`{name}`: {what}", times(row["median"])) for name, row in found["gain"].items()]


def _depthwise(found: dict[str, Any]) -> list[tuple[str, str]]:
    what = f"`{found['model']}`, {found['side']} pixels: a step by our depth-wise kernel, times faster than by torch's"
    return [(what, times(found["ours_over_torchs_best"]["median"]))]


def _epoch(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f"`{found['model']}`: an epoch of 50,000 images", f"{found['seconds'][-1]:.0f} s")]


TRAINING = {
    "loop": _loop,
    "allocator": _allocator,
    "steps": _steps,
    "in_place": _in_place,
    "depthwise": _depthwise,
    "epoch": _epoch,
}


def knob() -> str:
    """One net for every K against a net for each: means over the seeds that there are."""
    data = read("knob")
    rows = []
    for K in sorted({K for nets in data["seeds"].values() for net in nets.values() for K in net["test"]}, key=int):
        one, each = (
            [nets[n]["test"][K] for nets in data["seeds"].values() if n in nets and K in nets[n]["test"]]
            for n in ("knob", K)
        )
        rows.append([K, f"{len(one)}, {len(each)}", *(f"{mean(x):.2f}" if x else "" for x in (one, each))])
    empty = "*Not measured yet: the cells of `benchmarks/results/knob.json` are empty.*"
    return markdown(["K", "seeds", "knob, %", "a net for this K, %"], rows) if rows else empty


def runs() -> list[dict[str, Any]]:
    """Our own runs, as `results/` keeps them."""
    found = []
    for path in sorted((ROOT / "results").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        found += data if isinstance(data, list) else [data]
    return [run for run in found if "accuracy" in run and "model" in run]


def trained() -> str:
    """Our own runs."""
    rows = []
    for run in runs():
        each = ", ".join(f"{a:.2f}" for a in run.get("accuracies", []))
        data = run["dataset"].split(",")[0]
        recipe = run.get("recipe", {})
        limit, by = recipe.get("data", {}).get("train_limit"), recipe.get("optimizer", {}).get("name", "")
        by += ", distilled" * bool(recipe.get("distill"))
        data += f", {limit:,} images" if limit else ""
        options = recipe.get("model", {}).get("kwargs", {})
        name = f"`{run['model']}`" + f" {', '.join(f'{k}={v}' for k, v in options.items())}" * bool(options)
        rows.append([name, data, by, run.get("epochs", ""), f"{mean_of(run):.2f}", each])
    return markdown(["network", "data", "by", "epochs", "mean, %", "each seed, %"], rows)


def mean_of(run: dict[str, Any]) -> float:
    """Accuracy of a run, over its seeds."""
    value = run["accuracy"]
    return mean(value) if isinstance(value, list) else float(value)


def _where(data: Any) -> dict[str, Any] | None:
    """The first environment in a file of results."""
    if not isinstance(data, dict):
        return None
    found: dict[str, Any] | None = data.get("environment")
    return found or next((w for w in map(_where, data.values()) if w), None)


def files() -> str:
    """Every file of results, with the machine and the commit that it comes from."""
    rows = []
    for path in sorted((ROOT / "benchmarks/results").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        where = _where(data) or {}
        rows.append([f"`{path.name}`", *(where.get(k, "") for k in ("cpu", "cores", "torch", "commit"))])
    return markdown(["file", "CPU", "cores", "torch", "commit"], rows)


TABLES: dict[str, Callable[[], str]] = {
    f.__name__: f
    for f in (
        *(frontier, frontier_cifar10, solver, savings, scaling, prediction, runtimes, edge, demo, photographs),
        *(coverage, hyperbolic, lowcost, training, knob, trained, files),
    )
}
