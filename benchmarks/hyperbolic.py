"""Blocks of Equation (3) with shared stencils against repeating the stencils and calling grouped conv2d.

For each stage of hyperbolic50 this times forward and backward of

- `block`: the whole block, its 1x1 convolutions included,
- `derivatives`: what the kernel replaces, `norm(expand(u)) * c`,

in training mode, with our kernels and with the grouped convolution that PyTorch has for it, in interleaved rounds. The
two are first checked to agree, gradients included. Results: `benchmarks/results/hyperbolic.json`.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pdecnn import reference as reference
from pdecnn.analysis.latency import environment, measure, threads
from pdecnn.kernels import available
from pdecnn.layers import Equation3, SharedDepthwiseExpand

STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))
RESULTS = Path(__file__).parent / "results" / "hyperbolic.json"


class RepeatedExpand(SharedDepthwiseExpand):
    """The same layer as PyTorch alone would compute it: repeated weights, grouped convolution, norm, product."""

    def forward(self, u: Tensor) -> Tensor:
        """All derivatives of all channels."""
        return reference.shared_expand(u, self.weight, self.stride)

    def normed_product(self, u: Tensor, norm: nn.Module, c: Tensor) -> Tensor:
        """`norm(self(u)) * c`, in three steps."""
        return norm(self(u)) * c  # type: ignore[no-any-return]


def pair(n: int) -> tuple[Equation3, Equation3]:
    """Two blocks of the same weights, ours and the repeated one."""
    ours, theirs = Equation3(n), Equation3(n)
    theirs.expand = RepeatedExpand(n)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def step(function: Callable[[], Tensor], grad: Tensor) -> Callable[[], None]:
    return lambda: function().backward(grad)  # type: ignore[no-untyped-call]


def check(ours: Equation3, theirs: Equation3, u: Tensor) -> float:
    """The largest relative difference of outputs and gradients."""
    values = []
    for block in (ours, theirs):
        out = block(u)
        values.append((out, *torch.autograd.grad(out.square().sum(), (u, *block.parameters()))))
    pairs = [(a.detach(), b.detach()) for a, b in zip(*values, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)) for a, b in pairs)


def compare(n: int, side: int, batch: int, rounds: int) -> dict[str, object]:
    torch.manual_seed(0)
    ours, theirs = pair(n)
    u = torch.randn(batch, n, side, side, requires_grad=True)
    c = torch.randn(batch, 4 * n, side, side, requires_grad=True)
    difference = check(ours, theirs, u)
    if not difference < 1e-2:
        raise RuntimeError(f"the two blocks differ by {difference:.1e}; no time is reported.")
    g_block, g_part = torch.randn_like(u), torch.randn_like(c)

    def part(block: Equation3) -> Callable[[], Tensor]:
        assert isinstance(block.expand, SharedDepthwiseExpand)
        expand = block.expand
        return lambda: expand.normed_product(u, block.norm_expand, c)

    timings = measure(
        {
            "block_ours": step(lambda: ours(u), g_block),
            "block_repeated": step(lambda: theirs(u), g_block),
            "derivatives_ours": step(part(ours), g_part),
            "derivatives_repeated": step(part(theirs), g_part),
        },
        rounds=rounds,
        warmup=1,
        max_seconds=8,
    )
    speedups = {
        name: timings[f"{name}_ours"].speedup(timings[f"{name}_repeated"]).to_dict()
        for name in ("block", "derivatives")
    }
    milliseconds = {name: {k: 1e3 * v for k, v in t.to_dict().items() if k != "rounds"} for name, t in timings.items()}
    return {
        "channels": n,
        "side": side,
        "batch": batch,
        "difference": difference,
        "milliseconds": milliseconds,
        "speedup": speedups,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with threads(arguments.threads):
        rows = [compare(n, side, arguments.batch, arguments.rounds) for n, side in STAGES]
    kernel = next(row.kernel for row in available() if row.op == "shared_expand")
    result = {"environment": environment(), "threads": arguments.threads, "kernel": kernel, "rows": rows}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    for row in rows:
        ms, speedup = row["milliseconds"], row["speedup"]
        assert isinstance(ms, dict)
        assert isinstance(speedup, dict)
        ours, theirs = ({k: ms[f"{k}_{who}"]["median"] for k in speedup} for who in ("ours", "repeated"))
        parts = [f"{k} {ours[k]:.1f} ms, repeated {theirs[k]:.1f} ms: {speedup[k]['median']:.2f}x" for k in speedup]
        print(f"{row['channels']:4} channels {row['side']:2}x{row['side']:<2}  {'   '.join(parts)}")


if __name__ == "__main__":
    main()
