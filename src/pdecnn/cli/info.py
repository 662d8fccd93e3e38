"""`pdecnn info`: versions, CPU features, and which kernel backs each operator."""

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from rich.console import Console

from pdecnn.cli import app

OPTIONAL = (  # the packages of the extras, and triton, which comes with builds of torch
    "accelerate", "geotorch", "gradio", "huggingface_hub", "matplotlib", "onnx", "onnxruntime", "onnxscript", "optuna",
    "tensorboard", "torch-pruning", "torchdiffeq", "triton",
)  # fmt: skip


def collect() -> dict[str, Any]:
    """All that the command shows, as plain data."""
    import torch

    from pdecnn.analysis.latency import environment
    from pdecnn.kernels import available
    from pdecnn.kernels.native import ISAS, Library, load

    library = load()
    native: dict[str, Any] = {"loaded": isinstance(library, Library)}
    if isinstance(library, Library):
        runs = [isa for isa in ISAS if library.handle.pdecnn_cpu_runs(isa.encode())]
        native |= {"path": str(library.path), "isa": library.isa, "cpu_runs": runs, "threads": library.threads}
    else:
        native["reason"] = library.reason
    return {
        "environment": environment(),
        "torch_threads": torch.get_num_threads(),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "optional": {name: _version(name) for name in OPTIONAL},
        "native": native,
        "kernels": [asdict(row) for row in available()],
    }


@app.command()
def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False) -> None:
    """Show versions, CPU features and which kernel backs each operator."""
    data = collect()
    if as_json:
        typer.echo(json.dumps(data, indent=2))
        return
    from pdecnn.shared.tables import make_table

    console = Console()
    facts = make_table("pdecnn", ("", ""), ())
    facts.show_header = False
    facts.columns[0].no_wrap = True
    for name, value in data["environment"].items():
        facts.add_row(name, str(value))
    facts.add_row("threads", str(data["torch_threads"]))
    facts.add_row("torch's CPU capability", data["torch_cpu_capability"])
    for name, found in data["optional"].items():
        facts.add_row(f"{name} (optional)", found or "not installed")
    native = data["native"]
    if native["loaded"]:
        facts.add_row("native library", native["path"])
        facts.add_row("instruction set", f"{native['isa']} (this CPU runs {', '.join(native['cpu_runs'])})")
    else:
        facts.add_row("native library", f"not loaded: {native['reason']}")
    console.print(facts)
    kernels = make_table("kernels", ("operator", "device", "kernel", "note"), ())
    for row in data["kernels"]:
        kernels.add_row(row["op"], row["device"], row["kernel"], row["note"])
    console.print(kernels)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
