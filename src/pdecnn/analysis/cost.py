"""What a network costs: parameters, multiply-adds, bytes, depth, module by module, and by name all that is not counted.

Three counts of multiply-adds (MACs) stand side by side:

- **exact**: every multiplication of the forward pass that is not listed under `not_counted`: convolutions, matrix
  products, the K steps of the PDE layers, FFTs, gates and other element-wise products. Batch norm is taken as folded.
- **conv+fc**: convolutions and matrix products alone, the most common convention of papers.
- **thop**: the rules of thop 0.0.31, with which the Global paper was counted: convolutions with one more per output for
  a bias, 2 per element for batch norm, matrix products, one per output of an average pool and one per input and output
  of a global one. It does not see the steps of a PDE layer.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from torch import Tensor, nn

from pdecnn.analysis.formulas import KINDS
from pdecnn.analysis.tracker import Tally, track
from pdecnn.shared.modules import eval_mode, tensors_in
from pdecnn.shared.names import is_within
from pdecnn.shared.tables import make_table, short, to_html
from pdecnn.shared.trees import arguments


@dataclass(frozen=True)
class ModuleCost:
    """What one module costs by itself, without the modules inside it.

    Attributes:
        name: Its path in the model; the model itself is `""`.
        type: The name of its class.
        calls: How often it ran in one forward pass.
        params: Numbers in its own parameters; a shared parameter belongs to the first module that holds it.
        macs: Multiply-adds by kind.
        thop: Multiply-adds by the rules of thop 0.0.31.
        activation_bytes: Bytes of the new tensors it made.
    """

    name: str
    type: str
    calls: int
    params: int
    macs: Mapping[str, int]
    thop: int
    activation_bytes: int

    @property
    def exact(self) -> int:
        """All multiply-adds counted."""
        return sum(self.macs.values())

    @property
    def conv_fc(self) -> int:
        """Multiply-adds of convolutions and matrix products."""
        return self.macs["convolution"] + self.macs["linear"]


@dataclass(frozen=True)
class Uncounted:
    """An operator whose work is in no count of MACs, and why."""

    op: str
    calls: int
    elements: int
    reason: str


@dataclass(frozen=True)
class CostReport:
    """What `profile` found; the counts are for the inputs as given, batch included.

    Attributes:
        model: The name of the model's class.
        input_shapes: The shapes of the tensors that went in.
        modules: One entry per module of the model, in the order of `named_modules`; all sums below run over it.
        peak_bytes: The most bytes of activations (inputs included, parameters not) alive at one time.
        depth: The longest chain of convolutions, matrix products and PDE solves from an input to an output.
        pde_solves: Calls of the PDE operators.
        not_counted: The operators that are in no count.
        unused_params: Numbers in parameters that no operator read, such as those of auxiliary heads.
    """

    model: str
    input_shapes: tuple[tuple[int, ...], ...]
    modules: tuple[ModuleCost, ...]
    peak_bytes: int
    depth: int
    pde_solves: int
    not_counted: tuple[Uncounted, ...]
    unused_params: int = 0

    @property
    def params(self) -> int:
        """Unique parameters."""
        return sum(m.params for m in self.modules)

    @property
    def macs(self) -> dict[str, int]:
        """Multiply-adds by kind."""
        return {kind: sum(m.macs[kind] for m in self.modules) for kind in KINDS}

    @property
    def exact(self) -> int:
        """All multiply-adds counted."""
        return sum(m.exact for m in self.modules)

    @property
    def conv_fc(self) -> int:
        """Multiply-adds of convolutions and matrix products."""
        return sum(m.conv_fc for m in self.modules)

    @property
    def thop(self) -> int:
        """Multiply-adds by the rules of thop 0.0.31."""
        return sum(m.thop for m in self.modules)

    @property
    def activation_bytes(self) -> int:
        """Bytes of all the tensors made in one forward pass, which have to be written."""
        return sum(m.activation_bytes for m in self.modules)

    def subtree(self, name: str) -> ModuleCost:
        """The cost of a module together with all that is inside it."""
        inside = [m for m in self.modules if is_within(m.name, name)]
        if not inside or inside[0].name != name:
            raise ValueError(f"CostReport.subtree: {self.model} has no module {name!r}; see [m.name for m in modules].")
        return ModuleCost(
            name,
            inside[0].type,
            inside[0].calls,
            sum(m.params for m in inside),
            {kind: sum(m.macs[kind] for m in inside) for kind in KINDS},
            sum(m.thop for m in inside),
            sum(m.activation_bytes for m in inside),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers, strings, lists and dicts."""
        totals = {
            "params": self.params,
            "unused_params": self.unused_params,
            "macs": {"exact": self.exact, "conv_fc": self.conv_fc, "thop": self.thop, "by_kind": self.macs},
            "activation_bytes": self.activation_bytes,
            "peak_bytes": self.peak_bytes,
            "depth": self.depth,
            "pde_solves": self.pde_solves,
        }
        modules = [{**asdict(m), "exact": m.exact, "conv_fc": m.conv_fc} for m in self.modules]
        return {
            "model": self.model,
            "input_shapes": [list(s) for s in self.input_shapes],
            **totals,
            "not_counted": [asdict(u) for u in self.not_counted],
            "modules": modules,
        }

    def to_csv(self, path: str | Path | None = None) -> str:
        """One row per module (its own cost, without its children), written to `path` if given."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        macs = [f"macs_{kind}" for kind in KINDS]
        writer.writerow(
            ["name", "type", "calls", "params", *macs, "macs_exact", "macs_conv_fc", "macs_thop", "activation_bytes"]
        )
        for m in self.modules:
            own = [m.macs[kind] for kind in KINDS]
            writer.writerow([m.name, m.type, m.calls, m.params, *own, m.exact, m.conv_fc, m.thop, m.activation_bytes])
        if path is not None:
            Path(path).write_text(text.getvalue())
        return text.getvalue()

    def table(self, depth: int = 2) -> Table:
        """The tree of modules down to `depth`, each row with all that is inside it."""
        shapes = ", ".join("x".join(map(str, s)) for s in self.input_shapes)
        counts = ("params", "MACs\nexact", "MACs\nconv+fc", "MACs\nthop", "bytes of\nactivations")
        table = make_table(f"{self.model} on {shapes}", ("module", "type"), counts)
        for m in self.modules:
            level = m.name.count(".") + 1 if m.name else 0
            total = self.subtree(m.name)
            if level > depth or not (total.params or total.exact or total.activation_bytes):
                continue
            numbers = (total.params, total.exact, total.conv_fc, total.thop, total.activation_bytes)
            label = m.name.rpartition(".")[2] or "(all)"
            table.add_row("  " * level + label, m.type, *map(short, numbers))
        return table

    def summary(self) -> str:
        """The totals and the list of what was not counted, in plain text."""
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in self.macs.items() if n)
        lines = [
            f"parameters           {self.params:,} unique"
            + (f", of which {self.unused_params:,} that were not used" if self.unused_params else ""),
            f"MACs exact           {self.exact:,} ({kinds})",
            f"MACs conv+fc         {self.conv_fc:,}",
            f"MACs thop 0.0.31     {self.thop:,}",
            f"activations          {self.activation_bytes:,} bytes written, {self.peak_bytes:,} alive at the peak",
            f"depth                {self.depth} layers in the longest chain, {self.pde_solves} PDE solves",
            "not counted as MACs  " + ("" if self.not_counted else "nothing"),
        ]
        lines += [f"  {u.op}: {u.calls} calls, {u.elements:,} elements ({u.reason})" for u in self.not_counted]
        return "\n".join(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()
        yield self.summary()

    def _repr_html_(self) -> str:
        return f"{to_html(self.table())}<pre>{escape(self.summary())}</pre>"

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=140, color_system=None)
        console.print(self)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text


def profile(model: nn.Module, example_inputs: Any) -> CostReport:
    """Runs `model(*example_inputs)` once, in eval mode and without gradients, and counts what it costs.

    Model and inputs may be on the meta device, where nothing is computed: large networks are counted in no time.

    Args:
        model: Any module; its training flags are as before afterwards.
        example_inputs: The input tensor, the tuple of arguments, a dict of them by name, or a list of images.

    Example:
        >>> report = profile(nn.Conv2d(3, 8, 3, padding=1), torch.zeros(1, 3, 4, 4))
        >>> report.params, report.exact, report.conv_fc, report.thop, report.depth
        (224, 3456, 3456, 3584, 1)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"profile: model must be a torch.nn.Module, got {type(model).__name__}.")
    if not isinstance(example_inputs, (Tensor, tuple, list, Mapping)):
        raise TypeError(
            f"profile: example_inputs must be a Tensor, or a tuple, list or dict, got {type(example_inputs).__name__}."
        )
    inputs = arguments(model, example_inputs)
    with eval_mode(model), torch.no_grad():
        tally = track(model, inputs)
    return _report(model, inputs, tally)


def _report(model: nn.Module, inputs: tuple[Any, ...], tally: Tally) -> CostReport:
    seen: set[int] = set()
    modules: dict[str, ModuleCost] = {}
    unused = 0
    for name, module in model.named_modules(remove_duplicate=False):
        own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
        params = sum(p.numel() for p in own)
        seen.update(id(p) for p in own)
        own_macs = {kind: tally.macs[name, kind] for kind in KINDS}
        unused += sum(p.numel() for p in own if not tally.uses(p))
        modules[name] = ModuleCost(
            name, type(module).__name__, tally.calls[name], params, own_macs, tally.thop[name], tally.bytes[name]
        )
    return CostReport(
        model=type(model).__name__,
        input_shapes=tuple(tuple(x.shape) for x in tensors_in(inputs)),
        modules=tuple(modules.values()),
        peak_bytes=tally.peak_bytes,
        depth=tally.depth,
        pde_solves=tally.pde_solves,
        not_counted=tuple(_uncounted(tally.uncounted_calls, tally.uncounted_elements)),
        unused_params=unused,
    )


def _uncounted(calls: Counter[tuple[str, str]], elements: Counter[tuple[str, str]]) -> Iterator[Uncounted]:
    for key in sorted(calls, key=lambda k: (-elements[k], k)):
        yield Uncounted(key[0], calls[key], elements[key], key[1])
