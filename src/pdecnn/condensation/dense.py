"""Dense blocks, whose layers add channels: find them, and make them shorter.

The treatment is that of the published DenseNet-Global [KS22]: half of the dense layers stay, and a Global layer follows
the transition. What reads the concatenated map becomes narrower: its weights for the channels that are gone are cut.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from pdecnn.condensation.find import find_runs
from pdecnn.condensation.record import Call, Record
from pdecnn.condensation.site import Run, Skipped
from pdecnn.shared.names import child_path, is_within

SHORTEST = 3
PLANES = (4, 5)  # dimensions of the maps of images and volumes; three may also be tokens
CONVS = (nn.Conv2d, nn.Conv3d)


def find_all(model: nn.Module, record: Record) -> tuple[list[Run], list[Skipped]]:
    """The runs of a model, chains first, and the places that were skipped."""
    chains, skipped = find_runs(model, record)
    dense, more = find_dense(model, record)
    found = [*chains, *(d for d in dense if not any(c.holds(d.parent) for c in chains))]
    return found, [s for s in (*skipped, *more) if not any(run.holds(s.path) for run in found)]


def find_dense(model: nn.Module, record: Record) -> tuple[list[Run], list[Skipped]]:
    """The dense runs of a model and the dense places that were skipped."""
    modules = dict(model.named_modules())
    runs: list[Run] = []
    skipped: list[Skipped] = []
    for parent, module in modules.items():
        children = [(n, record.calls.get(child_path(parent, n), [])) for n, _ in module.named_children()]
        called = sorted(((n, c[0]) for n, c in children if len(c) == 1), key=lambda item: item[1].start)
        for kind, group in (("dense", _gathered(_owner(parent, modules), called, record)), *_growing(called, record)):
            if len(group) < SHORTEST:
                continue
            run = _run(kind, parent, group, modules, record)
            if isinstance(run, Run):
                runs.append(run)
            else:
                skipped.append(run)
    return runs, skipped


def _owner(parent: str, modules: dict[str, nn.Module]) -> str:
    """The module whose forward calls the children of `parent`: itself, or the one that holds a mere list of them."""
    listed = type(modules[parent]) in (nn.ModuleList, nn.ModuleDict)  # timm's dense block is more
    return parent.rpartition(".")[0] if listed else parent


def _gathered(owner: str, called: list[tuple[str, Call]], record: Record) -> list[tuple[str, Call]]:
    """The children, if their owner returns its input and all that they gave, concatenated in this order."""
    calls = record.calls.get(owner, [])
    if len(calls) != 1 or calls[0].output is None or len(calls[0].inputs) != 1 or not called:
        return []
    ours = (id(calls[0].inputs[0]), *(id(c.output) for _, c in called))
    parts = _parts(id(calls[0].output), set(ours), record)
    widths = {c.shape[1] for _, c in called if len(c.shape) in PLANES}
    return called if parts == ours and len(widths) == 1 else []


def _parts(tensor: int, known: set[int], record: Record) -> tuple[int, ...]:
    """What a tensor is concatenated of, step by step or at once, down to the known ones."""
    if tensor in known or tensor not in record.concatenated:
        return (tensor,)
    return tuple(p for part in record.concatenated[tensor] for p in _parts(part, known, record))


def _growing(called: list[tuple[str, Call]], record: Record) -> list[tuple[str, list[tuple[str, Call]]]]:
    """Sequences of siblings that each append the same number of channels to what the one before gave."""
    groups: list[list[tuple[str, Call]]] = [[]]
    for name, call in called:
        if _appends(call, record):
            last = groups[-1][-1][1] if groups[-1] else None
            if last is not None and (call.inputs[0] is not last.output or _growth(call) != _growth(last)):
                groups.append([])
            groups[-1].append((name, call))
        else:
            groups.append([])
    return [("growing", g) for g in groups if g]


def _appends(call: Call, record: Record) -> bool:
    if call.output is None or len(call.inputs) != 1 or len(call.shape) not in PLANES:
        return False
    parts = record.concatenated.get(id(call.output), ())
    same_size = call.shape[2:] == call.input_shapes[0][2:]
    return len(parts) == 2 and parts[0] == id(call.inputs[0]) and same_size and _growth(call) > 0


def _growth(call: Call) -> int:
    return call.shape[1] - call.input_shapes[0][1]


def _run(
    kind: str, parent: str, group: list[tuple[str, Call]], modules: dict[str, nn.Module], record: Record
) -> Run | Skipped:
    first, last = group[0][1], group[-1][1]
    growth = last.shape[1] if kind == "dense" else _growth(last)
    whole = record.calls[_owner(parent, modules)][0] if kind == "dense" else None
    width = (whole or first).input_shapes[0][1]
    out, end = width + growth * len(group), (whole or last).end
    readers, reason = _readers(out, end, modules, record)
    if reason:
        return Skipped(child_path(parent, group[0][0]), reason)
    transition = _transition(readers[-1], modules)
    shape = record.calls[transition][0].shape if transition else last.shape
    return Run(
        kind=kind,
        parent=parent,
        units=tuple((name,) for name, _ in group),
        keep=-(-len(group) // 2),
        block=type(modules[child_path(parent, group[0][0])]).__name__,
        shape=shape[1:],
        growth=growth,
        width=width,
        readers=tuple(readers),
        transition=transition,
    )


def _readers(width: int, end: int, modules: dict[str, nn.Module], record: Record) -> tuple[list[str], str]:
    """The modules that are given the concatenated map, up to the first that mixes channels."""
    readers: list[str] = []
    skip_to = end
    for call in record.in_order():
        if call.start <= skip_to:
            continue
        module = modules[call.name]
        if isinstance(module, _BatchNorm) and module.num_features == width:
            readers.append(call.name)
            skip_to = call.end
        elif _mixes(module, width):
            return [*readers, call.name], ""
        elif any(True for _ in module.parameters(recurse=False)):
            return [], f"its output is read by {call.name}, a {type(module).__name__} that cannot be made narrower"
    return [], "nothing that mixes channels reads its output"


def _mixes(module: nn.Module, width: int) -> bool:
    """Whether a module is given `width` channels and every output depends on all of them."""
    if isinstance(module, CONVS):
        return module.in_channels == width and module.groups == 1
    return isinstance(module, nn.Linear) and module.in_features == width


def _transition(reader: str, modules: dict[str, nn.Module]) -> str | None:
    """The Sequential that holds the convolution which reads the dense map, if there is one."""
    parent = reader.rpartition(".")[0]
    sequential = type(modules[parent]).forward is nn.Sequential.forward
    return parent if sequential and isinstance(modules[reader], CONVS) and parent else None


def shorten(model: nn.Module, run: Run) -> None:
    """Removes the last layers of a dense run and narrows what reads it, in place."""
    parent = model.get_submodule(run.parent)
    for name in (name for unit in run.removed for name in unit):
        if run.kind == "dense":
            del parent._modules[name]
        else:
            parent._modules[name] = nn.Identity()
    old, new = (run.width + run.growth * n for n in (len(run.units), run.keep))
    for path in run.readers:
        _narrow(model.get_submodule(path), new)
    _update_widths(model, run, old, new)


def _narrow(module: nn.Module, n: int) -> None:
    def cut(name: str, dim: int) -> None:
        value = getattr(module, name, None)
        if value is None:
            return
        with torch.no_grad():
            smaller = value.narrow(dim, 0, n).clone()
        if isinstance(value, nn.Parameter):
            setattr(module, name, nn.Parameter(smaller, value.requires_grad))
        else:
            setattr(module, name, smaller)

    if isinstance(module, _BatchNorm):
        for name in ("weight", "bias", "running_mean", "running_var"):
            cut(name, 0)
        module.num_features = n
    else:
        cut("weight", 1)
        setattr(module, "in_channels" if isinstance(module, _ConvNd) else "in_features", n)


def _update_widths(model: nn.Module, run: Run, old: int, new: int) -> None:
    """timm's notes on the widths of the feature maps."""
    holds = (run.parent, *run.readers)
    info: Any = getattr(model, "feature_info", None)
    for level in getattr(info, "info", info) or ():
        path = level.get("module") if isinstance(level, dict) else None
        if path and level.get("num_chs") == old and any(is_within(h, path) for h in holds):
            level["num_chs"] = new
    if isinstance(model.get_submodule(run.readers[-1]), nn.Linear):
        for name in ("num_features", "head_hidden_size"):
            if getattr(model, name, None) == old:
                setattr(model, name, new)
