"""Find the runs of repeated blocks in a model, from the shapes and tensors of one forward pass."""

from dataclasses import dataclass

from torch import Tensor, nn

from pdecnn.condensation.record import MAPS, Call, Convolution, Record
from pdecnn.condensation.site import Run, Skipped
from pdecnn.layers.global_layer_nd import GLOBAL_LAYERS
from pdecnn.shared.names import child_path, is_within

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
PLAIN_CONVOLUTIONS = 3  # a run of bare convolutions, as in VGG, counts from this many on


@dataclass(frozen=True)
class Unit:
    """A block: one child with convolutions, and the norms and activations that follow it as siblings."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    calls: tuple[Call, ...]
    kernels: frozenset[tuple[tuple[int, ...], bool]]
    convolutions: int

    @property
    def keeps_shape(self) -> bool:
        """Whether what comes out has the shape of what went in."""
        first, last = self.calls[0], self.calls[-1]
        return len(first.inputs) == 1 and len(last.shape) in MAPS and first.input_shapes[0] == last.shape

    @property
    def output(self) -> Tensor:
        """What comes out."""
        out = self.calls[-1].output
        assert out is not None
        return out

    def holds(self, path: str) -> bool:
        """Whether a module is in this block."""
        return any(is_within(path, p) for p in self.paths)

    def like(self, other: "Unit") -> bool:
        """Whether `other`, which may be a block that changes the shape, has all kernels that this one has."""
        spatial = {(size, depthwise) for size, depthwise in self.kernels if max(size) > 1}
        return spatial <= other.kernels if spatial else other.convolutions >= self.convolutions


class Finder:
    """Looks through every container of a model, inner ones first."""

    def __init__(self, model: nn.Module, record: Record) -> None:
        self.record = record
        self.modules = dict(model.named_modules())
        self.runs: list[Run] = []
        self.skipped: list[Skipped] = []
        self.blocks: list[str] = []  # nothing is replaced inside these
        self.convs: dict[str, list[Convolution]] = {}  # of a module and of all that is inside it
        for conv in record.convolutions:
            parts = conv.where.split(".") if conv.where else []
            for i in range(len(parts) + 1):
                self.convs.setdefault(".".join(parts[:i]), []).append(conv)

    def find(self) -> tuple[list[Run], list[Skipped]]:
        """The runs, in the order of the forward pass, and what was skipped."""
        for path in sorted(self.modules, key=lambda p: -(p.count(".") + bool(p))):
            self._look_into(path)
        runs = [r for r in self.runs if not self._in_block(r.parent)]
        inside = {r.path for r in runs}
        skipped = [s for s in self.skipped if not self._in_block(s.path)]
        runs.sort(key=lambda r: self.record.calls[r.members()[0]][0].start)
        return runs, [s for s in skipped if s.path not in inside]

    def _in_block(self, path: str) -> bool:
        return any(is_within(path, block) for block in self.blocks)

    def _look_into(self, parent: str) -> None:
        module = self.modules[parent]
        called: list[tuple[str, str, Call]] = []
        for name, _ in module.named_children():
            path = child_path(parent, name)
            calls = self.record.calls.get(path, [])
            if len(calls) > 1 and calls[0].keeps_shape and len(self._convs(path, calls[0])) > 1:
                self.skipped.append(Skipped(path, f"it is called {len(calls)} times in one pass"))
            called += [(name, path, calls[0])] if len(calls) == 1 else []
        called.sort(key=lambda item: item[2].start)
        is_container = isinstance(module, CONTAINERS)
        if not is_container and parent.count(".") > 0:
            return
        for segment in self._segments(called):
            self._look_at(parent, segment, is_container)

    def _segments(self, items: list[tuple[str, str, Call]]) -> list[list[Unit]]:
        """Chains of blocks, each of which is given what the one before it gave."""
        segments: list[list[Unit]] = []
        open_unit: list[tuple[str, str, Call]] = []
        units: list[Unit] = []
        last: Tensor | None = None

        def close_unit() -> None:
            if open_unit:
                units.append(self._unit(open_unit))
                open_unit.clear()

        def close() -> None:
            nonlocal units
            close_unit()
            segments.append(units)
            units = []

        for name, path, call in items:
            if call.output is None or len(call.inputs) != 1 or call.others or len(call.shape) not in MAPS:
                convs = self.convs.get(path, ())
                if len(convs) > 1 and any(len(s) == len(convs[0].input_shape) for s in call.input_shapes):
                    self.skipped.append(Skipped(path, "it takes or gives something other than one feature map"))
                close()
                last = None
                continue
            if last is not None and call.inputs[0] is not last:
                close()
            if self._convs(path, call):
                close_unit()
                open_unit.append((name, path, call))
            elif open_unit and call.keeps_shape and not self._has_global(path):
                open_unit.append((name, path, call))
            else:
                close()
            last = call.output
        close()
        return [s for s in segments if s]

    def _unit(self, items: list[tuple[str, str, Call]]) -> Unit:
        names, paths, calls = zip(*items, strict=True)
        convs = [c for path, call in zip(paths, calls, strict=True) for c in self._convs(path, call)]
        return Unit(names, paths, calls, frozenset((c.kernel, c.depthwise) for c in convs), len(convs))

    def _look_at(self, parent: str, units: list[Unit], is_container: bool) -> None:
        stretch: list[Unit] = []
        entry: Unit | None = None
        before: Unit | None = None
        for unit in [*units, None]:
            fits = unit is not None and self._fits(unit, is_container)
            joins = fits and (not stretch or self._joins(stretch[-1], unit))
            if not joins:
                self._note(parent, entry, stretch)
                stretch, entry = [], None
            if unit is not None and fits:
                if not stretch:
                    entry = before if before is not None and self._enters(before, unit, is_container) else None
                stretch.append(unit)
            before = unit

    def _fits(self, unit: Unit, is_container: bool) -> bool:
        if not unit.keeps_shape or any(self._has_global(p) for p in unit.paths):
            return False
        if not is_container and unit.convolutions < 2:
            return False
        return not any(unit.holds(r.parent) and self._composite(r) for r in self.runs)

    def _enters(self, before: Unit, unit: Unit, is_container: bool) -> bool:
        """Whether a block that changes the shape is the first of the run."""
        if before.keeps_shape or before.calls[-1].shape != unit.calls[-1].shape:
            return False
        if any(before.holds(r.parent) and self._composite(r) for r in self.runs):
            return False
        return unit.like(before) and (is_container or before.convolutions > 1) and self._read_by(before, unit, "")

    def _joins(self, left: Unit, right: Unit | None) -> bool:
        if right is None or left.calls[-1].shape != right.calls[-1].shape:
            return False
        if min(left.convolutions, right.convolutions) == 1 and not (left.like(right) and right.like(left)):
            return False
        return self._read_by(left, right, right.paths[0])

    def _read_by(self, left: Unit, right: Unit, note: str) -> bool:
        readers = self.record.readers.get(id(left.output), set())
        others = sorted(r for r in readers if not (right.holds(r) or left.holds(r)))
        if id(left.output) in self.record.returned:
            others = ["the caller of the model"]
        if others and note and left.convolutions > 1:
            what = others[0] or "the model itself"
            self.skipped.append(Skipped(note, f"the output of {left.paths[-1]} is also read by {what}"))
        return not others

    def _note(self, parent: str, entry: Unit | None, stretch: list[Unit]) -> None:
        units = [entry, *stretch] if entry is not None else list(stretch)
        if not stretch:
            return
        composite = all(u.convolutions > 1 for u in units)
        if not composite and len({u.kernels for u in units}) > 1:
            units = units[1:]  # another kind of convolution came first
            composite = all(u.convolutions > 1 for u in units)
        spatial = any(max(k) > 1 for u in units for k, _ in u.kernels)
        if len(units) < (2 if composite else PLAIN_CONVOLUTIONS) or not spatial:
            if composite:
                reason = "it is alone at its resolution" if spatial else "its convolutions are all 1x1"
                self.skipped.append(Skipped(units[0].paths[0], reason))
            return
        hooked = self._hooked(units)
        if hooked:
            self.skipped.append(Skipped(units[-1].paths[-1], f"a forward hook reads {hooked}"))
            return
        self.runs.append(self._run(parent, units))
        if composite:
            self.blocks += [p for u in units for p in u.paths]

    def _hooked(self, units: list[Unit]) -> str:
        """A module with hooks that would be lost; those of the last module of a run go to the Global layer."""
        last = units[-1].paths[-1]
        for path, module in self.modules.items():
            inside = path != last and any(u.holds(path) for u in units[1:])
            if inside and (module._forward_hooks or module._forward_pre_hooks):
                return str(path)
        return ""

    def _run(self, parent: str, units: list[Unit]) -> Run:
        shape = units[-1].calls[-1].shape[1:]
        calls = [(path, call) for u in units[1:] for path, call in zip(u.paths, u.calls, strict=True)]
        spaces = [c.input_shape[2:] for path, call in calls for c in self._convs(path, call)]
        last = shape[1:] not in spaces and shape[:-1] in spaces
        return Run(
            kind="chain",
            parent=parent,
            units=tuple(u.names for u in units),
            keep=1,
            block=type(self.modules[units[-1].paths[0]]).__name__,
            shape=(shape[-1], *shape[:-1]) if last else shape,
            channels_last=last,
            signed=not self.record.non_negative(units[-1].output),
        )

    def _composite(self, run: Run) -> bool:
        def convs(name: str) -> int:
            path = run.child(name)
            return len(self._convs(path, self.record.calls[path][0]))

        return run.is_dense or all(sum(map(convs, unit)) > 1 for unit in run.units)

    def _convs(self, path: str, call: Call) -> list[Convolution]:
        """The convolutions of a module in as many dimensions as what it gives: not, say, those of channel attention."""
        return [c for c in self.convs.get(path, ()) if len(c.input_shape) == len(call.shape)]

    def _has_global(self, path: str) -> bool:
        return any(isinstance(m, GLOBAL_LAYERS) for m in self.modules[path].modules())


def find_runs(model: nn.Module, record: Record) -> tuple[list[Run], list[Skipped]]:
    """Every run of the model, each with `keep=1`, and every place that was skipped with the reason.

    A run is a sequence of siblings that each map the feature map they are given by the one before to a feature map of
    the same shape; a block before them that leads to this shape and has the same kernels is its first.
    """
    return Finder(model, record).find()
