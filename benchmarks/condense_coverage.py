"""How many CNNs `condense` serves: one or two small members of every convolutional family of timm, and torchvision's.

    python benchmarks/condense_coverage.py                  # all; about 25 minutes on one core
    python benchmarks/condense_coverage.py resnet18 tv:vgg16
    python benchmarks/condense_coverage.py --quick          # fifteen, which are exported to ONNX as well

Each model is planned and condensed with the defaults. A condensed model must run forward and backward (every trainable
parameter of the condensed model has a finite gradient), survive a state-dict round trip bit by bit, pass torch.export
with the same output, and have fewer parameters and fewer multiply-adds. A model without a run must be refused with a
reason. Anything else, or more than 60 seconds of CPU time, is a failure. The condensed models of the quick list must
also give an ONNX file that agrees with them to 1e-4 and in the top-1 class of 64 images (time not counted). Results
are merged by model into benchmarks/results/condense_coverage.json.
"""

import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import torchvision
import typer
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import pdecnn
from pdecnn.analysis.latency import environment
from pdecnn.condensation import plan

RESULTS = Path(__file__).parent / "results" / "condense_coverage.json"
SECONDS = 60
MODELS = Path(__file__).with_suffix(".txt")
QUICK = (
    *("cifar_resnet32", "cifar_wrn40_4", "cifar_densenet_bc100", "resnet18", "resnet50", "densenet121", "regnety_002"),
    *("mobilenetv2_035", "mobilenetv3_small_050", "efficientnet_b0", "convnextv2_atto", "vgg16_bn", "tv:resnet18"),
    *("tv:mobilenet_v3_small", "tv:shufflenet_v2_x0_5"),
)
SIZES = {"cifar_resnet32": 32, "cifar_wrn40_4": 32, "cifar_densenet_bc100": 32, "inception_v3": 299}


def build(name: str) -> nn.Module:
    extra: dict[str, Any] = {"init_weights": False} if name in ("tv:googlenet", "tv:inception_v3") else {}
    make = torchvision.models.get_model if name.startswith("tv:") else timm.create_model
    model: nn.Module = make(name.removeprefix("tv:"), num_classes=10, **extra)
    return model


def logits(out: Any) -> Tensor:
    tensors = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    return tensors[0]


def check(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    size = SIZES.get(name.removeprefix("tv:"), 96)
    model, x = build(name).eval(), torch.randn(2, 3, size, size)
    try:
        made = plan(model, x[:1])
    except ValueError as error:
        if "no run to condense" not in str(error):
            raise
        return {"outcome": "refused", "reason": str(error)}
    small = made.apply(model)
    before, after = (pdecnn.profile(m, x[:1]) for m in (model, small))
    problems = [*forward_backward(small, x), *round_trip(made, model, small, x), *exported(small, x)]
    if not (after.params < before.params and after.exact < before.exact):
        problems.append("no fewer parameters or MACs")
    return {
        "outcome": "failed" if problems else "condensed",
        "problems": problems,
        "runs": [run.path for run in made.runs],
        "skipped": [f"{s.path}: {s.reason}" for s in made.skipped],
        "base": made.base is not None,
        "params": [before.params, after.params],
        "macs": [before.exact, after.exact],
        "depth": [before.depth, after.depth],
    }


def forward_backward(small: nn.Module, x: Tensor) -> list[str]:
    small.train()
    loss = logits(small(x)).square().mean()
    torch.autograd.backward(loss)
    small.eval()
    missing = [n for n, p in small.named_parameters() if p.requires_grad and p.grad is None and "aux" not in n.lower()]
    bad = [n for n, p in small.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    small.zero_grad(set_to_none=True)
    return [f"no gradient: {missing[:3]}"] * bool(missing) + [f"gradient not finite: {bad[:3]}"] * bool(bad)


def round_trip(made: Any, model: nn.Module, small: nn.Module, x: Tensor) -> list[str]:
    twin = pdecnn.Plan.from_dict(json.loads(json.dumps(made.to_dict()))).apply(model)
    twin.load_state_dict(small.state_dict())
    with torch.no_grad():
        same = torch.equal(logits(twin.eval()(x)), logits(small(x)))
    return [] if same else ["state dict round trip changes the output"]


def exported(small: nn.Module, x: Tensor) -> list[str]:
    program = torch.export.export(small, (x,))
    with torch.no_grad():
        ours, theirs = logits(small(x)), logits(program.module()(x))
    scale = float(ours.abs().max().clamp_min(1e-6))
    error = float((ours - theirs).abs().max()) / scale
    return [] if error < 1e-4 else [f"torch.export differs by {error:.1e}"]


def to_onnx(name: str) -> dict[str, Any]:
    """Exports the condensed model; `pdecnn.export` itself refuses a file that does not agree."""
    torch.manual_seed(0)
    size = SIZES.get(name, 96)
    model, images = build(name).eval(), torch.randn(64, 3, size, size)
    small = plan(model, images[:1]).apply(model).eval()
    with tempfile.TemporaryDirectory() as folder:
        agreement = pdecnn.export(small, Path(folder) / "small.onnx", images[:2], check=images).agreement
    assert agreement is not None  # it was asked for
    if agreement.top1 < 1:
        raise RuntimeError(f"the ONNX file has another top-1 class for {100 * (1 - agreement.top1):.1f} % of images")
    return {"max_error": agreement.max_error, "top1": agreement.top1, "images": agreement.samples}


def attempt(name: str) -> dict[str, Any]:
    start = time.process_time()  # of the CPU: what others do on the machine does not count
    try:
        result = check(name)
    except Exception as error:
        result = {"outcome": "failed", "problems": [f"{type(error).__name__}: {error}"[:400]]}
    seconds = time.process_time() - start
    if seconds > SECONDS:
        result = {**result, "outcome": "failed", "problems": [f"took {seconds:.0f} s", *result.get("problems", [])]}
    return {**result, "seconds": round(seconds, 1)}


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    count = {o: sum(r["outcome"] == o for r in rows.values()) for o in ("condensed", "refused", "failed")}
    with_run = count["condensed"] + count["failed"]
    return {**count, "share of those with a run": round(count["condensed"] / max(with_run, 1), 4)}


def with_onnx(name: str, row: dict[str, Any]) -> dict[str, Any]:
    try:
        return {**row, "onnx": to_onnx(name)}
    except Exception as error:
        return {**row, "outcome": "failed", "problems": [f"ONNX: {type(error).__name__}: {error}"[:400]]}


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The quick list alone.")] = False,
) -> None:
    warnings.filterwarnings("ignore")
    chosen = names or (list(QUICK) if quick else MODELS.read_text().split())
    rows = json.loads(RESULTS.read_text())["models"] if RESULTS.exists() else {}
    for name in chosen:
        rows[name] = attempt(name)
        if name in QUICK and rows[name]["outcome"] == "condensed":
            rows[name] = with_onnx(name, rows[name])
        note = rows[name].get("problems") or rows[name].get("reason", "")[:160]
        print(f"{name}: {rows[name]['outcome']} in {rows[name]['seconds']} s {note}", flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        result = {"summary": summary(rows), "environment": environment(), "models": dict(sorted(rows.items()))}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    typer.run(main)
