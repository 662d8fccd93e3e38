"""Builds the page `index.html`: two trained nets as C, the C as WebAssembly, all of it in one file.

    python examples/web/build.py

Needs clang and wasm-ld (Debian: `apt install clang lld`). Open the file in a browser; there is no server.
"""

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import typer
from torch import Tensor

import pdecnn
from pdecnn.deploy.c.build import described
from pdecnn.training.datasets import CIFAR10_CLASSES, DIGITS, load_sample

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from watched import Watched  # noqa: E402

PAGE = HERE / "index.html"
SCRIPTS = ("net.js", "pixels.js", "fields.js", "pad.js", "page.js")
OUTPUTS = ("logits", "h0", "u", "v", "hK")
# each kind of input: its net, the real images to choose from, the names of their classes, the label that is shown first
NETS = {
    "digits": ("mnist_toy_global.mnist", "mnist", DIGITS, 2),
    "pictures": ("cifar_resnet_tiny_global.cifar10", "cifar10", CIFAR10_CLASSES, 8),
}
FLAGS = (
    "--target=wasm32", "-std=c99", "-O3", "-msimd128", "-mbulk-memory", "-ffp-contract=off", "-ffreestanding",
    "-nostdlib", f"-isystem{HERE / 'libc'}", "-Wl,--no-entry", "-Wl,--strip-all", "-Wl,--export=__heap_base",
)  # fmt: skip


def clang() -> str:
    """The version of clang; a RuntimeError that says what to do if it or its linker is missing."""
    missing = [name for name in ("clang", "wasm-ld") if not shutil.which(name)]
    if missing:
        raise RuntimeError(f"web: {' and '.join(missing)} not found. Install them, in Debian: apt install clang lld.")
    text = subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"version ([\d.]+)", text)[0]


def to_wasm(source: Path) -> bytes:
    """A C file of `pdecnn export` as a module that exports its functions, its memory and where free memory begins."""
    name = described(source.read_text())[0]
    target = source.with_suffix(".wasm")
    exports = [f"-Wl,--export={name}_run", f"-Wl,--export={name}_run_k"]
    subprocess.run(["clang", *FLAGS, *exports, str(source), "-o", str(target)], check=True)
    return target.read_bytes()


def examples(data: str) -> tuple[list[int], Tensor]:
    """The first test image of each class, as bytes."""
    sample = load_sample(data)
    labels = sorted(set(sample.y.tolist()))
    return labels, torch.stack([sample.x[sample.y == label][0] for label in labels])


def net(kind: str, folder: Path) -> dict[str, Any]:
    """All that the page knows of a net; its C file stays in `folder`."""
    name, data, classes, first = NETS[kind]
    model = timm.create_model(name, pretrained=True).eval()
    watched = Watched(model)
    labels, pixels = examples(data)
    cfg = model.pretrained_cfg
    mean, std = (torch.tensor(cfg[key]).view(-1, 1, 1) for key in ("mean", "std"))
    source = folder / f"{kind}.c"
    x = (pixels / 255 - mean) / std
    cost = pdecnn.export(watched, source, x, format="c", progress=False).footprint
    with torch.no_grad():
        _, _, u, v, _ = watched(x)
    wasm = to_wasm(source)
    _, arena, shapes = described(source.read_text())
    sizes = [torch.Size(shape).numel() for shape in shapes]
    parameters = sum(p.numel() for p in model.parameters())
    about = f"{name.partition('.')[0]}: {parameters:,} parameters, {cost.macs:,} multiply-adds with K = 5"
    about += "; by design u = v, so that all arrows are diagonal" if torch.equal(u, v) else ""
    return {
        "prefix": kind, "about": about, "classes": classes, "shape": cfg["input_size"], "channels": u.shape[1],
        "mean": cfg["mean"], "std": cfg["std"], "dt": watched.layer.dt, "arena": arena, "inputs": pixels[0].numel(),
        "outputs": dict(zip(OUTPUTS, sizes, strict=True)), "first": labels.index(first),
        "examples": {"labels": labels, "pixels": _base64(pixels.numpy().tobytes())}, "wasm": _base64(wasm),
    }  # fmt: skip


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def page(nets: dict[str, Any], generator: str) -> str:
    """The whole text. Scripts are modules that follow one another, so that they need no import."""
    scripts = [(HERE / "page" / name).read_text(encoding="utf-8") for name in SCRIPTS]
    parts = {
        "css": (HERE / "page" / "page.css").read_text(encoding="utf-8"),
        "js": re.sub(r"^export ", "", "\n".join(scripts), flags=re.MULTILINE),
        "nets": json.dumps(nets),
        "generator": generator,
    }
    text = (HERE / "page" / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], text)


def generator() -> str:
    """What the bits of the page depend on."""
    return f"pdecnn {pdecnn.__version__}, torch {torch.__version__.partition('+')[0]}, clang {clang()}"


def main(output: Annotated[Path, typer.Option(help="Where the page goes.")] = PAGE) -> None:
    made_by = generator()
    with tempfile.TemporaryDirectory() as folder:
        nets = {kind: net(kind, Path(folder)) for kind in NETS}
    text = page(nets, made_by)
    output.write_text(text, encoding="utf-8")
    print(f"{output}: {len(text.encode()) / 1000:.0f} kB")


if __name__ == "__main__":
    typer.run(main)
