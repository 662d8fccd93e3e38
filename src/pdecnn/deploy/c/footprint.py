"""What a generated file costs on a device, step by step."""

from dataclasses import dataclass

from rich.table import Table

from pdecnn.shared.tables import make_table


@dataclass(frozen=True)
class Layer:
    """One step: bytes of memory in use while it runs, of weights that it reads first, its work and its numbers."""

    name: str
    shape: tuple[int, ...]
    sram: int
    flash: int
    macs: int
    arithmetic: str = "float"


@dataclass(frozen=True)
class Footprint:
    """A generated file on a device.

    Attributes:
        sram: Bytes of the arena.
        least_sram: The most that is needed at one time: no arena with these steps is smaller.
        flash: Bytes of the weights and tables.
        macs: Multiply-adds of one run, with the K of the model.
        layers: The steps in their order.
    """

    sram: int
    least_sram: int
    flash: int
    macs: int
    layers: tuple[Layer, ...]

    def shown(self) -> Table:
        """The steps as a table, with their sum."""
        more = ("numbers",) if self.in_integers else ()
        out = make_table("One run of the C file", ("step", "output", *more), ("SRAM, B", "Flash, B", "MACs"))
        for layer in self.layers:
            figures = (f"{q:,}" for q in (layer.sram, layer.flash, layer.macs))
            numbers = (layer.arithmetic,) if more else ()
            out.add_row(layer.name, "x".join(map(str, layer.shape)), *numbers, *figures)
        out.add_row("all", "", *([""] * len(more)), *(f"{q:,}" for q in (self.sram, self.flash, self.macs)))
        return out

    @property
    def in_integers(self) -> bool:
        """Whether any step is."""
        return any(layer.arithmetic != "float" for layer in self.layers)

    def lines(self) -> list[str]:
        """The same for a comment in C."""
        head = f"{'step':<40} {'output':>16} {'SRAM, B':>10} {'Flash, B':>10} {'MACs':>12}"
        rows = [
            f"{q.name:<40} {'x'.join(map(str, q.shape)):>16} {q.sram:>10} {q.flash:>10} {q.macs:>12}"
            f"{f'  {q.arithmetic}' * self.in_integers}"
            for q in self.layers
        ]
        return [head, *rows, f"{'all':<40} {'':>16} {self.sram:>10} {self.flash:>10} {self.macs:>12}"]
